"""Tests of the readings and tables of the real job's benchmark."""

import pytest

from benchmarks import smollm2
from jaxrl_llm import tasks


def row(said, reward=0.0, ident=1):
  return dict(problem_id=ident, response=said, reward=reward)


@pytest.mark.parametrize('said, last, anywhere', [
    ('12', True, True), ('7 + 5 = 12 apples', True, True),
    ('12, not 13', False, True), ('1 2', False, False), ('', False, False),
    ('112', False, False), ('-12', False, False), ('9' * 5000, False, False),
    ('It is 12.\n\nThis is', True, True)])
def test_readings(said, last, anywhere):
  for reward in 0.0, 1.0:
    assert smollm2.readings(row(said, reward), 12) == dict(
        strict=reward == 1, last=last, anywhere=anywhere)


def test_tables():
  """Two of four problems are solved before, all after; by hand."""
  kinds = dict(zip(range(1, 5), ('sums', 'sums', 'products', 'products')))
  problems = {i: tasks.Problem(i, '', kind, '12', text=f'{kind} {i}?')
              for i, kind in kinds.items()}
  run = smollm2.Run(dict(seconds=90, steps=3), problems, dict(
      start=[row('12 apples', i // 3, i) for i in kinds],
      last=[row('12', 1.0, i) for i in kinds]))
  # Standard error of 0, 0, 1 and 1: sqrt(1 / 3) / sqrt(4) = .289.
  mean, error = smollm2.share(run, 'start', '', 'strict')
  assert mean == 0.5 and error == pytest.approx(1 / 12**0.5)
  assert smollm2.share(run, 'start', 'products', 'strict') == (1, 0)
  assert smollm2.seeds({4: run}).splitlines()[-1] == (
      '| 4 | 0.500 ± 0.289 | 1.000 ± 0.000 | 0.500 | 1.7 | 1.5 |')
  assert smollm2.levels([run]).splitlines()[-3:] == [
      '| sums | 0.000 to 1.000 | 1.000 to 1.000 | 1.000 to 1.000 |',
      '| products | 1.000 to 1.000 | 1.000 to 1.000 | 1.000 to 1.000 |',
      '| all | 0.500 to 1.000 | 1.000 to 1.000 | 1.000 to 1.000 |']
  assert smollm2.samples(run, 1).splitlines()[-2:] == [
      "| sums 1? | '12 apples' | '12' | 12 |",
      "| products 3? | '12 apples' | '12' | 12 |"]
  assert 'seed 4' in smollm2.report({4: run})
