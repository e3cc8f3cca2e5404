"""Compiles a step's programs for a slice and says what they need.

Everything here works on shapes: no weights, no data, no TPU.
"""

import dataclasses
import math
import re
import time
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import config_file, flops, programs, sharding
from jaxrl_llm.models.config import HUB
from launch.aot import chips, cost, hlo, operations

FREE = 0.10  # Of the HBM, to be left over.
_STOP_IDS = (0, 1)  # Stand for a tokeniser's; only their number is compiled.


@dataclasses.dataclass
class Phase:
  """One program of a step.

  Attributes:
    name: as in `programs.lowered`.
    compile_seconds: to lower and compile.
    bytes: on each chip while it runs, part by part; empty if it did not
      compile.
    needs: what the compiler said of memory, if it did not.
    cost: of one run; None for emulated devices, or if it did not compile.
    runs: in a step.
    model_flops: what its mathematics asks for, over all chips and runs.
    faults: sentences about what its decode loop should not have.
  """
  name: str
  compile_seconds: float
  bytes: dict[str, int]
  needs: str | None
  cost: cost.Cost | None
  runs: int
  model_flops: float
  faults: list[str]

  @property
  def total(self) -> int:
    """Bytes on each chip while it runs."""
    return sum(self.bytes.values())


class Report(NamedTuple):
  """What came of a check.

  Attributes:
    config: that was checked.
    topology: for which.
    mesh: of it.
    slots: decode slots on each data shard.
    requests_per_shard: that they serve.
    phases: in their order.
    tokens: response tokens of a step, if each runs to its limit.
  """
  config: ConfigDict
  topology: chips.Topology
  mesh: jax.sharding.Mesh
  slots: int
  requests_per_shard: int
  phases: list[Phase]
  tokens: int

  @property
  def seconds(self) -> float | None:
    """Of a step, verifying and host work left out."""
    if any(p.cost is None for p in self.phases):
      return None
    return sum(p.cost.seconds * p.runs for p in self.phases)

  @property
  def peak(self) -> int | None:
    """Bytes per chip in the phase that needs most; None if one is unknown."""
    if any(p.needs for p in self.phases):
      return None
    return max(p.total for p in self.phases)


def load(spec: str, overrides: dict[str, Any]) -> ConfigDict:
  """Reads a config without its model's files.

  A name on the hub that we know stands for a preset; another one's
  config.json is fetched.
  """
  config = config_lib.load(spec, overrides)
  preset = HUB.get(config.model.hf)
  if preset:
    model = {
        f'model.{k}': v for k, v in config.model.items()
        if v is not None and k not in ('hf', 'preset', 'dtype')}
    config = config_lib.load(spec, {
        **overrides, 'model.hf': None, 'model.preset': preset, **model,
        'model.dtype': config.model.dtype or 'bfloat16'})
  config_lib.validate(config)
  return config


def topology_of(spec: str) -> str:
  """The slice that a config file is made for.

  Raises:
    ValueError: it names none.
  """
  path = spec.partition(':')[0]
  found = None
  if path.endswith('.py'):
    found = getattr(config_file.load_file(path), 'TOPOLOGY', None)
  if found is None:
    raise ValueError(
        f'{path} names no TOPOLOGY: say for which slice to compile, such as '
        '--topology=v5e:16x8.')
  return found


def build(config: ConfigDict, topology: chips.Topology) -> programs.Programs:
  """The programs of a config on a slice."""
  mesh = sharding.make_mesh(
      *(config.mesh[axis] for axis in sharding.AXES), topology.devices)
  return programs.make(
      config, config_lib.model_config(config), mesh, _STOP_IDS)


def run(config: ConfigDict, topology: chips.Topology,
        only: tuple[str, ...] = ()) -> Report:
  """Compiles every program of a step, or those in `only`.

  Args:
    config: from `load`.
    topology: the slice.
    only: names of phases; empty is all.

  Returns:
    The report.

  Raises:
    ValueError: the mesh does not fit the slice or the model.
  """
  made = build(config, topology)
  compiled = {
      name: _compile(lower) for name, lower in programs.lowered(made).items()
      if not only or name in only}
  code = sum(
      program.memory_analysis().generated_code_size_in_bytes
      for program, _, _ in compiled.values() if program is not None)
  phases = [
      _phase(made, topology, name, *result, code)
      for name, result in compiled.items()]
  requests = config.prompts_per_step * config.samples_per_prompt
  return Report(
      config, topology, made.mesh, made.sampler.sampler.slots,
      made.sampler.requests_per_shard, phases, requests * config.max_response)


