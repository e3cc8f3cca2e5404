"""Short runs with any curriculum and selection, on shared programs."""

import functools
from typing import Any
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import train
from jaxrl_llm.learner.score import Scores
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, choices
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.types import Rollouts
from tests.helpers import tiny

# Steps long enough for ratios, and bounds narrow enough for clips.
FIELDS = dict(
    optimizer__learning_rate=.01, loss__clip_low=.05, loss__clip_high=.05)


# With k = n most groups have no signal; without a warm-up the bandit's scores
# count from the first round on.
_OWN = {'pkpo': dict(pkpo__k=2), 'speed': dict(speed__n_init=2),
        'cbs': dict(cbs__warmup=0, cbs__epsilon=.2),
        **{name: {f'{name}__rounds': 2}
           for name in ('random', 'newest', 'replay')}}

# All methods in one run; k changes from step to step.
ALL_FOUR = dict(
    curriculum='speed', curriculum_prompts=10, advantage='pkpo',
    pkpo__k='0:2,4:1,6:3,8:1', selection='cbs', off_policy='jackpot',
    actor__lag=1, sampling__weights='int8', learner__updates=2)


def by_text(problem, text, truncated):
  """Gives 0, 0.5 or 1 by the text, but 0 to all answers to some problems.

  Some verifications fail.
  """
  digest = zlib.crc32(text.encode())
  if (problem.id + digest) % 11 == 0:
    raise RuntimeError('no sandbox')
  return Verdict(0.0 if problem.id % 3 == 0 else digest % 3 / 2, 'judged')


def equal(problem, text, truncated):
  """Gives every response the same reward."""
  return Verdict(1.0, 'right')


def built(**fields: Any) -> build.Parts:
  """Builds the parts of a run, which compile programs of their own."""
  own = {}
  for name in ('curriculum', 'selection', 'advantage'):
    own.update(_OWN.get(fields.get(name), {}))
  return build.parts(tiny.load(**{**FIELDS, **own, **fields}))


@functools.cache
def _programs(stale, off_policy='none'):
  """Returns the parts that own the programs of all runs of one kind."""
  return built(
      selection='replay' if stale else 'all_rows', off_policy=off_policy)


# By the sizes of their requests, and by what they record.
_SAMPLERS: dict[tuple[Any, ...], Any] = {}


_advantages = functools.cache(
    lambda name, fields: choices.advantages(
        tiny.load(advantage=name, **{**_OWN.get(name, {}), **dict(fields)})))


def parts_of(**fields: Any) -> build.Parts:
  """Builds the parts of a run; equal programs are compiled once.

  The learner is the same in all runs whose updates have the same outputs.
  """
  parts = built(**fields)
  off_policy = parts.config.off_policy
  shared = _programs(parts.stages.selection.stale, off_policy)
  most = parts.stages.curriculum
  return tiny.changed(
      parts, learner=shared.programs.learner,
      policy=_programs(False).programs.policy,
      sample=_SAMPLERS.setdefault(
          (most.max_prompts, most.max_requests, most.min_count, off_policy),
          parts.sample),
      advantages=_advantages(parts.config.advantage, tuple(
          (name, fields[name]) for name in fields if name == 'pkpo__k')))


def _sample(params, prompts, requests, key, sampling, policy_step):
  """Draws tokens that depend on the weights, the step and the request."""
  state, own = jax.device_get((params['embed'], jax.random.key_data(key)))
  digest = zlib.crc32(np.asarray(state).tobytes())
  count, width = len(requests.prompt), int(requests.budget.max())
  tokens = np.zeros((count, width), np.int32)
  length = np.zeros(count, np.int32)
  logprobs = np.zeros((count, width), np.float32)
  ids = np.asarray(prompts.problem_id)[requests.prompt]
  for row, name in enumerate(zip(ids, requests.sample)):
    rng = np.random.default_rng((digest, *own, *map(int, name)))
    n = length[row] = rng.integers(1, width + 1)
    tokens[row, :n] = rng.integers(1, 10, n)
    logprobs[row, :n] = -rng.exponential(size=n)
  return Rollouts(
      tokens=tokens, length=length, logprobs=logprobs, entropy=-logprobs,
      truncated=length == width, problem_id=ids, sample=requests.sample,
      policy_step=np.full(count, policy_step, np.int32)), dict(
          steps=width, busy=int(length.sum()), slots=width * count)


def _logprobs(params, batch):
  """Returns numbers [B, T] that depend on the parameters and each token."""
  width = batch.mask.shape[1]
  at = jnp.minimum(
      batch.prompt_length[:, None] + jnp.arange(width),
      batch.tokens.shape[1] - 1)
  token = jnp.take_along_axis(batch.tokens, at, 1)
  total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))
  return jnp.where(
      jnp.arange(width) < batch.response_length[:, None],
      jnp.sin(total + token) - 2, 0.0)


def score(params, batch, plan, loss, frozen=None):
  """Stands for `LearnerPrograms.score`; a plan has no effect."""
  del plan, loss, frozen
  return _score(params, batch)


@jax.jit
def _score(params, batch):
  return Scores(_logprobs(params['policy'], batch))


def update(state, batch, plan, loss, frozen=None, others=None):
  """Stands for `LearnerPrograms.update`: parameters move by the rows' facts."""
  del plan, loss, frozen, others
  return _update(state, batch)


@functools.partial(jax.jit, donate_argnums=0)
def _update(state, batch):
  mask = batch.mask & (
      jnp.arange(batch.mask.shape[1]) < batch.response_length[:, None])
  state = state['policy']
  new = _logprobs(state.params, batch)
  old = new if batch.old_logprobs is None else batch.old_logprobs
  mean = lambda x: jnp.sum(
      jnp.where(mask, x, 0), -1) / jnp.maximum(mask.sum(-1), 1)
  loss = jnp.sum(mean(
      jnp.exp(new - old) * jnp.where(mask, batch.advantages[:, None], 0)))
  zero = jnp.zeros(())
  new_state = state.replace(
      step=state.step + 1, params=jax.tree.map(
          lambda x: x + 1e-3 * jnp.sin(loss + x), state.params))
  return {'policy': new_state}, dict(
      loss=loss, entropy=mean(-new).mean(), tokens=1.0 * mask.sum(),
      processed=1.0 * mask.sum(),
      skipped=zero, skipped_in_row=zero,
      rows=dict(entropy=mean(-new), clip_share=mean(new < old - .05)))


def stubbed(**fields: Any) -> build.Parts:
  """Builds the parts of a run with stubs of the sampler and of the learner.

  What they compute depends on the weights, keys and rows, but on no model.
  """
  parts = built(**fields)
  return tiny.changed(
      parts, sample=_sample, learner=parts.programs.learner._replace(
          score=score, update=update),
      policy=_programs(False).programs.policy,
      advantages=_advantages(parts.config.advantage, ()))


def judged(parts: build.Parts, verify: Any = by_text) -> build.Parts:
  """Replaces the verifier."""
  return tiny.watch(parts, verify).parts


def waves(
    parts: build.Parts, state: Any, fixed: Any, count: int,
) -> tuple[list[Any], list[dict[str, float]], Any]:
  """Takes steps.

  Returns:
    The state after each step, on the host; their rows of metrics; and the last
    state, from which to go on.
  """
  states, rows = [], []
  for _ in range(count):
    with jax.transfer_guard('disallow'):
      state, report = train.take_step(parts, state, fixed, timing.Timer())
    states.append(jax.device_get(state))
    rows.append(report.row)
  return states, rows, state
