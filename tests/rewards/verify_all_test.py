"""Tests of failing verifiers: only their row is invalid, never a silent 0."""

import pytest

from jaxrl_llm import rewards
from jaxrl_llm.rewards import Verdict


class Task:

  def verify(self, problem, text, truncated):
    if text == 'raise':
      raise RuntimeError('no sandbox')
    if text == 'none':
      return None
    if text == 'nan':
      return Verdict(float('nan'), 'wrong')
    if truncated:
      return Verdict(0.0, 'truncated')
    return Verdict(float(text == problem), 'correct' if text == problem
                   else 'wrong')


def test_rows_stay_in_place():
  texts = ['a', 'raise', 'x', 'nan', 'e', 'none', 'g']
  cut = [False] * 6 + [True]
  got = rewards.verify_all(Task(), list('abcdefg'), texts, cut)
  assert [(v.reward, v.kind, v.valid) for v in got] == [
      (1, 'correct', True), (0, 'error', False), (0, 'wrong', True),
      (0, 'error', False), (1, 'correct', True), (0, 'error', False),
      (0, 'truncated', True)]


def test_error_is_told():
  verdict, = rewards.verify_all(Task(), ['a'], ['raise'], [False])
  assert verdict.detail == 'RuntimeError: no sandbox'
  verdict, = rewards.verify_all(Task(), ['a'], ['nan'], [False])
  assert 'nan' in verdict.detail


def test_uneven_lengths_are_refused():
  with pytest.raises(ValueError, match='2 problems, 1 responses and 1 trunc'):
    rewards.verify_all(Task(), ['a', 'b'], ['a'], [False])


def test_an_interrupt_is_not_swallowed():
  class Stop(Task):
    def verify(self, problem, text, truncated):
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    rewards.verify_all(Stop(), ['a'], ['a'], [False])
