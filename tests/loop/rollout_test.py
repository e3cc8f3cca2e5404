"""Tests of prompts, requests and texts against plain lists."""

import types

import numpy as np
import pytest

from jaxrl_llm import rewards
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.loop import rollout
from jaxrl_llm.rewards import Verdict, VerifierError
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import GroupRequests, Rollouts

TOKENIZER = CharTokenizer('abc')  # a is 2, b 3, c 4
STOP = 1


def problem(i, prompt):
  return Problem(id=i, prompt=prompt, kind='some')


def rollouts(responses, truncated, width=5):
  """Makes rollouts from lists of tokens; log-probs are -row - t/10."""
  rows = len(responses)
  tokens = np.zeros((rows, width), np.int32)
  logprobs = np.zeros((rows, width), np.float32)
  for r, response in enumerate(responses):
    tokens[r, :len(response)] = response
    logprobs[r, :len(response)] = [-r - t / 10 for t in range(len(response))]
  length = np.array([len(r) for r in responses], np.int32)
  return Rollouts(
      tokens=tokens, length=length, logprobs=logprobs,
      entropy=np.zeros_like(logprobs), truncated=np.array(truncated, bool),
      problem_id=np.zeros(rows, np.int32), sample=np.zeros(rows, np.int32),
      policy_step=np.zeros(rows, np.int32))


def test_encode():
  got = rollout.encode(
      [problem(7, 'ab'), problem(3, 'cacb')], TOKENIZER, 4)
  np.testing.assert_array_equal(got.tokens, [[2, 3, 0, 0], [4, 2, 4, 3]])
  np.testing.assert_array_equal(got.length, [2, 4])
  np.testing.assert_array_equal(got.problem_id, [7, 3])
  given = [x for x in vars(got).values() if x is not None]
  assert {x.dtype for x in given} == {np.dtype(np.int32)}


@pytest.mark.parametrize('prompt, size', [('abcab', 5), ('', 0)])
def test_a_prompt_that_does_not_fit_is_named(prompt, size):
  with pytest.raises(ValueError) as error:
    rollout.encode([problem(1, 'a'), problem(92, prompt)], TOKENIZER, 4)
  for part in ('problem 92', f'{size} tokens', 'max_prompt=4'):
    assert part in str(error.value)


def ask(group, first, count):
  """Makes requests about groups of a set of 5 problems."""
  group = np.array(group, np.int64)
  return GroupRequests(
      group, (group % 5).astype(np.int32), np.array(first, np.int32),
      np.array(count, np.int32), np.ones(len(group), bool))


def requests_of(*given):
  return rollout.requests_of(ask(*given), problems=5, samples=4, budget=20)


def test_requests_of_a_group_are_neighbours():
  got = requests_of([3, 4], [0, 0], [3, 2])
  np.testing.assert_array_equal(got.prompt, [0, 0, 0, 1, 1])
  np.testing.assert_array_equal(got.sample, [0, 1, 2, 0, 1])
  np.testing.assert_array_equal(got.budget, [20] * 5)
  given = [x for x in vars(got).values() if x is not None]
  assert {x.dtype for x in given} == {np.dtype(np.int32)}


def test_a_problem_that_comes_again_has_other_sample_numbers():
  """Groups 1, 6 and 11 are three visits to problem 1, of 4 samples each."""
  got = requests_of([1, 6, 11, 6], [0, 0, 2, 2], [4, 2, 2, 2])
  np.testing.assert_array_equal(
      got.sample, [0, 1, 2, 3, 4, 5, 10, 11, 6, 7])


def test_a_wave_may_ask_for_nothing():
  got = requests_of([], [], [])
  assert got.prompt.shape == got.sample.shape == got.budget.shape == (0,)


def test_texts_leave_out_the_stop_token_only():
  got = rollout.decode(rollouts(
      [[2, 3, STOP], [STOP], [4] * 5, [2, 0, 9, STOP], [2]],
      [False, False, True, False, True]), TOKENIZER)
  assert got == ['ab', '', 'ccccc', 'a<0><9>', 'a']


