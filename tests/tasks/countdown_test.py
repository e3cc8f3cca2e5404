"""Tests of Countdown's problems, verifier and demonstrations."""

import collections
import itertools
import random
import re

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.tasks import countdown
from tests.reference import countdown as twin


def problem(*numbers, target):
  return tasks.Problem(0, '', '', info=(numbers, target))


@pytest.fixture(scope='module')
def task():
  return tasks.get('countdown')


def judge(task, text, *numbers, target, truncated=False):
  verdict = task.verify(problem(*numbers, target=target), text, truncated)
  assert verdict.valid and verdict.reward == (verdict.kind == 'correct')
  return verdict.kind


@pytest.mark.parametrize('text', [
    '9-7=2+4=6', '4+9=13-7=6', '9+4=13-7=6'])
def test_right_answers(task, text):
  assert judge(task, text, 9, 7, 4, target=6) == 'correct'


def test_products_zeros_and_repeats(task):
  assert judge(task, '5-5=0+7=7', 7, 5, 5, target=7) == 'correct'
  assert judge(task, '5-5=0*7=0+3=3', 7, 5, 5, 3, target=3) == 'correct'
  assert judge(task, '30*30=900-9=891', 30, 30, 9, target=891) == 'correct'


HOSTILE = {
    'empty': ('', 'malformed'),
    'no step': ('6', 'malformed'),
    'number unused': ('9-7=2', 'wrong_numbers'),
    'number used twice': ('9-7=2+4=6-4=2+4=6', 'wrong_numbers'),
    'wrong number': ('9-8=1+5=6', 'wrong_numbers'),
    'wrong step, right end': ('9-7=3+4=6', 'wrong_step'),
    'wrong last step': ('9-7=2+4=7', 'wrong_step'),
    'wrong target': ('9+7=16-4=12', 'wrong_target'),
    'negative value': ('7-9=-2', 'malformed'),
    'value below 0 kept': ('7-9=0+4=6', 'wrong_step'),
    'signed number': ('+9-7=2+4=6', 'malformed'),
    'division': ('9/9=1+5=6', 'malformed'),
    'power': ('2**2=4+2=6', 'malformed'),
    'floor division': ('9//7=1+4=5', 'malformed'),
    'leading zero': ('09-7=2+4=6', 'malformed'),
    'leading zero inside': ('9-07=2+4=6', 'malformed'),
    'leading zero in a value': ('9-7=02+4=6', 'malformed'),
    'two zeros': ('9-9=00+6=6', 'malformed'),
    'space': ('9-7=2 +4=6', 'malformed'),
    'space before': (' 9-7=2+4=6', 'malformed'),
    'newline after': ('9-7=2+4=6\n', 'malformed'),
    'tab': ('9-7=2\t+4=6', 'malformed'),
    'zero byte': ('9-7=2+4=6\0', 'malformed'),
    'trailing sign': ('9-7=2+4=6=', 'malformed'),
    'trailing step': ('9-7=2+4=6+', 'malformed'),
    'trailing text': ('9-7=2+4=6ok', 'malformed'),
    'two chains': ('9-7=2+4=6,9-7=2+4=6', 'malformed'),
    'value left out': ('9-7+4=6', 'malformed'),
    'target repeated': ('9-7=2+4=6=6', 'malformed'),
    'arabic digits': ('\u0669-\u0667=\u0662+\u0664=\u0666', 'malformed'),
    'full-width digit': ('9-7=2+4=\uff16', 'malformed'),
    'superscript': ('9-7=2+4=6\u00b2', 'malformed'),
    'minus sign': ('9\u22127=2+4=6', 'malformed'),
    'underscore': ('9-7=2+4=0_6', 'malformed'),
    'float': ('9.0-7=2+4=6', 'malformed'),
    'exponent': ('9e0-7=2+4=6', 'malformed'),
    'hexadecimal': ('0x9-7=2+4=6', 'malformed'),
    'parentheses': ('(9-7)=2+4=6', 'malformed'),
    'code': ('__import__("os")', 'malformed'),
    'five digits': ('10000-9994=6', 'malformed'),
    'huge number': ('9' * 100_000 + '-7=2+4=6', 'malformed'),
    'huge text': ('9-7=2+4=6,' * 100_000, 'malformed'),
    'huge chain': ('9' + '+0=9' * 200_000, 'wrong_numbers'),
    'special token': ('9-7=2<0>+4=6', 'malformed'),
}


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_answers(task, name):
  text, kind = HOSTILE[name]
  assert judge(task, text, 9, 7, 4, target=6) == kind