def _compile(lower) -> tuple[Any, float, str | None]:
  """The compiled program, seconds, and what it needs if memory ran out."""
  start = time.monotonic()
  try:
    program, needs = lower().compile(), None
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    program, needs = None, _needs(str(error))
  return program, time.monotonic() - start, needs


def _needs(error: str) -> str:
  """The part of an error that says how much memory was asked for."""
  for pattern in (r'Used ([\d.]+[KMGT]) of', r'required[^(]*\(([\d.]+[KMGT])\)',
                  r'exceeded .*?by ([\d.]+[KMGT])'):
    found = re.search(pattern, error)
    if found:
      return found[1] + 'iB'
  return error.splitlines()[0][:120]


def _phase(made, topology, name, program, seconds, needs, code) -> Phase:
  phase = Phase(name, seconds, {}, needs, None, _runs(made.config, name),
                _model_flops(made, name), [])
  if program is None:
    return phase
  phase.bytes, text = _bytes(made, name, program, code), program.as_text()
  if name == 'sample':
    phase.faults = faults(text, made)
  if topology.chip is not None:
    phase.cost = cost.estimate(
        text, cost.Machine(topology.chip, made.mesh), _turns(made, name),
        {'truncation': 0.0})
  return phase


def _runs(config: ConfigDict, name: str) -> int:
  """How often a program runs in a step."""
  updates = config.learner.epochs * config.learner.updates
  if name == 'update':
    return updates
  if name == 'score':
    return (updates > 1) + bool(config.loss.kl_coef)
  return 1


