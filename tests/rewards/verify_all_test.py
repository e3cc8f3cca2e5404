"""Tests of failing verifiers: only their row is invalid, never a silent 0."""

import fractions
import json
import math
import sys
import types

import numpy as np
import pytest

from jaxrl_llm import rewards
from jaxrl_llm.rewards import Verdict
from tests.helpers import tiny


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


@pytest.mark.parametrize('name', ['rewards', 'logged'])
def test_numbers_of_a_verdict_are_numbers(name):
  def judged(value):
    task = types.SimpleNamespace(
        verify=lambda *_: Verdict(1.0, 'correct', **{name: {'x': value}}))
    verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
    return verdict

  for value, want in ((True, 1.0), (np.bool_(False), 0.0), (None, None),
                      (np.float32(.5), .5), (np.array(2), 2.0),
                      (10 ** 400, math.inf)):
    found = getattr(judged(value), name)['x']
    assert found == want and type(found) is type(want)
  for value in ('abc', [1, 2], 1j):
    assert judged(value).kind == 'error' and not judged(value).valid


@pytest.mark.parametrize('value, want', [
    (True, 1.0), (np.array(0.5), 0.5), (fractions.Fraction(1, 2), 0.5)])
def test_the_reward_of_a_verdict_is_a_number(value, want):
  task = types.SimpleNamespace(verify=lambda *_: Verdict(value, 'right'))
  verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
  assert verdict.reward == want and type(verdict.reward) is float


@pytest.mark.parametrize('value', ['1', None, [1.0], 1j])
def test_a_verdict_without_a_number_is_an_error(value):
  task = types.SimpleNamespace(verify=lambda *_: Verdict(value, 'right'))
  verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
  assert verdict.kind == 'error' and 'the reward is' in verdict.detail


def test_a_reward_whose_square_float32_lacks_is_an_error():
  for reward, kind in ((1e15, 'right'), (-1e15, 'right'), (1e16, 'error')):
    task = types.SimpleNamespace(verify=lambda *_: Verdict(reward, 'right'))
    verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
    assert verdict.kind == kind


def test_verdicts_are_counted(monkeypatch):
  counts = tiny.counts(monkeypatch)
  rewards.verify_all(Task(), list('abc'), list('abc'), [False] * 3)
  later = types.SimpleNamespace(submit=lambda *row: lambda: (
      counts.append('waited'), Verdict(1.0, 'right'))[1])
  rewards.verify_all(later, list('ab'), list('ab'), [False] * 2)
  three, two = ([('verification', done, total) for done in range(1, total + 1)]
                for total in (3, 2))
  assert counts == [*three, 'waited', two[0], 'waited', two[1]]


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


class Own(BaseException):
  """Error that is no Exception."""


class Mute(Exception):
  """Error whose message fails."""

  def __str__(self):
    raise SystemExit('no message')

  __repr__ = __str__


def doors(verify):
  """Returns tasks that call a function in each way that a task may judge."""
  def judge(problems, texts, truncated):
    return [verify(*row) for row in zip(problems, texts, truncated)]

  def early(*row):
    verdict = verify(*row)
    return lambda: verdict

  def late(*row):
    return lambda: verify(*row)

  return [type('Task', (), {name: staticmethod(call)}) for name, call in (
      ('verify', verify), ('judge', judge), ('submit', early),
      ('submit', late))]


@pytest.mark.parametrize('end, detail', [
    (sys.exit, 'SystemExit: '), (lambda: sys.exit(0), 'SystemExit: 0'),
    (GeneratorExit, 'GeneratorExit: '), (Own, 'Own: '),
    (Mute, 'Mute: <Mute>'), (lambda: Exception('\ud800'), 'Exception: \ufffd'),
    (lambda: SyntaxError('m', ('file', 1, 1, 5)), 'SyntaxError: m')])
def test_nothing_but_an_interrupt_ends_a_verification(end, detail):
  def verify(*_):
    raise end()

  for task in doors(verify):
    verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
    assert (verdict.reward, verdict.kind, verdict.valid) == (0, 'error', False)
    assert verdict.detail.startswith(detail) and verdict.trace
    with pytest.raises(rewards.VerifierError, match='failed on all 1'):
      rewards.check_step([verdict], ['b'])

  def interrupted(*_):
    raise KeyboardInterrupt

  for task in doors(interrupted):
    with pytest.raises(KeyboardInterrupt):
      rewards.verify_all(task, ['a'], ['b'], [False])


def test_a_verdict_can_be_written_anywhere():
  class Odd:
    def __repr__(self):
      raise Own

  given = Verdict(
      np.float32(.5), ['a\n\x1b', 'b'], np.True_, detail=Odd(), answer={'x'},
      trace='\ud800')
  for task in doors(lambda *_: given):
    verdict, = rewards.verify_all(task, ['a'], ['b'], [False])
    assert verdict == Verdict(
        .5, r"['a\n\x1b', 'b']", True, '<Odd>', "{'x'}", '\ufffd')
    assert [type(x) for x in (verdict.reward, verdict.valid)] == [float, bool]
    json.dumps(vars(verdict), ensure_ascii=False).encode()
  for kind, want in (
      ('a\nb', 'a b'), ('\x1b[2J', '[2J'), ('', 'none'), (None, 'none'),
      ('x' * 100, 'x' * 60), (5, '5'), ('\ud800', '\ufffd')):
    verdict, = rewards.verify_all(
        doors(lambda *_: Verdict(1.0, kind))[0], ['a'], ['b'], [False])
    assert verdict == Verdict(1.0, want)


def test_a_judge_that_returns_something_else_is_named():
  class Odd:
    def __repr__(self):
      raise Own

  for value in (None, Odd(), [1, 2], '\ud800'):
    task = type('Task', (), {'judge': staticmethod(lambda *_: value)})
    with pytest.raises(rewards.VerifierError, match='return a list') as error:
      rewards.verify_all(task, ['a'], ['b'], [False])
    str(error.value).encode()
