"""Supervised first phase: next-token likelihood on the task's demonstrations.

RL needs a policy that is right now and then. A randomly initialised model gets
there on demonstrations. The result is cached under a hash of everything it
depends on, so that a sweep over RL settings pays for it once.
"""

import contextlib
from typing import Any, Callable, NamedTuple, Sequence
import zlib

from absl import logging
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
from safetensors import safe_open, SafetensorError
from safetensors.numpy import save_file

from jaxrl_llm import checkpoint, phases, plugs, sharding
from jaxrl_llm import config as config_lib
from jaxrl_llm.host import batches, build, choices, rollout
from jaxrl_llm.host import programs as programs_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.storage import paths
from jaxrl_llm.types import LearnerBatch, RolloutTokens, Stopped

_SHOWN = 64  # demonstrations in the name of a warm start

Report = Callable[[int, dict[str, Any]], None]


def demonstrations(
    task: Any, *, seed: int, start: int, count: int, max_prompt: int,
    max_response: int) -> LearnerBatch:
  """Makes rows of the demonstrations start to start + count.

  Args:
    task: it has `demonstration(index, seed=)` -> (problem, response).
    seed: fixes the sequence of demonstrations.
    start: number of the first one.
    count: B.
    max_prompt: L.
    max_response: T.

  Returns:
    LearnerBatch with advantages of 1, the weights of rows in 'likelihood'.

  Raises:
    ValueError: a demonstration does not fit into T tokens.
  """
  pairs = [task.demonstration(start + i, seed=seed) for i in range(count)]
  prompts = rollout.encode([p for p, _ in pairs], task.tokenizer, max_prompt)
  tokens = np.zeros((count, max_response), np.int32)
  wrote = np.zeros((count, max_response), bool)
  length = np.zeros(count, np.int32)
  for row, (problem, response) in enumerate(pairs):
    ids, own = _encoded(task, response)
    if len(ids) > max_response:
      raise ValueError(
          f'The demonstration {response!r} of problem {problem.id} has '
          f'{len(ids)} tokens with its stop token, more than max_response='
          f'{max_response}: raise config.max_response.')
    tokens[row, :len(ids)], wrote[row, :len(ids)] = ids, own
    length[row] = len(ids)
  return batches.learner_batch(
      RolloutTokens(
          prompt=prompts.tokens, prompt_length=prompts.length, response=tokens,
          length=length,
          behaviour_logprobs=np.zeros(tokens.shape, np.float32),
          generated=wrote),
      np.arange(count), np.ones(count), np.ones(count, bool))


def _encoded(
    task: Any, response: str | Sequence[tuple[str, str]],
) -> tuple[list[int], list[bool]]:
  """Returns the tokens of a demonstration, and which the model is to write."""
  tokenizer, ids, own = task.tokenizer, [], []
  turns = [(response, '')] if isinstance(response, str) else response
  for text, observation in turns:
    turn = [*tokenizer.encode(text), tokenizer.stop_ids[0]]
    kept, after = task.turns.follow(tokenizer, observation, turn) if (
        observation) else (len(turn), [])
    ids += [*turn[:kept], *after]
    own += [True] * kept + [False] * len(after)
  return ids, own


