"""What the sampler's decode loop should not have."""

import math

import jax
import numpy as np

from jaxrl_llm import programs
from launch.aot import arguments, cost, hlo, memory, operations


def find(text: str, made: programs.Programs) -> list[str]:
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
  kind = np.dtype(model.dtype).itemsize
  # More than the part of the smallest matrix that is on a device, and more
  # than the hidden states of all slots, which do cross between products.
  much = max(
      model.width * model.kv_heads * model.head_dim * kind
      // mesh.shape['tensor'],
      made.sampler.sampler.slots * model.width * kind + 1)
  cache = max(memory.caches(made)['decode cache'] // 2, 1)
  # CPUs slice a layer's weights out of their stack, and small caches are less.
  weights = {
      math.prod(x.sharding.shard_shape(x.shape)[1:])
      for x in jax.tree.leaves(arguments.abstract(made).weights['layers'])}
  loop, found = _inside(module, 'decode'), []
  if not loop:
    return ['The sampler has no decode loop that could be looked into.']
  for name in loop:
    computation = module.computations[name]
    for x in computation.instructions.values():
      for y in _collectives(module, x):
        scope = y.scope or x.scope
        where = np.array(np.unravel_index(
            cost.group(y, mesh.devices.size), mesh.devices.shape))
        axes = [axis for axis, index in zip(mesh.axis_names, where)
                if len(np.unique(index)) > 1]
        moved = sum(a.bytes for a in y.arrays)
        op = y.op.removesuffix('-start')
        if {'data', 'fsdp'} & {*axes}:
          found.append(f'{op} over {", ".join(axes)} in the decode loop: '
                       f'{y.name}, {scope}.')
        # To sort them, the logits of different slots are exchanged.
        if moved >= much and 'truncation' not in scope:
          found.append(f'{op} of {moved:,} bytes in the decode loop, as much '
                       f'as a weight: {y.name}, {scope}.')
      if (operations.written(module, computation, x) >= cache
          and any(a.size not in weights for a in x.arrays)):
        found.append(f'{x.op} that writes as much as a whole cache in the '
                     f'decode loop: {x.name}, {x.scope}.')
  return found


def _collectives(module: hlo.Module, x: hlo.Instruction) -> list:
  """The collective that an instruction is, or those fused into it."""
  if x.op == 'fusion':
    inner = module.computations[x.calls['calls']].instructions.values()
    return [z for y in inner for z in _collectives(module, y)]
  return [x] if x.op.removesuffix('-start') in cost.COLLECTIVES else []


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