def test_a_truncated_answer_never_counts(task):
  assert judge(
      task, '9-7=2+4=6', 9, 7, 4, target=6, truncated=True) == 'truncated'


def test_verifier_agrees_with_brute_force(task):
  """Every chain over the numbers, and every one-character damage to some."""
  numbers, target = (6, 4, 2), 8
  good = twin.chains(numbers, target)
  assert '6+4=10-2=8' in good and '4-2=2+6=8' in good and len(good) == 6
  alphabet = task.tokenizer.alphabet
  for text in good:
    assert judge(task, text, *numbers, target=target) == 'correct'
    for i, c in itertools.product(range(len(text) + 1), alphabet):
      for damaged in (text[:i] + c + text[i + 1:], text[:i] + c + text[i:],
                      text[:i] + text[i + 1:]):
        right = judge(task, damaged, *numbers, target=target) == 'correct'
        assert right == (damaged in good), damaged


@pytest.mark.long
def test_every_problem_has_a_solution(task):
  for p in task.train + task.heldout:
    assert task.verify(p, p.answer, False).kind == 'correct'
  sizes = collections.Counter()
  for p in task.heldout + task.train[::20]:
    numbers, target = p.info
    if len(numbers) < 4 or sizes[len(numbers)] < 10:  # The rest takes long.
      sizes[len(numbers)] += 1
      assert p.answer in twin.chains(numbers, target)
  assert min(sizes.values()) >= 10


def test_prompt_and_kind_say_the_problem(task):
  for p in task.train + task.heldout:
    numbers, target = p.info
    kind = countdown.KINDS[p.kind]
    assert p.prompt == ','.join(map(str, numbers)) + f'>{target}:'
    assert list(numbers) == sorted(numbers, reverse=True)
    assert len(numbers) == kind.numbers
    assert 1 <= min(numbers) and max(numbers) <= kind.largest
    assert 1 <= target <= kind.highest
    values = [int(v) for v in re.findall('=([0-9]+)', p.answer)]
    assert max(values) <= kind.highest
    assert task.tokenizer.decode(task.tokenizer.encode(p.prompt)) == p.prompt


def test_heldout_is_large_distinct_and_disjoint(task):
  def content(split):
    return [(tuple(sorted(p.info[0])), p.info[1]) for p in split]

  train, heldout = content(task.train), content(task.heldout)
  assert len(set(heldout)) == len(heldout) >= 500
  assert len(set(train)) == len(train)
  assert not set(train) & set(heldout)
  options = task.options
  for split, sizes in (('train', options.train), ('heldout', options.heldout)):
    kinds = collections.Counter(p.kind for p in getattr(task, split))
    assert kinds == dict(zip(options.kinds, sizes))


def test_ids_name_the_content():
  """Distinct for all multisets up to 4 of 1..8, equal for reordered ones."""
  ids = {
      countdown.problem_id(numbers, target)
      for size in range(1, 5)
      for numbers in itertools.combinations_with_replacement(range(1, 9), size)
      for target in (1, 2, 999)}
  assert len(ids) == 3 * (8 + 36 + 120 + 330)
  assert min(ids) >= 0
  assert countdown.problem_id((9, 7, 4), 6) == countdown.problem_id(
      (4, 9, 7), 6)
  # Sorted 4, 7, 9 at places 4 to 6: C(7,4) + C(11,5) + C(14,6) = 3500.
  assert countdown.problem_id((9, 7, 4), 6) == 3500 * 1000 + 6


def test_ids_fit_31_bits(task):
  assert countdown.problem_id((30,) * 6, 999) < 2**31
  assert max(p.id for p in task.train + task.heldout) < 2**31


def test_problems_are_stable_across_sizes():
  small = tasks.get('countdown', kinds=('three',), train=(50,), heldout=(40,),
                    solved=(0.1,))
  large = tasks.get('countdown', kinds=('three',), train=(900,), heldout=(40,),
                    solved=(0.5,))
  assert small.heldout == large.heldout
  assert small.train == large.train[:50]
  other = tasks.get('countdown', kinds=('three',), train=(50,), heldout=(40,),
                    solved=(0.1,), seed=1)
  assert other.heldout != small.heldout


def test_demonstrations_are_a_function_of_seed_and_index(task):
  some = [task.demonstration(i, seed=5) for i in range(50)]
  again = tasks.get('countdown')
  assert some[::-1] == [again.demonstration(i, seed=5) for i in range(50)[::-1]]
  assert some != [task.demonstration(i, seed=6) for i in range(50)]
  assert len(set(text for _, text in some)) > 40