def run(parts: build.Parts, report: Report) -> Any:
  """Trains the whole model on the task's demonstrations.

  If it is stopped, it is saved in the workdir, and goes on from there.

  Args:
    parts: task and programs; `config.warm_start` has the hyperparameters.
    report: (steps done, metrics) -> None, called every 20 steps.

  Returns:
    Parameters in the training layout.

  Raises:
    ValueError: the task has no demonstrations, one is too long, or the mesh
      does not divide the batch.
    Stopped: a process was asked to stop.
  """
  config, warm = parts.config, parts.config.warm_start
  if not hasattr(parts.task, 'demonstration'):
    raise ValueError(
        f'The task {config.task.name} has no demonstrations: set '
        'config.warm_start.steps=0.')
  programs = parts.programs
  shards = sharding.data_shards(programs.learner_mesh)
  if warm.batch % shards:
    of = sharding.learner_shards(programs.mesh, programs.learner_mesh)
    raise ValueError(
        f'warm_start.batch={warm.batch} does not divide over {of}: use a '
        f'multiple of {shards}.')
  learner = learner_lib.make(
      programs.model,
      choices.learner_config(
          config, samples=1, objective='likelihood', aggregation='token_mean',
          importance='none', rejection=None, actor=None),
      optimizer_lib.make(optimizer_lib.OptimizerConfig(
          learning_rate=warm.learning_rate, steps=warm.steps,
          schedule='cosine', warmup_steps=warm.steps // 20, b2=0.99,
          weight_decay=0.1)),
      mesh=programs.learner_mesh)
  loss = parts.replicate(choices.supervised_params(config))
  state, first = learner.init(_start(parts)), 0
  unfinished = paths.place(config.workdir) / f'warm_start-{_name(parts)}'
  channel = parts.processes.channel
  restored = checkpoint.restore(unfinished, state, channel=channel)
  if restored:
    first, state = restored.step, restored.state
  losses = []  # of the steps that the devices may not have done yet
  with phases.phase('warm start', warm.steps, done=first) as phase:
    for step in range(first, warm.steps):
      channel.gather()
      if channel.stopping:
        _interrupt(unfinished, parts, step, state)
      batch = demonstrations(
          parts.task, seed=config.seed, start=step * warm.batch,
          count=warm.batch, max_prompt=config.max_prompt,
          max_response=config.max_response)
      plan = parts.replicate(learner.plan(
          np.arange(warm.batch), batch.prompt_length, batch.response_length))
      state, metrics = learner.update(
          state, parts.shard_rows(batch), plan, loss)
      losses.append(metrics['loss'])
      if (step + 1) % 20 == 0 or step + 1 == warm.steps:
        for loss_of_step in losses:
          jax.block_until_ready(loss_of_step)
          phase.count()
        losses = []
        report(step + 1, jax.device_get(metrics))
  if channel.first:
    paths.remove(unfinished)
  return state.params


def _interrupt(
    folder: paths.Path, parts: build.Parts, step: int,
    state: Any) -> None:
  """Saves a warm start, and raises Stopped."""
  channel = parts.processes.channel
  with contextlib.closing(checkpoint.Checkpointer(
      folder, {}, keep=1, channel=channel)) as saver:
    saver.save(step, state, {})
    saver.check(step)
  raise Stopped(
      f'Stopped after step {step} of the warm start, which is saved; the same '
      'command goes on.')


def _start(parts: build.Parts) -> Any:
  """Makes the parameters before any training."""
  return parts.programs.policy.init(
      processes_lib.key(parts.config.seed, parts.programs.learner_mesh))


class Start(NamedTuple):
  """Parameters that RL starts from.

  Attributes:
    params: parameters that are trained; None if they are not needed.
    frozen: parameters that are not trained; None if all are.
    anchor: parameters of the KL penalty's frozen model, in the structure of
      `params`; None without a penalty.
  """
  params: Any
  frozen: Any
  anchor: Any


def start(parts: build.Parts, report: Report, resumed: bool) -> Start:
  """Makes the parameters that RL starts from, or reads them from the cache.

  Args:
    parts: task, programs and config.
    report: (steps done, metrics) -> None, called during a warm start.
    resumed: the trained parameters come from a checkpoint, so that only
      `frozen` and `anchor` are needed.

  Raises:
    ValueError: there is no demonstration, or one does not fit.
    OSError: the weights that LoRA freezes could not be written.
  """
  config, channel = parts.config, parts.processes.channel
  penalty = programs_lib.needs_anchor(config)
  if resumed and not (penalty or config.lora.rank):
    return Start(None, None, None)
  if config.lora.rank and config.warm_start.steps:
    # LoRA needs the very weights that it was trained with: made again on
    # another mesh, they would differ in their last bits.
    path = base_file(_config(parts))
    whole = load(path, parts.programs.policy.shapes, channel)
    if whole is None:
      whole = parameters(parts, report)
      save(path, whole, channel)
      if channel.first and not path.exists():
        raise OSError(
            f'{path}, the weights that LoRA is trained with, could not be '
            'written: make room, and run the same command again.')
    whole = processes_lib.put(whole, parts.param_shardings())
  else:
    whole = parameters(parts, report)
  # Steps count from 0 and evaluations have 1 << 30: a key of its own, so that
  # warm starts do not depend on LoRA.
  key = parts.step_key(parts.replicate(np.uint32((1 << 30) + 1)))
  params, frozen = parts.programs.policy.split(whole, key)
  if not penalty:
    anchor = None
  elif frozen is None:
    anchor = jax.tree.map(jnp.copy, params)
  else:
    anchor = {'layers': {}}  # the frozen model without adapters
  return Start(params, frozen, anchor)


