"""Sweeps as values: lists of trials, each a dict of config fields.

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

is 2 x 2 x 3 trials. Names and order are those of big_vision's and
uncertainty-baselines' sweeps.
"""

import itertools
from typing import Any, Iterable, Sequence

Trial = dict[str, Any]


def sweep(key: str, values: Iterable[Any]) -> list[Trial]:
  """One trial for each value of a field."""
  return [{key: value} for value in values]


def fixed(key: str, value: Any, length: int = 1) -> list[Trial]:
  """`length` trials with the same value of a field."""
  return sweep(key, [value] * length)


def product(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """Every combination of a trial of each sweep; the last one varies fastest.

  Raises:
    ValueError: two sweeps set the same field.
  """
  return [_merged(trials) for trials in itertools.product(*sweeps)]


def zipit(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """The first trials of all sweeps together, then the second ones, and so on.

  Raises:
    ValueError: sweeps of different lengths, or two that set the same field.
  """
  lengths = [len(trials) for trials in sweeps]
  if len(set(lengths)) > 1:
    raise ValueError(
        f'zipit needs sweeps of one length, not {lengths}: use fixed(key, '
        'value, length) for a value that does not change.')
  return [_merged(trials) for trials in zip(*sweeps)]


def chainit(sweeps: Sequence[Sequence[Trial]]) -> list[Trial]:
  """The trials of the first sweep, then those of the second, and so on."""
  return list(itertools.chain(*sweeps))


def _merged(trials: Sequence[Trial]) -> Trial:
  """One trial with the fields of all."""
  merged = {}
  for trial in trials:
    twice = sorted(merged.keys() & trial.keys())
    if twice:
      raise ValueError(
          f'{twice[0]} is set by two sweeps that are combined: sweep it once.')
    merged.update(trial)
  return merged
