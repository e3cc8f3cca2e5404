"""Tests of trajectories: waves against one trajectory at a time."""

import types

import numpy as np
import pytest

from jaxrl_llm import rewards, tasks
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.environments import Limits, Reply
from jaxrl_llm.loop import rollout, turns
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.mesh import make_mesh
from jaxrl_llm.types import Rollouts

ALPHABET = 'abcdefgh'
TOKENIZER = CharTokenizer(ALPHABET)
STOP, FIRST = TOKENIZER.stop_ids[0], 2


@pytest.fixture(scope='module')
def processes():
  return processes_lib.make_processes(make_mesh(1, 1, 1))


def parts(env, columns, processes):
  """Stands for the parts of a run whose task has this environment."""
  return types.SimpleNamespace(
      key=None, processes=processes,
      task=types.SimpleNamespace(turns=env, tokenizer=TOKENIZER),
      stages=types.SimpleNamespace(settings=types.SimpleNamespace(
          seed=5, max_response=columns)))


def drawn(problem, sample, before):
  """The next token of a model that looks at all tokens before it."""
  rng = np.random.default_rng((problem, sample, *before))
  return STOP if rng.random() < .3 else int(rng.integers(FIRST, FIRST + 8))


def log_prob(token, column):
  return -1.0 - token / 16 - column / 64  # exact in float32


def sample(params, prompts, requests, key, sampling, policy_step, shard=None):
  """Stands for `rollout.host_sampler`; continues rows as it does."""
  rows, columns = requests.tokens.shape
  assert (requests.birth == 3).all()
  made = dict(
      tokens=np.zeros((rows, columns), np.int32),
      logprobs=np.zeros((rows, columns), np.float32))
  length, truncated = requests.done.copy(), np.ones(rows, bool)
  for row in range(rows):
    have = requests.tokens[row, :requests.done[row]].tolist()
    problem = int(prompts.problem_id[requests.prompt[row]])
    while len(have) < requests.budget[row] and truncated[row]:
      token = drawn(problem, int(requests.sample[row]), have)
      made['tokens'][row, len(have)] = token
      made['logprobs'][row, len(have)] = log_prob(token, len(have))
      have.append(token)
      truncated[row] = token != STOP
    length[row] = len(have)
  return Rollouts(
      length=length, truncated=truncated, entropy=-made['logprobs'],
      problem_id=None, sample=None, policy_step=None, **made), dict(
          steps=1, busy=rows, slots=2 * rows)


def answer(problem, seed, texts):
  """What an environment says: a pure function of the whole trajectory."""
  rng = np.random.default_rng((seed, len(texts), *map(ord, ''.join(texts))))
  kind = rng.choice(['turn'] * 18 + ['timeout', 'error'])
  if kind != 'turn':
    return Reply(None, 0.0, str(kind), 'no answer')
  said = ''.join(rng.choice([*ALPHABET], rng.integers(0, 4)))
  return Reply(None if rng.random() < .3 else said, float(rng.integers(3)) / 2)


def test_a_sum_of_rewards_that_is_too_large_is_an_error():
  said = turns._Trajectory([{'reward': 6e14}], reply=Reply(None, 6e14))
  assert said.verdict(True).kind == 'correct'
  said.turns = 2 * said.turns
  verdict = said.verdict(True)
  assert verdict.kind == 'error' and not verdict.valid
  assert 'the reward is 1.2e+15' in verdict.detail


class Env:
  """Stands for `environments.turns.Turns`, and notes what it was asked."""

  def __init__(self, limits):
    self.limits, self.asked, self.rewards = limits, [], True

  def submit(self, problem, seed, texts, observations):
    self.asked.append((problem.id, seed, *texts))
    for number, said in enumerate(observations):
      assert answer(problem.info, seed, texts[:number + 1]).observation == said
    return lambda: answer(problem.info, seed, texts)

  def follow(self, tokenizer, observation, turn):
    assert turn[-1] == STOP and STOP not in turn[:-1]
    return len(turn), tokenizer.encode(observation)[:self.limits.observation]


def alone(problem, number, limits, columns, budget):
  """One trajectory in plain Python."""
  tokens, own, log_probs, texts, starts, reward = [], [], [], [], [], 0.0
  seed = turns.seed_of(5, problem.id, number)
  while True:
    start = len(tokens)
    starts.append(start)
    stop = min(budget, start + (limits.turn or columns))
    while len(tokens) < stop and STOP not in tokens[start:]:
      token = drawn(problem.id, number, tokens)
      log_probs.append(log_prob(token, len(tokens)))
      tokens.append(token)
      own.append(True)
    cut = tokens[-1] != STOP
    texts.append(''.join(
        ALPHABET[token - FIRST] for token in tokens[start:] if token != STOP))
    reply = answer(problem.info, seed, texts)
    if reply.kind != 'turn':
      return tokens, own, log_probs, (texts, starts), None, cut, reply.kind
    reward += reply.reward
    if reply.observation is None or cut:
      break
    added = TOKENIZER.encode(reply.observation)[:limits.observation]
    if len(texts) == limits.turns or len(tokens) + len(added) >= budget:
      cut = True
      break
    tokens += added
    own += [False] * len(added)
    log_probs += [0.0] * len(added)
  kind = 'correct' if reward >= 1 else 'partial' if reward else 'wrong'
  return tokens, own, log_probs, (texts, starts), reward, cut, kind


