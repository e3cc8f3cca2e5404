"""Tests of verifiers that judge many responses in one call, and of traces."""

import dataclasses
import types

import pytest

from jaxrl_llm import rewards
from jaxrl_llm.rewards import Verdict


def judged(judge, texts='abc'):
  task = types.SimpleNamespace(judge=judge, verify=None, submit=None)
  return rewards.verify_all(
      task, [t.upper() for t in texts], list(texts), [t == 'b' for t in texts])


def test_one_call_has_all_responses():
  calls = []

  def judge(*args):
    calls.append(args)
    return [Verdict(float(i), 'k') for i in range(3)]

  assert [v.reward for v in judged(judge)] == [0, 1, 2]
  assert calls == [(['A', 'B', 'C'], ['a', 'b', 'c'], [False, True, False])]
  assert judged(judge, '') == [] and len(calls) == 1


def test_it_is_called_when_the_verdicts_are_awaited():
  calls = []
  task = types.SimpleNamespace(
      judge=lambda *args: calls.append(args) or [Verdict(1.0, 'k')])
  wait = rewards.submit(task, ['p'], ['t'], [False])
  assert not calls
  assert wait() == [Verdict(1.0, 'k')] and len(calls) == 1


def fail(*_):
  raise RuntimeError('no sandbox')


def test_an_error_is_of_all_responses():
  verdicts = judged(fail)
  assert [dataclasses.astuple(v)[:4] for v in verdicts] == [
      (0.0, 'error', False, 'RuntimeError: no sandbox')] * 3
  assert all(v.trace.endswith('in fail\n    raise RuntimeError('
                              "'no sandbox')\nRuntimeError: no sandbox")
             for v in verdicts)


def test_a_bad_verdict_spoils_itself_alone():
  a, b, c = judged(lambda *_: (
      Verdict(1.0, 'k'), Verdict(float('nan'), 'k'), 3))
  assert a == Verdict(1.0, 'k')
  assert (b.kind, b.valid, b.detail) == (
      'error', False, 'ValueError: the reward is nan')
  assert (c.kind, c.valid) == ('error', False)


@pytest.mark.parametrize('result', [
    [Verdict(1.0, 'k')] * 2, [], None, 'abc', Verdict(1.0, 'k')])
def test_a_result_of_a_wrong_form_ends_the_run(result):
  with pytest.raises(ValueError, match='for 3 responses: return a list'):
    judged(lambda *_: result)


@pytest.mark.parametrize('error', [
    rewards.VerifierError('so it is'), ChildProcessError('so it is')])
@pytest.mark.parametrize('name', ['judge', 'submit', 'verify'])
def test_errors_that_end_the_run(name, error):
  def raises(*_):
    raise error

  task = types.SimpleNamespace(**{name: raises})
  with pytest.raises(type(error), match='so it is'):
    rewards.verify_all(task, ['p'], ['t'], [False])


def test_traces_are_short():
  def deep(n, *_):
    if n:
      deep(n - 1)
    raise RuntimeError('x' * 10_000)

  task = types.SimpleNamespace(verify=lambda *_: deep(20))
  verdict, = rewards.verify_all(task, ['p'], ['t'], [False])
  lines = verdict.trace.split('\n')
  assert len(lines) == 12 and max(map(len, lines)) == 160
  assert lines[-1].startswith('RuntimeError: xxx')


def test_traces_of_verdicts_that_did_not_fail_are_empty():
  verdict, = rewards.verify_all(types.SimpleNamespace(
      verify=lambda *_: Verdict(0.0, 'wrong')), ['p'], ['t'], [False])
  assert verdict.trace == ''


FAILED = Verdict(0.0, 'error', False, 'why', trace='File "a.py"\nwhy')


def told_of(verdicts, texts):
  with pytest.raises(rewards.VerifierError) as error:
    rewards.check_step(verdicts, texts)
  return str(error.value)


def test_a_verifier_that_always_fails_is_told():
  told = told_of([FAILED, Verdict(0.0, 'error', False, 'other')],
                 ['first', 'second'])
  assert 'all 2 responses' in told and 'other' not in told
  assert '\nFile "a.py"\nwhy\n' in told and "'first'" in told
  assert 'second' not in told
  # An error without a trace, such as a worker that died.
  told = told_of([Verdict(0.0, 'error', False, 'died')], ['x'])
  assert 'died' in told


def test_a_verifier_that_skips_all_is_told():
  skipped = Verdict(0.0, 'skipped', False)
  assert told_of([skipped] * 3, [''] * 3) == (
      'The verifier skipped all 3 responses of the step: correct the verifier.')
  blamed = dataclasses.replace(skipped, blame='f is bad.')
  told = told_of([blamed] * 3, [''] * 3)
  assert told.endswith('3 responses of the step has a reward, since f is bad.')


@pytest.mark.parametrize('kinds, counts', [
    ('error skipped error skipped', '(2 error, 2 skipped)'),
    ('timeout timeout', 'all 2'), ('own error', '(1 error, 1 own)'),
    ('skipped timeout error error', '(2 error, 1 skipped, 1 timeout)')])
def test_a_step_without_a_valid_verdict_is_told(kinds, counts):
  verdicts = [Verdict(0.0, kind, False, f'why {kind}')
              for kind in kinds.split()]
  told = told_of(verdicts, ['a', 'b', 'c', 'd'][:len(verdicts)])
  assert counts in told
  worst = 'error' if 'error' in kinds else 'timeout'
  assert f'\nwhy {worst}\n' in told


def test_the_users_code_of_each_kind_is_told():
  told = told_of([
      Verdict(0.0, kind, False, blame=f'f is {kind}.')
      for kind in ('skipped', 'error', 'error')], ['x'] * 3)
  assert told.endswith('since f is skipped; and f is error.')


def test_the_response_is_shortened():
  told = told_of([FAILED], ['a' * 200])
  assert f"'{'a' * 200}'" in told
  told = told_of([FAILED], ['a' * 201])
  assert f"'{'a' * 197}...'" in told


@pytest.mark.parametrize('verdicts', [
    [], [FAILED, Verdict(0.0, 'wrong')], [Verdict(0.0, 'timeout')]])
def test_other_steps_are_not_told(verdicts):
  rewards.check_step(verdicts, ['t'] * len(verdicts))


@pytest.mark.parametrize('name', ['verify', 'submit', 'judge'])
def test_a_verifier_that_exits_fails_on_its_responses_alone(name):
  def leave(*_):
    raise SystemExit(0)

  task = types.SimpleNamespace(**{name: leave})
  verdict, = rewards.verify_all(task, ['p'], ['t'], [False])
  assert (verdict.kind, verdict.valid) == ('error', False)
  assert 'SystemExit' in verdict.detail
