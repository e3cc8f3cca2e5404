"""A run that is small enough for a test; also a config file.

The model has 8,000 parameters and learns Countdown with two numbers. Every
program compiles in seconds, and a step takes milliseconds.
"""

import pathlib
import types
from typing import Any, Callable, NamedTuple

import jax
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.base import phases
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.learner.options import FROZEN
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.prepare import build, choices, describe, stages
from jaxrl_llm.prepare import programs as programs_lib
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.types import LearnerBatch, Rollouts

FILE = str(pathlib.Path(__file__))
# Fields of an actor of a quarter of the policy's size.
ACTOR = dict(
    actor__model__preset='tiny', actor__model__width=16, actor__model__heads=2,
    actor__model__layers=1, actor__model__kv_heads=1, actor__model__head_dim=8,
    actor__model__mlp_width=16)


def get_config(arg=None):
  """Returns the config of a small run."""
  c = config_lib.base()
  c.steps = 4
  c.prompts_per_step = c.samples_per_prompt = 4
  c.max_prompt, c.max_response = 9, 10
  c.task.update(
      name='countdown', kinds=('two',), train=(40,), heldout=(6,),
      solved=(1.0,))
  c.model.update(
      width=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_width=32)
  c.optimizer.learning_rate = 1e-3
  c.sampling.slots = 8
  # Each is another compile.
  c.sampling.buckets = ()
  c.learner.tokens_per_microbatch, c.learner.remat = 512, 'none'
  c.sft.update(batch=8, cache=None)
  c.eval.update(every=2, samples=4, k=(1, 4))
  c.checkpoint.every = 2
  c.log.update(display=False, samples=2)
  return c


def load(workdir=None, **fields):
  """Returns the config above with changed fields, named `learner__updates`."""
  given = {'workdir': workdir, **fields}
  config = config_lib.load(FILE, {
      name.replace('__', '.'):
          str(value) if isinstance(value, pathlib.Path) else value
      for name, value in given.items()})
  stages.validate(config)
  return config


def by_length(problem, text, truncated):
  """Gives a reward that an untrained model sometimes gets."""
  return Verdict(float(len(text) % 2), 'odd' if len(text) % 2 else 'even')


class Watched(NamedTuple):
  """Parts of a run that record their data as NumPy arrays.

  Attributes:
    parts: wrapped parts, to be used instead of the original ones.
    rollouts: rollouts of each call of the sampler.
    batches: batch of each update.
  """
  parts: build.Parts
  rollouts: list[Rollouts]
  batches: list[LearnerBatch]


def watch(
    parts: build.Parts, verify: Callable[..., Verdict] | None = None,
    **task: Any) -> Watched:
  """Wraps parts, and optionally replaces the verifier or parts of the task."""
  rollouts, batches = [], []

  def sample(*args, **kwargs):
    out, use = parts.sample(*args, **kwargs)
    rollouts.append(out)
    return out, use

  def sample_policy(*args, **kwargs):
    out, use = parts.sample_policy(*args, **kwargs)
    rollouts.append(out)
    return out, use

  def update(learner, batch, *others):
    batches.append(jax.device_get(batch))
    return parts.programs.learner.update(learner, batch, *others)

  names = ('tokenizer', 'train', 'heldout', 'demonstration', 'verify')
  watched = types.SimpleNamespace(
      **{name: getattr(parts.task, name) for name in names})
  vars(watched).update(task, verify=verify or parts.task.verify)
  return Watched(
      changed(
          parts, task=watched, sample=sample, sample_policy=sample_policy,
          learner=parts.programs.learner._replace(update=update)),
      rollouts, batches)


def changed(parts: build.Parts, **fields: Any) -> build.Parts:
  """Replaces fields of parts or of their programs; stages fit the new ones."""
  ours = {k: v for k, v in fields.items() if k in build.Parts._fields}
  theirs = {k: v for k, v in fields.items() if k not in ours}
  task = fields.get('task', parts.task)
  player = {name: theirs.pop(name) for name in programs_lib.Player._fields
            if name in theirs}
  players = parts.programs.players
  theirs['players'] = {
      **players, 'policy': players['policy']._replace(**player)}
  if 'policy' in player and 'actor' not in players:
    theirs['rollout_sampler'] = parts.programs.rollout_sampler._replace(
        weights=player['policy'].sampling(None))
  theirs.setdefault('stages', stages.make_stages(
      fields.get('config', parts.config), len(task.train)))
  ours.setdefault('user_config', fields.get('config', parts.user_config))
  return parts._replace(
      **{'programs': parts.programs._replace(**theirs), **ours})


def compiled() -> list[str]:
  """Yields a list that gets the name of every program that is compiled."""
  names = []

  def listen(event, seconds, fun_name=None, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      names.append(fun_name)

  jax.monitoring.register_event_duration_secs_listener(listen)
  return names


def compiled_by_step(patch: Any) -> tuple[list[str], list[int]]:
  """Yields the list of `compiled` and a list of its length after each step."""
  names, known = compiled(), []
  take_step = train.take_step

  def counted(*args):
    out = take_step(*args)
    known.append(len(names))
    return out

  patch.setattr(loop, 'take_step', counted)
  return names, known


def programs(names: list[str]) -> list[str]:
  """Returns the sorted names that are device programs of a run."""
  return sorted(name.replace('(_', '(') for name in names if any(
      part in name for part in (
          'generate', 'update', 'score', 'advantages', 'signal')))


def counts(patch: Any) -> list[tuple[str, int, int]]:
  """Yields a list of (name, done, total) at each count of a phase."""
  found, count = [], phases.Phase.count

  def counted(phase, *args):
    count(phase, *args)
    found.append((phase.name, phase.done, phase.total))

  patch.setattr(phases.Phase, 'count', counted)
  return found


def begin(parts: build.Parts):
  """Returns a run's initial state, its constants, and its sampling weights."""
  starts = {
      name: train.start_weights.start(
          describe.of_player(parts, name), lambda *_: None, resumed=False)
      for name in parts.programs.players}
  state = state_lib.init_state(parts, parts.programs.learner.init(
      {name: starts[name].params for name in parts.programs.learner.state}))
  fixed = Fixed(
      parts.sampling(), parts.replicate(choices.loss_params(parts.config)),
      starts['policy'].anchors,
      {name: start.frozen for name, start in starts.items()},
      **{name: starts[name].params for name in FROZEN if name in starts})
  return state, fixed, parts.programs.policy.to_sampling(
      state.learner.params, starts['policy'].frozen)


def same(a: Any, b: Any) -> bool:
  """Returns whether two trees of arrays are equal, bit by bit."""
  a, b = jax.device_get((a, b))
  return all(jax.tree.leaves(jax.tree.map(
      lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b)))
