"""Tests of prompts, requests and texts against plain lists."""

import types

import numpy as np
import pytest

from jaxrl_llm.host import rollout
from jaxrl_llm.rewards import Verdict, VerifierError
from jaxrl_llm.tasks import Problem
from jaxrl_llm.tokenizer import CharTokenizer
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


@pytest.mark.parametrize('kinds, told', [
    (['skipped'] * 2, 'has a reward, since f is bad'),
    (['error'] * 2, 'has a reward, since f is bad'),
    (['skipped', 'wrong'], None), (['timeout'] * 2, None), ([], None)])
def test_a_step_without_any_reward(kinds, told):
  judged = types.SimpleNamespace(kind=kinds, verdicts=[
      Verdict(0.0, kind, False, blame='f is bad.') for kind in kinds])
  responses = types.SimpleNamespace(texts=['x'] * len(kinds))
  if told is None:
    rollout.check(judged, responses)
    return
  with pytest.raises(VerifierError, match=told):
    rollout.check(judged, responses)
  with pytest.raises(VerifierError, match='all 2 .* other processes say how'):
    rollout.check(  # of a process that judged none of them
        types.SimpleNamespace(kind=kinds, verdicts=[]), responses)
