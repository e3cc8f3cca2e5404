"""Short runs with any curriculum and selection, on shared programs."""

import functools
from typing import Any
import zlib

import jax

from jaxrl_llm import experiment, train
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.monitoring import timing
from jaxrl_llm.rewards import Verdict
from tests import tiny

# Steps long enough for ratios, and bounds narrow enough for clips.
FIELDS = dict(
    optimizer__learning_rate=.01, loss__clip_low=.05, loss__clip_high=.05)


# With k = n most groups have no signal; without a warm-up the bandit's scores
# count from the first round on.
_OWN = {'pkpo': dict(pkpo__k=2), 'speed': dict(speed__n_init=2),
        'cbs': dict(cbs__warmup=0, cbs__epsilon=.2),
        **dict.fromkeys(
            ('random', 'newest', 'replay'), dict(replay__rounds=2))}

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


def built(**fields: Any) -> experiment.Parts:
  """Builds the parts of a run, which compile programs of their own."""
  own = {}
  for name in ('curriculum', 'selection', 'advantage'):
    own.update(_OWN.get(fields.get(name), {}))
  return experiment.build(tiny.load(**{**FIELDS, **own, **fields}))


@functools.cache
def _programs(stale, off_policy='none'):
  """Returns the parts that own the programs of all runs of one kind."""
  return built(
      selection='replay' if stale else 'all_rows', off_policy=off_policy)


# By the sizes of their requests, and by what they record.
_SAMPLERS: dict[tuple[Any, ...], Any] = {}


_advantages = functools.cache(
    lambda name, fields: advantages_lib.make(
        tiny.load(advantage=name, **{**_OWN.get(name, {}), **dict(fields)})))


def parts_of(**fields: Any) -> experiment.Parts:
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


def judged(parts: experiment.Parts, verify: Any = by_text) -> experiment.Parts:
  """Replaces the verifier."""
  return tiny.watch(parts, verify).parts


def waves(
    parts: experiment.Parts, state: Any, fixed: Any, count: int,
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
