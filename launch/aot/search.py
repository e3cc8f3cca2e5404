"""Search for the most decode slots and tokens of a microbatch that fit."""

from typing import Callable, Sequence

from ml_collections import ConfigDict

from jaxrl_llm import sharding
from jaxrl_llm.launch.aot import check, chips, report
from jaxrl_llm.prepare import methods, stages


def largest(
    config: ConfigDict, topology: chips.Topology, say: Callable[[str], None],
) -> ConfigDict:
  """Finds the largest `sampling.slots`, then the largest
  `learner.tokens_per_microbatch`.

  Args:
    config: from `check.load`.
    topology: the slice.
    say: callback for a line about each compiled candidate.

  Returns:
    The config with both fields at the largest value that fits, or at the
    smallest value if none fits.

  Raises:
    ValueError: the devices are emulated, so memory has no limit.
  """
  if topology.chip is None:
    raise ValueError(
        f'--search needs a memory limit, and {topology.name} has none: name a '
        'slice of TPUs.')
  # Without its memory, for sizes that do not depend on it.
  made = check.build(config, topology._replace(chip=None))
  requests = made.rollout_sampler.sampler.requests_per_shard
  one = config.max_prompt + config.max_response
  rows = methods.minibatch_rows(config) // sharding.data_shards(
      made.learner_mesh)
  sizes = [one * n for n in range(1, rows + 1)]
  slots = sorted({-(-requests // n) for n in range(1, requests + 1)})
  for field, phase, values in (
      ('sampling.slots', 'sample', slots),
      ('learner.tokens_per_microbatch', 'update', sizes)):
    config = _largest(config, topology, field, phase, values, say)
  return config


def _largest(config, topology, field, phase, values: Sequence[int], say):
  """Returns the config with a field at the largest value that fits.

  `values` are ascending. If none fits, takes the smallest.
  """
  tried, found = {}, []

  def fits(value):
    section, leaf = field.split('.')
    changed = config.copy_and_resolve_references()
    changed[section][leaf] = value
    checked = check.run(changed, topology, only=(phase,))
    reasons = report.misfits(checked)
    say(f'{field}={value}: ' + (
        reasons[0] if reasons else
        f'{checked.phases[0].total / chips.GIB:.2f} GiB'))
    tried[value] = changed
    if not reasons:
      found.append(value)
    return not reasons

  # The largest value often fits, so it is tried first.
  low, high = 0, len(values) - 1
  if not fits(values[high]):
    while low < high:
      middle = (low + high) // 2
      if fits(values[middle]):
        low = middle + 1
      else:
        high = middle
  best = tried[max(found) if found else values[low]]
  stages.validate(best)
  return best
