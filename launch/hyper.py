"""Sweeps: lists of trials, each a dictionary of config fields.

A config's `get_hyper(hyper)` gets this module and returns such a list:

  def get_hyper(hyper):
    return hyper.product([
        hyper.sweep('advantage', ['grpo', 'rloo']),
        hyper.zipit([
            hyper.sweep('loss.clip_high', [0.2, 0.28]),
            hyper.sweep('loss.entropy_bonus', [0.0, 0.03]),
        ]),
        hyper.sweep('seed', range(3)),
    ])

This gives 2 x 2 x 3 trials. Names and order follow the sweeps of big_vision and
uncertainty-baselines.
"""

import itertools
from typing import Any, Iterable, Sequence

Trial = dict[str, Any]


def sweep(key: str, values: Iterable[Any]) -> list[Trial]:
  """Returns one trial for each value of a field."""
  return [{key: value} for value in values]


def fixed(key: str, value: Any, length: int = 1) -> list[Trial]:
  """Returns `length` trials with the same value of a field."""
  return sweep(key, [value] * length)


def product(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """Returns every combination of trials; the last sweep varies fastest.

  Raises:
    ValueError: two sweeps set the same field.
  """
  return [_merged(trials) for trials in itertools.product(*sweeps)]


def zipit(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """Merges the first trials of all sweeps, then the second ones, and so on.

  Raises:
    ValueError: the sweeps differ in length, or two set the same field.
  """
  lengths = [len(trials) for trials in sweeps]
  if len(set(lengths)) > 1:
    raise ValueError(
        f'zipit needs sweeps of equal length, not {lengths}: use fixed(key, '
        'value, length) for a constant value.')
  return [_merged(trials) for trials in zip(*sweeps)]


def chainit(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """Concatenates sweeps."""
  return list(itertools.chain(*sweeps))


def _merged(trials: Sequence[Trial]) -> Trial:
  """Merges trials into one with the fields of all."""
  merged = {}
  for trial in trials:
    twice = sorted(merged.keys() & trial.keys())
    if twice:
      raise ValueError(
          f'{twice[0]} is set by two sweeps: set it in only one of them.')
    merged.update(trial)
  return merged
