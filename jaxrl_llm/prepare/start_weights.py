"""Parameters that RL starts from, and the cache of supervised fine-tuning.

RL needs a policy that is right now and then. A randomly initialised model gets
there on demonstrations, others on the user's rows. The result is cached under a
hash of everything it depends on, so that a sweep over RL settings pays for it
once.
"""

from typing import Any, Callable, NamedTuple
import zlib

from absl import logging
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
from safetensors import safe_open, SafetensorError
from safetensors.numpy import save_file

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.config import plugs
from jaxrl_llm.prepare import build, describe, sft
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.storage import paths

_SHOWN = 64  # demonstrations in the name of a result
Report = sft.Report


def _start(parts: build.Parts) -> Any:
  """Makes the parameters before any training."""
  return parts.programs.policy.init(
      processes_lib.key(parts.config.seed, parts.programs.learner_mesh))


class Start(NamedTuple):
  """Parameters that RL starts from.

  Attributes:
    params: parameters that are trained; None if they are not needed.
    frozen: parameters that are not trained; None if all are.
    anchors: those of `parts.Fixed`: of the KL penalty's frozen model, in the
      structure of `params`; empty without a penalty.
  """
  params: Any
  frozen: Any
  anchors: dict[str, Any]


def start(
    parts: build.Parts, report: Report, resumed: bool, *,
    name: str = sft.FOLDER, alone: bool = False,
    evaluated: bool = False) -> Start:
  """Makes the parameters that RL starts from, or reads them from the cache.

  Args:
    parts: task, programs and config.
    report: (steps done, metrics) -> None, called by supervised fine-tuning.
    resumed: the trained parameters come from a checkpoint, so that only
      `frozen` and `anchors` are needed.
    name: folder of supervised fine-tuning in the workdir.
    alone: whether no RL follows: the cache is not read, and the folder stays.
    evaluated: whether they are only evaluated. The weights that a run with LoRA
      freezes are then read, if there are some, and never written.

  Raises:
    ValueError: a row is not valid, or does not fit.
    OSError: the weights that LoRA freezes could not be written.
  """
  config, channel = parts.config, parts.processes.channel
  # Of the policy alone: of other players, nothing reads one.
  penalty = name == sft.FOLDER and (
      'anchor_logprobs' in parts.stages.needs.columns)
  if resumed and not (penalty or config.lora.rank):
    return Start(None, None, {})
  adapters = config_lib.sft_of_lora(config)
  of_phase = dict(report=report, name=name, alone=alone)
  if config.lora.rank and config_lib.has_sft(config) and not (
      adapters or alone):
    # LoRA needs the very weights that it was trained with: made again on
    # another mesh, they would differ in their last bits.
    path = base_file(parts.user_config)
    whole = load(path, parts.programs.policy.shapes, channel) if (
        resumed or evaluated) else None
    if whole is None:
      whole = parameters(parts, **of_phase)
      if not evaluated:
        save(path, whole, channel)
      if channel.first and not (evaluated or path.exists()):
        raise OSError(
            f'{path}, the weights that LoRA is trained with, could not be '
            'written: make room, and run the same command again.')
    whole = processes_lib.put(whole, describe.param_shardings(parts))
  else:
    whole = _start(parts) if adapters else parameters(parts, **of_phase)
  # Steps count from 0 and evaluations have 1 << 30: a key of its own, so that
  # supervised fine-tuning does not depend on LoRA.
  key = parts.step_key(parts.replicate(np.uint32((1 << 30) + 1)))
  params, frozen = parts.programs.policy.split(whole, key)
  if adapters and (penalty or not resumed):
    adapted = params
    params = _tuned(parts, lambda: adapted, frozen, **of_phase)
  # The frozen model without adapters, or what is trained as it is now.
  anchor = {'layers': {}} if frozen is not None and not adapters else params
  return Start(params, frozen, {
      'anchor_logprobs': jax.tree.map(jnp.copy, anchor)} if penalty else {})


def parameters(
    parts: build.Parts, report: Report, name: str = sft.FOLDER,
    alone: bool = False) -> Any:
  """Makes the whole model's parameters that RL starts from.

  Without supervised fine-tuning they are random, or those of `model.hf`; else
  they are trained, or read from the cache.

  Args:
    parts: task, programs and config.
    report: (steps done, metrics) -> None, called by supervised fine-tuning.
    name, alone: see `start`.

  Returns:
    Parameters in the layout of `policy.Policy.init`.
  """
  if not config_lib.has_sft(parts.config):
    return _start(parts)
  return _tuned(parts, lambda: _start(parts), None, report, name, alone)


def _tuned(
    parts: build.Parts, begin: Callable[[], Any], frozen: Any, report: Report,
    name: str, alone: bool) -> Any:
  """Trains the parameters of `begin`, or reads the result from the cache."""
  config, channel = parts.config, parts.processes.channel
  data, policy = sft.load(parts), parts.programs.policy
  channel.agree({
      'the rows of SFT': data.digest, 'its steps': data.steps,
      }, 'between the processes')
  path = config.sft.cache and cache_file(parts, data.digest)
  if path and not alone:
    shapes = policy.shapes if frozen is None else policy.trained
    found = load(path, shapes, channel)
    if found is not None:
      return processes_lib.put(found, sharding.shardings(
          shapes, sharding.TRAIN_RULES, parts.programs.learner_mesh))
  params = sft.run(
      parts, data, begin(), frozen, report, name=name,
      keep=alone or bool(config.sft.path or config.sft.heldout))
  if path:
    save(path, params, channel)
  return params


def base_file(config: ConfigDict) -> paths.Path:
  """Returns the file of the fine-tuned weights that a LoRA run freezes."""
  # Not ROUNDING: an evaluation may have other lengths than the run.
  name = config_lib.fingerprint(config_lib.affecting(config, config_lib.SFT))
  return paths.place(config.workdir) / f'base-{name}.safetensors'


def cache_file(parts: build.Parts, rows: str = '') -> paths.Path:
  """Returns where the cache keeps the result of these parts.

  Args:
    parts: config, task and mesh.
    rows: `sft_data.Data.digest`.
  """
  config, task, seed = parts.config, parts.task, parts.config.seed
  # It does not have the lengths of the run's prompts, so that runs with other
  # problems share the result.
  contents = [config_lib.fingerprint(sft.settings(parts, config_lib.ROUNDING))]
  # The mesh as it is: in the config one of its axes may be -1.
  contents += parts.programs.learner_mesh.shape.values()
  contents += [digest for of, digest in parts.contents.items() if of == 'model']
  if not plugs.plug('task.name', config.task.name).packaged and hasattr(
      task, 'demonstration'):
    # Some demonstrations stand for the user's code, which no config has.
    contents.append(zlib.crc32(repr([
        task.demonstration(i, seed=seed) for i in range(_SHOWN)]).encode()))
  name = '-'.join(map(str, contents + [rows] * bool(rows)))
  return paths.place(config.sft.cache) / f'{name}.safetensors'


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
    with paths.new_path(path) as file:
      save_file(dict(zip(_names(params), leaves)), file,
                metadata={'crc32': _checksum(leaves)})
  except (OSError, SafetensorError) as error:
    logging.warning(
        'The fine-tuned weights could not be kept in %s (%s): the run goes '
        'on.', path, error)


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
        'The fine-tuned weights in %s are damaged (%s): making them '
        'again.', path, error)
    return None
  return jax.tree.structure(shapes).unflatten(leaves)