def _turns(made: programs.Programs, name: str) -> dict[str, float]:
  """Turns of the loops that data decide, if each response has every token."""
  config, sampler = made.config, made.sampler.sampler
  rows = config.prompts_per_step * config.samples_per_prompt
  if name in ('score', 'update'):
    if name == 'update':
      rows //= config.learner.updates
    return dict(microbatches=rows // config.learner.microbatch)
  requests = made.sampler.requests_per_shard
  steps = -(-requests // sampler.slots) * config.max_response
  refills = -(-steps // sampler.steps_per_refill)
  rounds = -(-made.sampler.prompts_per_shard // sampler.prompts_per_round)
  chunk = sampler.chunk or 1
  # The mean over a response of the chunks that its prompt and it fill.
  chunks = -(-config.max_prompt // chunk) + np.mean(
      np.arange(config.max_response) // chunk + 1)
  return dict(
      rounds=rounds, serve=refills / rounds, decode=sampler.steps_per_refill,
      refill=requests / refills, chunks=float(chunks))


def _model_flops(made: programs.Programs, name: str) -> float:
  """Of all runs in a step, if prompts and responses are as long as can be."""
  config, model = made.config, made.model
  rows = config.prompts_per_step * config.samples_per_prompt
  prompt = np.full(rows, config.max_prompt)
  response = np.full(rows, config.max_response)
  if name == 'sample':
    return flops.sample(
        model, prompt[:config.prompts_per_step], prompt, response)
  if name == 'score':
    return _runs(config, name) * flops.forward(
        model, prompt + response, response)
  if name == 'update':
    return config.learner.epochs * flops.update(
        model, prompt, response, frozen=bool(config.lora.rank))
  return 0.0


def size(tree: Any) -> int:
  """Bytes of a tree of shapes with layouts, on each device."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * _item(x.dtype)
      for x in jax.tree.leaves(tree))


def _item(dtype) -> int:
  return 8 if jax.dtypes.issubdtype(
      dtype, jax.dtypes.prng_key) else np.dtype(dtype).itemsize


def _bytes(made, name, program, code) -> dict[str, int]:
  """What lies on each chip while a program runs, by part.

  What the run holds beside the program's arguments is counted from shapes;
  arguments, results and temporaries are the compiler's figures.
  """
  x, memory = programs.shapes(made), program.memory_analysis()
  params, optimizer = size(x.state.params), size(x.state.opt_state)
  parts = {
      'parameters': params, 'optimiser': optimizer, 'frozen': size(x.frozen),
      'anchor': size(x.anchor)}
  given = memory.argument_size_in_bytes
  left = memory.output_size_in_bytes - memory.alias_size_in_bytes
  temporary = memory.temp_size_in_bytes
  if name == 'relayout':
    # What comes out is what the run keeps, beside what was there.
    parts['sampling weights'] = max(0, size(x.weights) - size(x.frozen))
    parts['activations'] = temporary
  elif name == 'sample':
    parts['sampling weights'] = max(0, size(x.weights) - size(x.frozen))
    caches = _caches(made)
    parts |= caches
    parts['buffers'] = left + given - size(x.weights)
    parts['activations'] = temporary - sum(caches.values())
  elif name == 'score':
    parts['buffers'] = left + size(x.scored)
    parts['activations'] = temporary
  else:
    known = size(x.state) + size(x.frozen)
    parts['buffers'] = left + given - known
    parts['activations'] = temporary
  parts['program'] = code
  return {part: int(n) for part, n in parts.items() if n}


def _caches(made: programs.Programs) -> dict[str, int]:
  """Prefix and decode cache of each chip."""
  config, model, sampler = made.config, made.model, made.sampler.sampler
  one = 2 * model.layers * model.kv_heads * model.head_dim * np.dtype(
      model.dtype).itemsize // made.mesh.shape['tensor']
  up = lambda n: -(-n // (sampler.chunk or 1)) * (sampler.chunk or 1)
  columns = up(config.max_prompt) + up(config.max_response)
  return {
      'prefix cache': sampler.prompts_per_round * config.max_prompt * one,
      'decode cache': sampler.slots * columns * one}


def faults(text: str, made: programs.Programs) -> list[str]:
  """What the sampler's decode loop has that it should not.

  Args:
    text: of the compiled sampler.
    made: the programs it is one of.

  Returns:
    A sentence for each collective that crosses data shards or moves as much as
    a weight, and each copy of a whole cache.
  """
  model, mesh = made.model, made.mesh
  module = hlo.parse(text)
  smallest = model.width * model.kv_heads * model.head_dim * np.dtype(
      model.dtype).itemsize // mesh.shape['tensor']
  cache = max(_caches(made)['decode cache'] // 2, 1)
  # CPUs slice a layer's weights out of their stack, and small caches are less.
  weights = {
      math.prod(x.sharding.shard_shape(x.shape)[1:])
      for x in jax.tree.leaves(programs.shapes(made).weights['layers'])}
  found = []
  for name in _inside(module, 'decode'):
    computation = module.computations[name]
    for x in computation.instructions.values():
      kind = x.op.removesuffix('-start')
      if kind in cost.COLLECTIVES and 'truncation' not in x.scope:
        group = cost.group(x)
        where = np.array(np.unravel_index(group, mesh.devices.shape))
        axes = [axis for axis, index in zip(mesh.axis_names, where)
                if len(np.unique(index)) > 1]
        moved = sum(a.bytes for a in x.arrays)
        if {'data', 'fsdp'} & {*axes}:
          found.append(f'{kind} over {", ".join(axes)} in the decode loop: '
                       f'{x.name}, {x.scope}.')
        if moved >= smallest:
          found.append(f'{kind} of {moved:,} bytes in the decode loop, as much '
                       f'as a weight: {x.name}, {x.scope}.')
      elif (operations.written(module, computation, x) >= cache
            and any(a.size not in weights for a in x.arrays)):
        found.append(f'{x.op} that writes as much as a whole cache in the '
                     f'decode loop: {x.name}, {x.scope}.')
  return found


def _inside(module: hlo.Module, scope: str) -> list[str]:
  """Computations that run within the loop traced in a scope."""
  names, new = [], [
      x.calls['body'] for _, x in hlo.walk(module)
      if x.op == 'while' and cost.loop_name(x.scope) == scope]
  while new:
    name = new.pop()
    if name not in names:
      names.append(name)
      for x in module.computations[name].instructions.values():
        if x.op != 'fusion':
          new += [c for role, c in x.calls.items() if role != 'to_apply']
  return names
