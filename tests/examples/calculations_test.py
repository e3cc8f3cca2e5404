"""Tests of calculations with a calculator to call."""

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.examples import calculations


@pytest.mark.parametrize('tool', [True, False])
def test_demonstrations_of_calculations_are_what_the_environment_says(tool):
  task = tasks.get(
      calculations.__name__, train=30, heldout=20, tool=tool, solved=.5)
  texts = [p.text for p in (*task.train, *task.heldout)]
  assert len({*texts}) == 50
  right = 0
  for index in range(200):
    problem, turns = task.demonstration(index, seed=0)
    state, prompt = calculations.reset(problem.info, index)
    assert prompt == problem.prompt
    for text, said in turns:
      state, observation, reward = calculations.step(state, text)
      assert (observation or '') == said
      ids = task.tokenizer.encode(text)
      assert len(ids) < task.turns.limits.turn
    assert observation is None
    # Python knows the value too, and a right answer takes both calls.
    assert reward == (int(turns[-1][0]) == eval(problem.text[:-1]))
    assert not reward or len(turns) == (3 if tool else 1)
    right += reward
  assert 70 < right < 130  # 100 are expected; the deviation is 7
  # The whole calculation does not fit into a turn.
  assert len(f'?{problem.text[:-1]}') == task.turns.limits.turn


def test_a_call_of_calculations_that_fails_is_answered():
  state, _ = calculations.reset({'text': '12*34+56', 'tool': True}, 0)
  for text in ('?12*', '?', '?1=2', '?00'):
    assert calculations.step(state, text)[1:] == (
        '!' if text != '?00' else '0', 0.0)
  assert calculations.step(state, '464')[1:] == (None, 1.0)
  for text in ('0464', '', '!', '465'):
    assert calculations.step(state, text)[1:] == (None, 0.0)
  state, _ = calculations.reset({'text': '12*34+56', 'tool': False}, 0)
  assert calculations.step(state, '?12*34')[1:] == (None, 0.0)
