"""Faults of the sampler's compiled decode loop."""

import math

import jax
import numpy as np

from jaxrl_llm.launch.aot import chips, cost, hlo, memory, operations
from jaxrl_llm.prepare import programs

SMALL = 1 << 20  # bytes of half a cache, whose copy takes microseconds
_WIDE = 'bf16', 'f16', 'f32'  # types that a quantised weight is converted to


def find(text: str, made: programs.Programs) -> list[str]:
  """Finds expensive operations in the sampler's decode loop.

  Args:
    text: text of the compiled sampler.
    made: all programs of the run.

  Returns:
    A sentence for each collective that crosses slices or data shards, or moves
    as many bytes as a weight, and for each copy of a whole cache unless that is
    SMALL. On a TPU, also for each quantised weight that is converted outside of
    the product with it: in the decode loop, or before it and read there.
  """
  model, mesh = made.players[made.rollout_sampler.player].model, made.mesh
  module = hlo.parse(text)
  layers = made.rollout_sampler.weights.result['layers']
  # At least the smallest matrix's part on a device, and more than the hidden
  # states of all slots, which collectives between products do move.
  much = max(
      model.width * model.kv_heads * model.head_dim * layers['k'].dtype.itemsize
      // mesh.shape['tensor'],
      made.rollout_sampler.sampler.sampler.slots * model.width
      * np.dtype(model.dtype).itemsize + 1)
  cache = memory.caches(made)['decode cache'] // 2
  if cache < SMALL:
    cache = math.inf
  pool = _pool(made)
  # On CPU, a layer's weights are sliced out of the stack of layers. This is no
  # fault, but it can write more than a small cache.
  weights = {
      math.prod(x.sharding.shard_shape(x.shape)[1:])
      for x in jax.tree.leaves(layers)}
  loop, found = _inside(module, 'decode'), []
  wide = _converted(made)
  if not loop:
    return ['The compiled sampler has no decode loop that can be checked.']
  for name, called in loop.items():
    computation = module.computations[name]
    for x in computation.instructions.values():
      if kind := cost.between_slices(x):
        found.append(f'{kind} between slices in the decode loop: {x.name}, '
                     f'{x.scope}.')
      for y in _collectives(module, x):
        # Some that the partitioner makes have no scope of their own.
        scope = y.scope or x.scope or called
        where = np.array(np.unravel_index(
            cost.group(y, chips.of_slice(mesh)), mesh.devices.shape))
        axes = [axis for axis, index in zip(mesh.axis_names, where)
                if len(np.unique(index)) > 1]
        moved = sum(a.bytes for a in y.arrays)
        op = y.op.removesuffix('-start')
        if {'data', 'fsdp'} & {*axes}:
          found.append(f'{op} over {", ".join(axes)} in the decode loop: '
                       f'{y.name}, {scope}.')
        # Truncation sorts, which moves the logits of all slots.
        if moved >= much and 'truncation' not in scope:
          found.append(f'{op} of {moved:,} bytes in the decode loop, as much '
                       f'as a weight: {y.name}, {scope}.')
      if (operations.written(module, computation, x) >= cache
          and any(a.size not in weights for a in x.arrays)):
        found.append(f'{x.op} that writes as much as a whole cache in the '
                     f'decode loop: {x.name}, {x.scope}.')
      if any(a.dims in pool and a.bytes and operations.written(
          module, computation, x) >= a.bytes for a in x.arrays):
        found.append(f'{x.op} that writes the prefixes of all slots in the '
                     f'decode loop: {x.name}, {x.scope}.')
      if x.op not in operations.FREE and any(
          a.size in wide and a.kind in _WIDE for a in x.arrays):
        found.append(f'{x.op} of a quantised weight, converted as a whole, in '
                     f'the decode loop: {x.name}, {x.scope}.')
  return found


def _pool(made: programs.Programs) -> set[tuple[int, ...]]:
  """Returns the shapes on a device of the keys and values of shared prefixes.

  There are none if these are SMALL. That of one layer is not among them: if all
  its columns are read at once, a slice of it may be made.
  """
  sampler = made.rollout_sampler.sampler.sampler
  model = made.players[made.rollout_sampler.player].model
  seats, chunk = memory.seats(made), sampler.chunk or 1
  two = model.head_dim, -(-made.config.max_prompt // chunk) * chunk
  lead = model.layers, seats, model.kv_heads // made.mesh.shape['tensor']
  size = math.prod((*lead, *two)) * (
      1 if sampler.kv else np.dtype(model.dtype).itemsize)
  return {(*lead, *two), (*lead, *two[::-1])} if size > SMALL else set()


def _converted(made: programs.Programs) -> set[int]:
  """Returns the sizes of arrays in the decode loop that are converted weights.

  These are the sizes of each quantised matrix's part on a device, for an
  expert, a layer and all layers. A matrix with an axis as long as the number of
  slots, or of their experts, is left out, since activations may have its size.
  Other devices than TPUs do convert weights.
  """
  if made.mesh.devices.flat[0].platform != 'tpu':
    return set()
  shapes = [
      x.sharding.shard_shape(x.shape)
      for x in jax.tree.leaves(made.rollout_sampler.weights.result)
      if x.dtype.itemsize == 1]
  slots = made.rollout_sampler.sampler.sampler.slots
  model = made.players[made.rollout_sampler.player].model
  rows = {slots, slots * (model.experts_per_token or 1)}
  return {
      math.prod(part) for shape in shapes if not rows & {*shape}
      for part in (shape, shape[-3:], shape[-2:])}


def _collectives(module: hlo.Module, x: hlo.Instruction) -> list:
  """Returns an instruction if it is a collective, or those fused into it."""
  if x.op == 'fusion':
    inner = module.computations[x.calls['calls']].instructions.values()
    return [z for y in inner for z in _collectives(module, y)]
  return [x] if x.op.removesuffix('-start') in cost.COLLECTIVES else []


def _inside(module: hlo.Module, scope: str) -> dict[str, str]:
  """Returns the computations within the loop traced in a scope.

  Returns:
    Name to the scope of the instruction that calls it.
  """
  names, new = {}, [
      (x.calls['body'], x.scope) for _, x in hlo.walk(module)
      if x.op == 'while' and cost.loop_name(x.scope) == scope]
  while new:
    name, called = new.pop()
    if name not in names:
      names[name] = called
      for x in module.computations[name].instructions.values():
        if x.op != 'fusion':
          new += [(c, x.scope or called) for role, c in x.calls.items()
                  if role != 'to_apply']
  return names