def parameters(parts: build.Parts, report: Report) -> Any:
  """Makes the whole model's parameters that RL starts from.

  If `warm_start.steps` is 0 they are random, or those of `model.hf`; else they
  are warm-started, or read from the cache.

  Args:
    parts: task, programs and config.
    report: (steps done, metrics) -> None, called during a warm start.

  Returns:
    Parameters in the layout of `policy.Policy.init`.
  """
  warm = parts.config.warm_start
  if not warm.steps:
    return _start(parts)
  if warm.cache is None:
    return run(parts, report)
  path, channel = cache_file(parts), parts.processes.channel
  params = load(path, parts.programs.policy.shapes, channel)
  if params is None:
    params = run(parts, report)
    save(path, params, channel)
  return processes_lib.put(params, parts.param_shardings())


def _config(parts: build.Parts) -> ConfigDict:
  """Returns the config that a warm start depends on.

  It does not have the lengths of the run's prompts, so that runs with other
  problems share their warm start.
  """
  config = parts.user_config.copy_and_resolve_references()
  for name in 'tokens_per_microbatch', 'remat':
    config.learner[name] = parts.config.learner[name]
  return config


def base_file(config: ConfigDict) -> paths.Path:
  """Returns the file of the warm-started weights that a LoRA run freezes."""
  # Not ROUNDING: an evaluation may have other lengths than the run.
  name = config_lib.fingerprint(
      config_lib.affecting(config, config_lib.WARM_START))
  return paths.place(config.workdir) / f'base-{name}.safetensors'


def cache_file(parts: build.Parts) -> paths.Path:
  """Returns where the cache keeps the warm start of these parts."""
  folder = paths.place(parts.config.warm_start.cache)
  return folder / f'{_name(parts)}.safetensors'


def _name(parts: build.Parts) -> str:
  """Returns a name of all that a warm start depends on."""
  fields = config_lib.fingerprint(config_lib.affecting(
      _config(parts), config_lib.WARM_START, config_lib.ROUNDING))
  contents = [
      digest for of, digest in parts.contents.items() if of == 'model']
  task, seed = parts.task, parts.config.seed
  if not plugs.plug('task.name', parts.config.task.name).packaged and hasattr(
      task, 'demonstration'):
    # Some demonstrations stand for the user's code, which no config has.
    contents.append(zlib.crc32(repr([
        task.demonstration(i, seed=seed) for i in range(_SHOWN)]).encode()))
  # The mesh as it is: in the config one of its axes may be -1.
  return '-'.join(map(str, (
      fields, *parts.programs.learner_mesh.shape.values(), *contents)))


def _names(tree: Any) -> list[str]:
  return [
      jax.tree_util.keystr(keys, simple=True, separator='/')
      for keys, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _checksum(leaves: list[np.ndarray]) -> str:
  value = 0
  for leaf in leaves:
    value = zlib.crc32(np.ascontiguousarray(leaf), value)
  return str(value)


def save(path: paths.Path, params: Any, channel: Any = None) -> None:
  """Writes parameters to one file, whole or not at all.

  If they cannot be written, it warns: the run does not need the file.

  Args:
    path: the file.
    params: the parameters.
    channel: `processes.Channel` between the processes of the run, which all
      call this; the first one writes.
  """
  leaves = processes_lib.whole(jax.tree.leaves(params))
  if channel is not None and not channel.first:
    return
  try:
    with paths.new_file(path) as file:
      save_file(dict(zip(_names(params), leaves)), file,
                metadata={'crc32': _checksum(leaves)})
  except (OSError, SafetensorError) as error:
    logging.warning(
        'The warm start could not be kept in %s (%s): the run goes on.', path,
        error)


def load(path: paths.Path, shapes: Any, channel: Any = None) -> Any:
  """Reads parameters of these shapes; None if there is no file.

  A damaged file counts as none, with a warning.

  Args:
    path: the file.
    shapes: tree of shapes.
    channel: as for `save`; the parameters count only if all processes have the
      same.
  """
  params = _read(path, shapes)
  if channel is not None and channel.count > 1:
    sums = channel.gather(params and _checksum(jax.tree.leaves(params)))
    if len({*sums}) > 1:
      return None
  return params


def _read(path: paths.Path, shapes: Any) -> Any:
  """Reads the file of `load` in this process."""
  try:
    with paths.local(path) as copy, safe_open(copy, 'numpy') as file:
      leaves = [file.get_tensor(name) for name in _names(shapes)]
      checksum = (file.metadata() or {}).get('crc32')
    if checksum != _checksum(leaves):
      raise OSError('its checksum is another')
  except FileNotFoundError:
    return None
  except (OSError, SafetensorError) as error:
    logging.warning(
        'The warm start in %s is damaged (%s): making it again.', path, error)
    return None
  return jax.tree.structure(shapes).unflatten(leaves)
