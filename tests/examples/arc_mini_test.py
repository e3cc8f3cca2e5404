"""Tests of ARC-mini's rules, problems, verdicts and demonstrations."""

import collections
import random

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.examples import arc_mini
from jaxrl_llm.rewards import grids
from tests.reference import grids as twin


@pytest.fixture(scope='module')
def task():
  return tasks.get(arc_mini.__name__, train=20, heldout=10, shown=20)


def read_one(text):
  block, = grids.blocks(text)
  return [[int(cell) for cell in row] for row in block]


GOLDEN = {
    'rotate': '40\n51\n62', 'half_turn': '654\n210', 'flip': '210\n654',
    'flop': '456\n012', 'transpose': '04\n15\n26', 'gravity': '012\n456',
    'mirror': '010\n454', 'count': '124566'}


@pytest.mark.parametrize('kind', GOLDEN)
def test_rules_without_a_colour(kind):
  rule, = arc_mini._rules(7)[kind]
  grid = [[0, 1, 2], [4, 5, 6]]
  if kind == 'gravity':
    assert rule([[1, 0, 2], [0, 0, 3], [0, 4, 0]]) == [
        [0, 0, 0], [0, 0, 2], [1, 4, 3]]
  elif kind == 'count':
    assert rule([[0, 2, 1], [2, 0, 3]]) == [[1, 2, 2, 3]]
    assert rule([[0]]) == [[0]]
  else:
    assert grids.write(rule(grid)) == GOLDEN[kind]


def test_rules_with_a_colour():
  rules = arc_mini._rules(4)
  assert {kind: len(found) for kind, found in rules.items() if len(found) > 1
          } == {'exchange': 3, 'fill': 3, 'border': 3, 'outline': 3}
  grid = [[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0]]
  text = lambda kind, number: grids.write(rules[kind][number](grid))
  assert text('exchange', 0) == '0000\n0200\n1000'
  assert text('fill', 2) == '3333\n3133\n2333'
  assert text('border', 1) == '2222\n2102\n2222'
  assert text('outline', 2) == '0300\n3130\n2300'


@pytest.mark.parametrize('kind', arc_mini.FAMILIES)
def test_every_problem_is_of_its_rule(task, kind):
  """By an independent check, of all pairs of all its problems."""
  problems = [p for p in task.train + task.heldout if p.kind == kind]
  assert len(problems) == 30
  for problem in problems:
    pairs = list(zip(problem.info.inputs, problem.info.outputs))
    assert len(pairs) == 3
    for before, after in pairs:
      assert twin.fits(kind, before, after) and before != after
      assert 2 <= len(before) <= 3 and 2 <= len(before[0]) <= 3
      assert {c for row in before for c in row} <= {*range(4)}
    assert problem.answer == grids.write(pairs[-1][1])
    changed = [[*row] for row in pairs[-1][1]]
    changed[-1][-1] = (changed[-1][-1] + 1) % 4
    assert kind in ('exchange', 'fill', 'border', 'outline') or (
        not twin.fits(kind, pairs[-1][0], changed))


def test_prompts_show_the_pairs(task):
  for problem in task.train + task.heldout:
    *examples, test = problem.prompt.split(';')
    pairs = [tuple(map(read_one, pair.split('>'))) for pair in examples]
    inputs, outputs = problem.info
    assert pairs == [*zip(inputs[:-1], outputs[:-1])]
    assert test == grids.write(inputs[-1]) + '>'
    tokens = task.tokenizer.encode(problem.prompt + problem.answer)
    assert task.tokenizer.decode(tokens) == problem.prompt + problem.answer
  assert max(len(p.prompt) for p in task.train) <= 60


def test_no_other_rule_says_something_else(task):
  """No rule that fits all the examples gives another answer."""
  for problem in task.heldout:
    *examples, (test, answer) = zip(*problem.info)
    fitting = {
        grids.write(rule(test)) for rules in arc_mini._rules(4).values()
        for rule in rules if all(rule(a) == b for a, b in examples)}
    assert fitting == {grids.write(answer)}


