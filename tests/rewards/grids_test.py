"""Tests of grids as text, their verdicts, turns and colours."""

import itertools
import random
import time

import numpy as np
import pytest

from jaxrl_llm.rewards import grids
from tests.reference import grids as twin

ANSWER = [[0, 7, 7], [7, 1, 7]]


def judged(text, *answers, **options):
  return grids.judge(text, answers or [ANSWER], **options)


def drawn(rng, largest=30):
  height, width = rng.randint(1, largest), rng.randint(1, largest)
  return [[rng.randrange(10) for _ in range(width)] for _ in range(height)]


@pytest.mark.parametrize('spaced', [False, True])
def test_text_and_back(spaced):
  rng = random.Random(0)
  for _ in range(100):
    grid = drawn(rng)
    if spaced and len(grid[0]) == 1:  # spaced or not, the text is the same
      assert grids.write(grid, spaced=True) == grids.write(grid)
    text = grids.write(grid, spaced=spaced)
    assert text.count('\n') == len(grid) - 1
    block, = grids.blocks(text)
    assert [[int(cell) for cell in row] for row in block] == grid
    assert judged(text, grid).kind == 'correct'
  assert grids.write(ANSWER) == '077\n717'
  assert grids.write(ANSWER, spaced=True) == '0 7 7\n7 1 7'


KINDS = {
    'alone': ('077\n717', 'correct'),
    'spaced': ('0 7 7\n7 1 7', 'correct'),
    'white space': ('\n  077 \r\n\t717\r\n', 'correct'),
    'in prose': ('The rule is clear.\n\n077\n717\n\nDone.', 'correct'),
    'in a fence': ('Here:\n```\n077\n717\n```\nI hope it helps.', 'correct'),
    'in a fence with a name': ('```text\n0 7 7\n7 1 7\n```', 'correct'),
    'in an open fence': ('```\n077\n717', 'correct'),
    'as JSON': ('[[0, 7, 7], [7, 1, 7]]', 'correct'),
    'as JSON on lines': ('[\n  [0, 7, 7],\n  [7, 1, 7]\n]', 'correct'),
    'as JSON in prose': ('The output is [[0, 7, 7], [7, 1, 7]].', 'correct'),
    'as JSON in code': ('x = np.array([[0, 7, 7],\n [7, 1, 7]])', 'correct'),
    'as JSON by cell': (
        '[\n [\n  0,\n  7,\n  7\n ],\n [\n  7,\n  1,\n  7\n ]\n]', 'correct'),
    'as JSON of one more row in prose': (
        'It was [[5, 5, 5], [0, 7, 7], [7, 1, 7]]', 'wrong_shape'),
    'as JSON, next to another': (
        '[[1, 1, 1]] and [[0, 7, 7], [7, 1, 7]]', 'correct'),
    'rows in prose': ('It was [5, 5, 5], [0, 7, 7]', 'no_grid'),
    'with bars': ('|0|7|7|\n|7|1|7|', 'correct'),
    'the last of several': ('000\n000\n\nNo:\n077\n717', 'correct'),
    'not the first of several': ('077\n717\n\nOr:\n000\n000', 'wrong'),
    'one cell wrong': ('077\n777', 'wrong'),
    'all cells wrong': ('111\n222', 'wrong'),
    'a row too few': ('077', 'wrong_shape'),
    'a row too many': ('077\n717\n717', 'wrong_shape'),
    'a column too few': ('07\n71', 'wrong_shape'),
    'turned': ('07\n71\n77', 'wrong_shape'),
    'an empty line within': ('077\n\n717', 'wrong_shape'),
    'ragged': ('077\n71', 'ragged'),
    'ragged, of the right size': ('0777\n71', 'ragged'),
    'ten': ('0 7 7\n7 10 7', 'wrong_colour'),
    'negative': ('0 7 7\n7 -1 7', 'wrong_colour'),
    'leading zero': ('0 7 7\n7 01 7', 'wrong_colour'),
    'a sign in a joined row': ('077\n-717', 'wrong_colour'),
    'Arabic digits': ('\u0660\u0667\u0667\n\u0667\u0661\u0667', 'wrong_colour'),
    'full-width digits': ('\uff10\uff17\uff17\n717', 'wrong_colour'),
    'superscript': ('0 7 7\n7 \u00b9 7', 'wrong_colour'),
    'a huge number': ('0 7 7\n7 ' + '9' * 100_000 + ' 7', 'wrong_colour'),
    'empty': ('', 'no_grid'),
    'white space alone': (' \n\t\n', 'no_grid'),
    'prose alone': ('I see 3 cells, and 4 of 7.', 'no_grid'),
    'decimals': ('0.5\n1.5', 'no_grid'),
    'brackets alone': ('[[]]\n[]', 'no_grid'),
    'a broken row': ('0x7', 'no_grid'),
    'other characters': ('077\n7<0>7', 'wrong_shape'),
}


@pytest.mark.parametrize('name', KINDS)
def test_verdicts(name):
  text, kind = KINDS[name]
  for partial in (False, True):
    verdict = judged(text, partial=partial)
    assert verdict.kind == kind and verdict.valid
    if kind == 'correct':
      assert verdict.reward == 1
    elif kind == 'wrong':
      assert 0 <= verdict.reward < 1 and (partial or not verdict.reward)
    else:
      assert verdict.reward == 0
  assert {kind for _, kind in KINDS.values()} == {*grids.KINDS}


