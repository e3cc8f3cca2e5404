"""Seconds per phase of a step, and what they say of speed."""

import contextlib
import time
from typing import Iterator, Mapping

Row = dict[str, float]


class Timer:
  """Seconds per phase of a step.

  JAX returns before a device has done its work, so a phase counts what its
  caller waits for: fetch a result (`jax.device_get`) inside the phase that
  made it, or the next phase pays for it. Phases may nest; the inner one's time
  is then in both.
  """

  def __init__(self):
    self._seconds: dict[str, float] = {}
    self._start = time.perf_counter()

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    """Adds the time spent inside to `phase`."""
    start = time.perf_counter()
    try:
      yield
    finally:
      passed = time.perf_counter() - start
      self._seconds[phase] = self._seconds.get(phase, 0.0) + passed

  def take(self) -> Row:
    """Starts the next step.

    Returns:
      'seconds/step' since the last call, and 'seconds/<phase>' for each phase.
    """
    now = time.perf_counter()
    row = {'seconds/step': now - self._start}
    row.update((f'seconds/{k}', v) for k, v in self._seconds.items())
    self._start, self._seconds = now, {}
    return row


def speed(
    seconds: Row, *, tokens: float, flops: Mapping[str, float], rate: float,
    memory: int) -> Row:
  """What a step cost.

  Args:
    seconds: from `Timer.take`.
    tokens: response tokens that were sampled.
    flops: model FLOPs by phase of the timer; see `flops.py`.
    rate: FLOP/s of the machine's matmuls, from `flops.matmul_rate`.
    memory: bytes, from `flops.peak_memory`.

  Returns:
    The seconds; 'speed/tokens_per_second' of the whole step; 'speed/flops' of
    all phases; 'speed/flops_share', of what the machine could have done in the
    step's time, and 'speed/flops_share/<phase>' in that phase's;
    'memory/peak' in bytes.
  """
  total = sum(flops.values())
  row = {
      **seconds,
      'speed/tokens_per_second': tokens / seconds['seconds/step'],
      'speed/flops': total,
      'speed/flops_share': total / seconds['seconds/step'] / rate,
      'memory/peak': float(memory),
  }
  for phase, done in flops.items():
    row[f'speed/flops_share/{phase}'] = (
        done / seconds[f'seconds/{phase}'] / rate)
  return row