@pytest.mark.parametrize('waves', [
    40, pytest.param(1000, marks=pytest.mark.slow)])
def test_waves_are_trajectories_one_at_a_time(waves, processes):
  rng = np.random.default_rng(0)
  turns_seen = 0
  for wave in range(waves):
    columns = int(rng.integers(3, 17))
    limits = Limits(int(rng.integers(1, 6)), rng.choice([None, 2, 5]), 2)
    problems = [
        tasks.Problem(int(rng.integers(99)), 'a' * int(rng.integers(1, 4)), '')
        for _ in range(int(rng.integers(1, 4)))]
    prompt = np.repeat(np.arange(len(problems)), 3)
    number = np.tile(np.arange(3), len(problems)) + wave
    call = rollout.SampleCall(
        problems, rollout.encode(problems, TOKENIZER, 3),
        rollout.requests(prompt, number, columns))
    env = Env(limits)
    responses = turns.play(
        parts(env, columns, processes), call, turns.WaveSampling(
            sample, None, None, 3, int(rng.integers(1, 6)), 7))
    judged = rollout.start_judging(
        types.SimpleNamespace(verify=None), responses, processes)()
    made, played = responses.rollouts, responses.played
    for row, (p, n) in enumerate(zip(prompt, number.tolist())):
      tokens, own, log_probs, (texts, starts), reward, cut, kind = alone(
          problems[p], n, limits, columns, columns)
      length = len(tokens)
      turns_seen = max(turns_seen, len(texts))
      assert made.tokens[row].tolist() == tokens + [0] * (columns - length)
      assert made.generated[row].tolist() == own + [False] * (columns - length)
      assert made.logprobs[row, :length].tolist() == log_probs
      assert (judged.length[row], played.count[row]) == (length, len(texts))
      assert (judged.generated[row], judged.truncated[row]) == (sum(own), cut)
      assert [t['text'] for t in played.turns[row]] == texts
      assert played.starts[row] == starts
      assert judged.kind[row] == kind
      np.testing.assert_equal(
          judged.reward[row], np.nan if reward is None else reward)
      # The mean of as many exact numbers.
      want = -np.mean([p for p, mine in zip(log_probs, own) if mine])
      np.testing.assert_allclose(judged.entropy[row], want, rtol=1e-6)
    # Every turn is stepped once.
    assert len(env.asked) == played.count.sum()
    assert (made.policy_step == 7).all()
  assert turns_seen >= 4


def test_one_part_is_written_while_the_environment_answers_the_other(
    processes):
  told = []

  def noted(params, prompts, requests, *args, **keywords):
    told.append([*map(int, requests.sample)])
    return sample(params, prompts, requests, *args, **keywords)

  class Noted(Env):

    def submit(self, problem, seed, texts, observations):
      wait = super().submit(problem, seed, texts, observations)
      return lambda: told.append('answer') or wait()

  problem = tasks.Problem(3, 'a', '')
  call = rollout.SampleCall(
      [problem], rollout.encode([problem], TOKENIZER, 3),
      rollout.requests(np.zeros(8, int), np.arange(8), 40))
  # 8 rows fill 4 slots twice; 7 do not, and wait.
  for slots, first in (
      (4, [[0, 1, 2, 3], [4, 5, 6, 7], *['answer'] * 4]),
      (5, [[*range(8)], *['answer'] * 8])):
    told.clear()
    turns.play(
        parts(Noted(Limits(3, 4, 2)), 40, processes), call,
        turns.WaveSampling(noted, None, None, 3, slots))
    assert told[:len(first)] == first
    # From the first part with fewer rows than slots on, there is one.
    calls = [{*rows} for rows in told if rows != 'answer']
    few = [len(rows) < slots for rows in calls].index(True)
    assert all(after <= rows for rows, after in zip(
        calls[few:], calls[few + 1:]))


def test_an_environment_that_changes_its_mind_ends_the_run(processes):
  def fail():
    raise rewards.VerifierError('it differs')

  problem = tasks.Problem(1, 'a', '')
  call = rollout.SampleCall(
      [problem], rollout.encode([problem], TOKENIZER, 3),
      rollout.requests(np.array([0]), np.array([0]), 4))
  env = types.SimpleNamespace(
      limits=Limits(2, None, 2), submit=lambda *args: fail)
  with pytest.raises(rewards.VerifierError, match='it differs'):
    turns.play(
        parts(env, 4, processes), call,
        turns.WaveSampling(sample, None, None, 3, 4))
