"""Seconds per phase of a step, and the speed metrics computed from them.

Metrics:
  seconds/step [seconds]: the whole step, without its hooks
  seconds/<phase> [seconds]: a phase of the step: propose, reshard (the weights
    for sampling), sample, verify, reward (by a reward model), batch (rows and
    advantages), select, score or update
  speed/tokens_per_second [tokens per second]: sampled response tokens over the
    whole step
  speed/flops [FLOPs]: of the model, in all phases of the step
  speed/flops_share [share]: model FLOPs over what the machine's matrix products
    could do in the time of the step
  speed/flops_share/<phase> [share]: the same of one phase
  memory/peak [bytes]: peak since the start: of the fullest device, or of the
    process on a CPU
"""

import contextlib
import time
from typing import Iterator, Mapping

from jaxrl_llm.base import phases

Row = dict[str, float]


class Timer:
  """Timer of the phases of a step, and of the model FLOPs of some.

  JAX calls return before the device has finished, so a phase measures only the
  time that its caller waits. Fetch a result (`jax.device_get`) inside the phase
  that computes it; otherwise its time counts in the next phase. Phases are
  disjoint: the time of a phase within another counts in the inner one alone.
  """

  def __init__(self):
    self._seconds: dict[str, float] = {}
    self._flops: dict[str, float] = {}
    self._within = 0.0  # seconds of phases that ended in the one under way
    self._start = time.perf_counter()

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    """Adds the time spent inside the context to `phase`, which is shown."""
    start, before, self._within = time.perf_counter(), self._within, 0.0
    try:
      with phases.phase(phase):
        yield
    finally:
      passed = time.perf_counter() - start
      self._seconds[phase] = (
          self._seconds.get(phase, 0.0) + passed - self._within)
      self._within = before + passed

  def note(self, phase: str, flops: float) -> None:
    """Adds model FLOPs to a phase."""
    self._flops[phase] = self._flops.get(phase, 0.0) + flops

  def take_flops(self) -> Row:
    """Returns the FLOPs by phase that were noted since the last call."""
    taken, self._flops = self._flops, {}
    return taken

  def take(self) -> Row:
    """Returns the times of this step and starts the next one.

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
  """Computes the speed metrics of a step.

  Args:
    seconds: from `Timer.take`.
    tokens: number of sampled response tokens.
    flops: model FLOPs by phase of the timer, from `flops.of_step` and
      `Timer.take_flops`.
    rate: FLOP/s of the machine's matmuls, from `flops.matmul_rate`.
    memory: bytes, from `flops.peak_memory`.

  Returns:
    The seconds, and the metrics under speed and memory.
  """
  total = sum(flops.values())
  return {
      **seconds,
      'speed/tokens_per_second': tokens / seconds['seconds/step'],
      'speed/flops': total,
      'speed/flops_share': total / seconds['seconds/step'] / rate,
      'memory/peak': float(memory),
      **{f'speed/flops_share/{phase}': done / seconds[f'seconds/{phase}'] / rate
         for phase, done in flops.items()}}