def test_demonstrations_are_right_in_arithmetic_and_solved_as_asked():
  solved = (0.0, 0.3, 1.0)
  task = tasks.get('countdown', kinds=('two', 'three', 'four'),
                   train=(200, 200, 200), heldout=(10, 10, 10), solved=solved)
  train = set(p.id for p in task.train)
  shown, total = collections.Counter(), collections.Counter()
  for i in range(6000):
    p, text = task.demonstration(i, seed=0)
    assert p.id in train
    kind = task.verify(p, text, False).kind
    assert kind in ('correct', 'wrong_target')
    total[p.kind] += 1
    shown[p.kind] += text == p.answer
  for kind, share in zip(task.options.kinds, solved):
    # 2000 of each kind: 5 standard deviations at .3 are .05. A random chain
    # may happen to be the stored solution, of 6 or more alike.
    luck = {'two': 1 / 3, 'three': 0.05, 'four': 0.01}[kind]
    assert share - 0.05 < shown[kind] / total[kind] < share + luck + 0.05
    assert 1800 < total[kind] < 2200


def test_products_are_needed_and_shown_problems_are_not_trained():
  """Targets of the kinds product3 and product4 are above every sum."""
  kinds = 'three', 'product3', 'product4'
  task = tasks.get(
      'countdown', kinds=kinds, train=(0, 300, 300), heldout=(5, 50, 50),
      shown=(200, 80, 80), solved=(1.0, 0.0, 0.0))
  assert collections.Counter(p.kind for p in task.train) == {
      'product3': 300, 'product4': 300}
  for p in task.train + task.heldout[5:]:
    numbers, target = p.info
    assert sum(numbers) < target <= 99
    assert max(numbers) <= 9 and len(numbers) == int(p.kind[-1])
    assert '*' in p.answer
    assert task.verify(p, p.answer, False).kind == 'correct'
  trained = {p.id for p in task.train} | {p.id for p in task.heldout}
  seen, right = collections.Counter(), collections.Counter()
  for i in range(1500):
    p, text = task.demonstration(i, seed=0)
    assert p.id not in trained
    seen[p.kind] += 1
    right[p.kind] += task.verify(p, text, False).kind == 'correct'
  assert min(seen.values()) > 400 and set(seen) == set(kinds)
  assert right['three'] == seen['three']
  assert right['product3'] + right['product4'] < 30  # by luck


def test_random_chains_use_all_operators_and_orders():
  rng = random.Random(0)
  texts = [countdown.chain((6, 3), 40, rng)[0] for _ in range(2000)]
  counts = collections.Counter(texts)
  # 3-6 is below 0, so 3 first has weights 9 and 1 of 10, 6 first 9, 9, 1 of 19.
  want = {'6+3=9': 9 / 38, '6-3=3': 9 / 38, '6*3=18': 1 / 38, '3+6=9': 0.45,
          '3*6=18': 0.05}
  assert set(counts) == set(want)
  for text, share in want.items():
    assert abs(counts[text] / 2000 - share) < 0.055


def test_a_dead_end_is_no_chain():
  dead = [countdown.chain((99, 98), 99, random.Random(i)) for i in range(50)]
  assert set(dead) == {('', 0), ('99-98=1', 1)}


@pytest.mark.parametrize('options, match', [
    (dict(kinds=('thre',) + ('two',) * 3), "'thre' is not known.*'three'"),
    (dict(train=(1, 2)), r'train=\(1, 2\) must have one value'),
    (dict(heldout=(1, 1, 1, -1)), 'heldout=.* at least 0'),
    (dict(shown=(1, 2)), r'shown=\(1, 2\) must have one value'),
    (dict(train=(0, 0, 0, 0)), 'must not be all 0'),
    (dict(heldout=(0, 0, 0, 0)), 'must not be all 0'),
    (dict(train=(100_000, 1, 1, 1)), "'two' has too few distinct problems"),
    (dict(sede=1), "no option 'sede'. Did you mean 'seed'"),
])
def test_bad_options(options, match):
  with pytest.raises(ValueError, match=match):
    tasks.get('countdown', **options)


def test_unknown_task_names_the_nearest():
  with pytest.raises(ValueError, match="Did you mean 'countdown'"):
    tasks.get('countdwn')
  with pytest.raises(ValueError, match='Known: arc, code, countdown, math'):
    tasks.get('chess')