def test_sets_are_disjoint_balanced_and_repeatable(task):
  ids = [p.id for p in task.train + task.heldout]
  assert len({*ids}) == len(ids) == 360 and max(ids) < 2**31
  assert len({p.prompt for p in task.train + task.heldout}) == 360
  assert {*collections.Counter(p.kind for p in task.heldout).values()} == {10}
  again = tasks.get(arc_mini.__name__, train=2, heldout=10, shown=0)
  assert again.heldout == task.heldout
  assert again.train == [p for i, p in enumerate(task.train) if i % 20 < 2]
  other = tasks.get(arc_mini.__name__, train=2, heldout=10, shown=0, seed=1)
  assert not {p.id for p in other.heldout} & {*ids}
  shown = {p.id for found in task._shown.values() for p in found}
  assert len(shown) == 240 and not shown & {*ids}


def test_verdicts_are_those_of_grids(task):
  problem = next(p for p in task.train if p.kind == 'half_turn')
  judge = lambda text: task.verify(problem, text, False)
  assert judge(problem.answer).reward == 1
  text = problem.answer[:-1] + str((int(problem.answer[-1]) + 1) % 4)
  size = len(problem.answer.replace('\n', ''))
  assert judge(text).reward == pytest.approx(1 - 1 / size)
  exact = tasks.get(
      arc_mini.__name__, train=20, shown=0, heldout=1, reward='exact')
  assert exact.verify(problem, text, False).reward == 0
  for said, kind in {
      '': 'no_grid', '>;': 'no_grid', problem.answer + '\n0': 'ragged',
      '0000': 'wrong_shape', '0 12': 'wrong_colour'}.items():
    assert judge(said) == grids.judge(said, problem.info.outputs[-1:])
    assert (judge(said).kind, judge(said).reward) == (kind, 0)


def test_demonstrations_apply_the_right_rule_as_often_as_asked():
  kinds, shares = ('flip', 'fill', 'count'), (1.0, 0.0, 0.5)
  task = tasks.get(
      arc_mini.__name__, kinds=kinds, solved=shares, train=5, shown=30)
  found = collections.defaultdict(list)
  for index in range(600):
    problem, text = task.demonstration(index, seed=3)
    assert (problem, text) == task.demonstration(index, seed=3)
    right = text == problem.answer
    if not right:
      assert task.verify(problem, text, False).kind in ('wrong', 'wrong_shape')
      assert any(text == grids.write(rule(problem.info.inputs[-1]))
                 for rules in arc_mini._rules(4).values() for rule in rules)
    found[problem.kind].append(right)
  assert min(map(len, found.values())) > 150
  for kind, share in zip(kinds, shares):
    rate = sum(found[kind]) / len(found[kind])
    assert abs(rate - share) <= 4 * (share * (1 - share) / 150) ** 0.5
  assert task.demonstration(0, seed=4) != task.demonstration(0, seed=3)


@pytest.mark.parametrize('options,said', [
    (dict(kinds=('flipp',)), "kind 'flipp' is not known. Did you mean 'flip'"),
    (dict(kinds=()), 'must have at least one kind'),
    (dict(kinds=('flip', 'flip')), 'and none twice'),
    (dict(solved=(0.5, 0.5)), 'one share from 0 to 1, or one for each'),
    (dict(solved=(1.5,)), 'one share from 0 to 1'),
    (dict(smallest=4), 'smallest=4 must be at most largest=3'),
    (dict(kinds=('count',), smallest=1, largest=1),
     'too few distinct problems for heldout=20')])
def test_bad_options(options, said):
  with pytest.raises(ValueError, match=said):
    tasks.get(arc_mini.__name__, **options)


def test_the_twin_tells_families_apart():
  """Each family's check refuses most grids of the others."""
  rng = random.Random(0)
  for kind in arc_mini.FAMILIES:
    wrong = total = 0
    for other, rules in arc_mini._rules(4).items():
      if other == kind:
        continue
      for _ in range(10):
        grid = [[rng.randrange(4) for _ in range(3)] for _ in range(3)]
        wrong += twin.fits(kind, grid, rng.choice(rules)(grid))
        total += 1
    assert wrong < total / 5, kind
