"""Tests of Countdown with attempts."""

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.examples import attempts


@pytest.fixture(scope='module')
def task():
  return tasks.get(
      attempts.__name__, kinds=('two', 'three'), train=(50, 50),
      heldout=(10, 10), solved=(1., 1.), longest=40)


def test_the_last_chain_counts(task):
  problem = tasks.Problem(0, '9,7,4>6:', 'three', '', ((9, 7, 4), 6))
  kind = lambda text, truncated=False: task.verify(
      problem, text, truncated).kind
  assert kind('9+4=13-7=6') == kind('9-7=2*4=8;9+4=13-7=6') == 'correct'
  assert kind('what;;9+4=13-7=6') == 'correct'
  assert kind('9+4=13-7=6;9-7=2*4=8') == 'wrong_target'
  assert kind('9+4=13-7=6;') == 'malformed'
  assert kind('9+4=13-7=6', True) == 'truncated'


def test_demonstrations_try_until_they_reach_the_target_or_give_up(task):
  chains, misses, given_up = [], 0, 0
  for index in range(2000):
    problem, text = task.demonstration(index, seed=1)
    assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
    assert len(text) <= 40
    *earlier, last = kinds = [
        task.verify(problem, chain, False).kind for chain in text.split(';')]
    assert {*earlier} <= {'wrong_target'}
    assert last in ('wrong_target', 'correct')
    chains.append(len(kinds))
    misses += kinds[0] == 'wrong_target'
    given_up += kinds == ['wrong_target']
  assert (problem, text) == task.demonstration(1999, seed=1)
  # One in five gives up after a first chain that misses; 4 standard errors.
  assert abs(given_up / misses - .2) < 4 * (.16 / misses) ** .5
  assert max(chains) >= 4
