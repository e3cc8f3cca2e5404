"""Memory of each chip while a step's programs run, by part.

Arrays that the run keeps are counted from their shapes. Arguments, results and
temporaries of a program are the compiler's numbers.
"""

from typing import Any

import jax
import numpy as np

from jaxrl_llm.ops import quantise
from jaxrl_llm.prepare import programs
from jaxrl_llm.prepare.arguments import abstract, Arguments, size

# Parts that are arguments of a phase's program.
_ARGUMENTS = {
    'reshard': ('parameters', 'actor'),
    'sample': ('sampling weights', 'frozen'),
    'reward': ('reward model',),
    'score': ('parameters', 'frozen', 'actor'),
    'update': ('parameters', 'optimiser', 'frozen', 'actor', 'teacher'),
    'sft': ('parameters', 'optimiser', 'frozen')}


def held(made: programs.Programs, name: str) -> dict[str, int]:
  """Returns bytes on each chip, by part, that the run keeps during a phase.

  Args:
    made: the programs.
    name: name of the phase.
  """
  x = abstract(made)
  policy, actor = x.state['policy'], x.state.get('actor')
  parts = {
      'parameters': size(policy.params), 'optimiser': size(policy.opt_state),
      'frozen': size(x.frozen), 'anchor': size(x.anchors), 'actor': size(actor),
      'teacher': size((x.others or {}).get('teacher')),
      'reward model': size(x.reward)}
  if name in ('reshard', 'sample'):
    parts['sampling weights'] = _made_anew(made, x)
  return parts


def _made_anew(made: programs.Programs, x: Arguments) -> int:
  """Returns the bytes of sampling weights that do not share training arrays."""
  writer = made.rollout_sampler.player
  kept = dict(jax.tree_util.tree_leaves_with_path(
      x.state[writer].params if writer != 'policy' or x.frozen is None
      else x.frozen))

  def shared(path, now):
    was = kept.get(path)
    return was is not None and was.dtype == now.dtype and (
        was.sharding.is_equivalent_to(now.sharding, len(now.shape)))

  return sum(
      size(now) for path, now in jax.tree_util.tree_leaves_with_path(x.weights)
      if not shared(path, now))


def caches(made: programs.Programs) -> dict[str, int]:
  """Returns the bytes on each chip of the prefix cache and the decode cache.

  Prefixes are those of a prefill and, if slots share them, those of the pool.
  """
  config, sampler = made.config, made.rollout_sampler.sampler.sampler
  model = made.players[made.rollout_sampler.player].model
  head = model.head_dim * np.dtype(model.dtype).itemsize
  if sampler.kv:
    head = model.head_dim * quantise.TYPES[sampler.kv].itemsize + 4  # its scale
  one = 2 * model.layers * model.kv_heads * head // made.mesh.shape['tensor']
  up = lambda n: -(-n // (sampler.chunk or 1)) * (sampler.chunk or 1)
  prompt, response = up(config.max_prompt), up(config.max_response)
  prefixes, slots = sampler.prefill_prompts * config.max_prompt, sampler.slots
  if sampler.share_prompts:
    prefixes += seats(made) * prompt
    prompt = 0
  return {'prefix cache': prefixes * one,
          'decode cache': slots * (prompt + response) * one}


def seats(made: programs.Programs) -> int:
  """Returns the prompts that a shard's slots can share; 0 if they share none.
  """
  sampler = made.rollout_sampler.sampler
  if not sampler.sampler.share_prompts:
    return 0
  return min(sampler.sampler.slots, sampler.prompts_per_shard)


def parts(made: programs.Programs, name: str, program: Any,
          code: int) -> dict[str, int]:
  """Returns bytes on each chip, by part, while a program runs.

  Args:
    made: the programs.
    name: name of the phase.
    program: compiled program of the phase.
    code: bytes of generated code of all programs.
  """
  x, memory, found = abstract(made), program.memory_analysis(), held(
      made, name)
  given = memory.argument_size_in_bytes
  left = memory.output_size_in_bytes - memory.alias_size_in_bytes
  temporary = memory.temp_size_in_bytes
  if name == 'sample':
    found |= caches(made)
    found['buffers'] = left + given - size(x.weights)
    temporary -= sum(caches(made).values())
    # The compiler may keep a part of a small cache in on-chip memory.
    found['decode cache'] += min(temporary, 0)
    temporary = max(temporary, 0)
  elif name == 'reward':
    found['buffers'] = left + given - found['reward model']
  elif name == 'score':
    found['buffers'] = left + size((x.scored, x.scored_plan))
  elif name in ('update', 'sft'):
    found['buffers'] = left + given - size(x.state) - size(x.frozen) - (
        found['teacher'] if name == 'update' else 0)
  found['activations'] = temporary
  found['program'] = code
  return {part: int(n) for part, n in found.items() if n}


def lacking(made: programs.Programs, name: str, needs: int) -> dict[str, int]:
  """Returns bytes by part of a program that is too large to compile.

  Args:
    made: the programs.
    name: name of the phase.
    needs: bytes that the compiler asked for.
  """
  found = held(made, name)
  if name == 'sample':
    found |= caches(made)
  known = sum(
      n for part, n in found.items()
      if part in _ARGUMENTS[name] or part.endswith('cache'))
  found['activations'] = max(0, needs - known)
  return {part: n for part, n in found.items() if n}