def test_partial_rewards_and_votes():
  verdict = judged('077\n777', partial=True)
  assert verdict.reward == pytest.approx(5 / 6)
  assert verdict.detail == '83.3% of the cells are right'
  assert verdict.answer == judged('[[0,7,7],[7,7,7]]').answer == '077\n777'
  assert judged('07').answer == '07'  # a wrong shape is a vote too
  assert judged('077\n71').answer == judged('0' * 31).answer == ''


def test_several_grids_must_all_be_right():
  pair = ANSWER, [[5]]
  right = '077\n717\n\n5'
  assert judged(right, *pair, partial=True).reward == 1
  assert judged('Test 1:\n```\n077\n717\n```\nTest 2:\n```\n5\n```', *pair
                ).kind == 'correct'
  assert judged('000\n000\n\n' + right, *pair).kind == 'correct'
  wrong = judged('077\n717\n\n6', *pair, partial=True)
  assert (wrong.kind, wrong.reward) == ('wrong', .5)
  assert judged('077\n717\n\n6', *pair).reward == 0
  assert judged('5\n\n077\n717', *pair).kind == 'wrong_shape'
  assert judged('07\n717\n\n6', *pair).kind == 'ragged'
  assert judged('[[[0, 7, 7], [7, 1, 7]], [[5]]]', *pair).kind == 'correct'
  missing = judged('077\n717', *pair, partial=True)
  assert (missing.kind, missing.reward) == ('no_grid', 0)


def test_scores_equal_those_of_the_twin():
  """Of right answers, and of ones damaged at up to three characters."""
  rng, kinds = random.Random(1), {}
  for number in range(1500):
    answer = drawn(rng, 4)
    text = grids.write(answer, spaced=number % 2 and len(answer[0]) > 1)
    for _ in range(rng.randrange(4)):
      at = rng.randrange(len(text) + 1)
      text = text[:at] + rng.choice(['', *'019\n \u0661']) + text[at + 1:]
    lines = text.split('\n')
    spaced = [' ' in line.strip() for line in lines if line.strip()]
    if len({*spaced}) > 1 or not all(line.strip() for line in lines):
      continue  # not one grid of one form
    verdict = judged(text, answer, partial=True)
    assert (verdict.kind, verdict.reward) == twin.score(text, answer), text
    kinds[verdict.kind] = kinds.get(verdict.kind, 0) + 1
  assert kinds.keys() == {*grids.KINDS} - {'no_grid'}
  assert min(kinds.values()) > 10, kinds


@pytest.mark.parametrize('text', [
    '0\n' * 10**5, '077\n' * 10**5, '0' * 10**5, '0 ' * 10**5, '\n' * 10**5,
    '[' * 10**5, '],[' * 10**5, '[[' + '[1],' * 10**5, '[[1],' * 10**5,
    '[[1]' + ' ,' * 10**5, '[' + ' ' * 10**5, '[ ' * 10**5,
    '] ' * 10**5, '],' + ' ' * 10**5,
    '0\n\n' * 10**5,
    '-' * 10**5, '```\n' * 10**5, '\u0660\n' * 10**5, '1 \n x\n' * 10**5,
    ('0' * 100 + '\n') * 10**3])
def test_hostile_texts_take_linear_time(text):
  begun = time.process_time()
  for answers in ([ANSWER], [ANSWER, ANSWER]):
    assert judged(text, *answers).kind != 'correct'
  assert time.process_time() - begun < 2


def test_of_a_grid_without_end_only_the_last_rows_are_kept():
  block, = grids.blocks('1\n' + '0\n' * 1000 + '2\n')
  assert block == [['0']] * grids.LARGEST + [['2']]
  assert [len(b) for b in grids.blocks('1\n' * 99 + '\n' + '2\n' * 99, 2)] == [
      31, 31]


def test_turns_are_the_eight_symmetries():
  grid = [[1, 2, 3], [4, 5, 6]]
  found = [grids.turned(grid, number) for number in range(8)]
  for number, made in enumerate(found):
    array = np.array(grid).T if number >= 4 else np.array(grid)
    assert made == np.rot90(array, -(number % 4)).tolist()
  assert len({str(made) for made in found}) == 8 and found[0] == grid
  for first, second in itertools.product(range(8), repeat=2):  # a group
    assert grids.turned(found[first], second) in found
  assert grids.recoloured(grid, [9, 8, 7, 6, 5, 4, 3]) == [[8, 7, 6], [5, 4, 3]]


@pytest.mark.parametrize('grid,said', [
    ([[0, 9], [1, 2]], ''),
    ([], 'is not a list of rows with cells'),
    ('077', 'is not a list of rows with cells'),
    ([[]], 'is not a list of rows with cells'),
    ([[1], []], 'is not a list of rows with cells'),
    ([[1, 2], [3]], 'has rows of different lengths'),
    ([[0] * 31], 'has 1 rows and 31 columns, more than 30'),
    ([[0, 10]], 'has the colour 10, not a whole number from 0 to 9'),
    ([[0, -1]], 'has the colour -1, not a whole number from 0 to 9'),
    ([[True]], 'has the colour True, not a whole number from 0 to 9'),
    ([[1.0]], 'has the colour 1.0, not a whole number from 0 to 9'),
    ([['1']], "has the colour '1', not a whole number from 0 to 9")])
def test_faults_of_grids(grid, said):
  assert grids.fault(grid) == said