def test_texts_ask_nothing_of_the_tokenizer_about_stopping():
  """One of transformers would spell the stop token out."""
  spell = types.SimpleNamespace(decode=lambda ids: '.'.join(map(str, ids)))
  got = rollout.decode(
      rollouts([[2, STOP], [2, STOP], [STOP]], [False, True, False]), spell)
  assert got == ['2', f'2.{STOP}', '']


def step_of(kinds, judged_here=True):
  """Returns what `Unrewarded.check` reads of a step; 'right' is valid."""
  verdicts = [Verdict(0.0, kind, kind == 'right', blame='f is bad.')
              for kind in kinds]
  return (
      types.SimpleNamespace(
          kind=kinds, verdicts=verdicts if judged_here else [],
          valid=np.array([v.valid for v in verdicts], bool)),
      types.SimpleNamespace(texts=['x'] * len(kinds)))


def test_a_verifier_that_fails_from_the_first_step_ends_the_run_there():
  with pytest.raises(VerifierError, match='^None of the 2 .*since f is bad'):
    rollout.Unrewarded().check(*step_of(['error'] * 2), 0)
  with pytest.raises(VerifierError, match='2 error.*other processes say why'):
    rollout.Unrewarded().check(*step_of(['error'] * 2, judged_here=False), 0)


@pytest.mark.parametrize('kinds, first', [
    (['error'] * 2, 4), (['skipped'] * 2, 0), (['timeout'], 0),
    (['error', 'skipped'], 0), (['own'], 0)])
def test_a_few_steps_without_any_reward_end_the_run(kinds, first):
  unrewarded = rollout.Unrewarded()
  said = [unrewarded.check(*step_of(kinds), first + i) for i in range(2)]
  assert f'step {first + 1} ' in said[0] and not said[1]
  assert f'({rewards.counts(kinds)})' in said[0]
  with pytest.raises(VerifierError, match='^3 times in a row.* f is bad'):
    unrewarded.check(*step_of(kinds), first + 2)


def test_steps_that_end_early_count_by_their_responses():
  unrewarded = rollout.Unrewarded(least=5)
  found = [unrewarded.check(*step_of(['error'] * 2), i) for i in range(1, 9)]
  assert [i for i, said in enumerate(found) if said] == [2]
  assert found[2].startswith(
      'None of the last 6 responses up to step 4 has a reward (6 error): see')
  with pytest.raises(VerifierError, match='^3 times in a row'):
    unrewarded.check(*step_of(['error']), 8)
  unrewarded.check(*step_of(['error'] * 4), 9)
  unrewarded.check(*step_of(['right']), 10)
  assert not unrewarded.check(*step_of(['error'] * 4), 11)
  # Those of a first step end the run, if all failed from the start.
  failing = rollout.Unrewarded(least=5)
  assert not failing.check(*step_of(['error'] * 4), 0)
  assert not failing.check(*step_of([]), 1)
  with pytest.raises(VerifierError, match='^None of the 2 .*since f is bad'):
    failing.check(*step_of(['error'] * 2), 2)
  later = rollout.Unrewarded(least=5)
  later.check(*step_of(['right']), 0)
  assert later.check(*step_of(['error'] * 5), 1)
  mixed = rollout.Unrewarded(least=5)
  for i, kind in enumerate(['own', 'error', 'error']):
    mixed.check(*step_of([kind] * 2), i)


def test_one_reward_makes_the_steps_before_it_forgotten():
  unrewarded, step = rollout.Unrewarded(), 1
  for kinds in [['error']] * 2 + [['error', 'right']] + [['skipped']] * 2:
    unrewarded.check(*step_of(kinds), step)
  assert not unrewarded.check(*step_of([]), step)  # a wave may ask for nothing
  with pytest.raises(VerifierError):
    unrewarded.check(*step_of(['skipped']), step)
