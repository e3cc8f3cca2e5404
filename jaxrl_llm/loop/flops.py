"""Model FLOPs of a step, and the matmul rate of the machine."""

import contextlib
import functools
import hashlib
import json
import pathlib
import resource
import sys
import time
from typing import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import flops
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.storage import compiled, paths

_LASTS = 7 * 86_400.0  # seconds; other load may have lowered what was measured
_CREDIBLE = 0.95  # share of the rate above which it was measured too low


def of_step(
    writer: ModelConfig, sampled: tuple[np.ndarray, np.ndarray, np.ndarray],
    rounds: Sequence[tuple[np.ndarray, np.ndarray]], *, epochs: int,
    passes: Sequence[tuple[ModelConfig, int]]) -> dict[str, float]:
  """Returns the FLOPs of a training step by phase, 'sample' and 'update'.

  Those of 'score' and 'reward' are noted where they run, see `of_scores`.

  Args:
    writer: the model that samples.
    sampled: tokens of prompts and responses, as `models.flops.sample` takes
      them.
    rounds: for each round, prompt and response tokens [K] of its rows.
    epochs: number of passes over the rows of a round.
    passes: models in an update, and the passes of each: 1 forward, and 2
      backward if it is trained; 1 where its own weights have no gradient, as
      with LoRA.
  """
  return dict(
      sample=flops.sample(writer, *sampled),
      update=sum(
          epochs * count / 3 * flops.update(model, *rows) for rows in rounds
          for model, count in passes))


def of_scores(
    models: Sequence[ModelConfig], prompt: np.ndarray,
    response: np.ndarray) -> float:
  """Returns the FLOPs of a forward pass of each model over rows, for scores.

  Args:
    models: one for each pass.
    prompt, response: tokens [B] of the rows.
  """
  return sum(flops.forward(model, prompt + response, response)
             for model in models)


class Rate:
  """FLOP/s of this machine's matmuls, by which a run's own are judged.

  Attributes:
    value: the rate.
  """

  def __init__(self, dtype: str):
    self._dtype, self._again = dtype, False
    self.value = matmul_rate(dtype)

  def exceeded(self, share: float) -> bool:
    """Measures the rate again if a run has reached too much of it.

    Other load has then lowered what was measured. It is measured again once,
    and the higher rate is kept.

    Args:
      share: of the rate.

    Returns:
      Whether it was measured again.
    """
    if share <= _CREDIBLE or self._again:
      return False
    self._again = True
    self.value = max(self.value, measured_rate(self._dtype))
    _keep(self._dtype, self.value)
    matmul_rate.cache_clear()
    return True


@functools.cache
def matmul_rate(dtype: str) -> float:
  """Returns the FLOP/s of this machine's matmuls in a dtype.

  It is measured once a week, and kept beside the compiled programs. Where these
  are not kept, each process measures it.
  """
  with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
    if path := _path(dtype):
      measured = json.loads(path.read_text())
      if (0 <= time.time() - measured['time'] < _LASTS
          and measured['rate'] > 0):
        return measured['rate']
  rate = measured_rate(dtype)
  _keep(dtype, rate)
  return rate


def _path(dtype: str) -> pathlib.Path | None:
  """Returns the file that keeps the rate; None if nothing is kept."""
  about = (dtype, compiled.machine(), jax.devices()[0].device_kind,
           jax.device_count(), jax.__version__)
  name = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
  folder = compiled.folder()
  return folder / f'matmul-{name}.json' if folder else None


def _keep(dtype: str, rate: float) -> None:
  with contextlib.suppress(OSError):
    if path := _path(dtype):
      paths.write_whole(path, json.dumps(dict(rate=rate, time=time.time())))


def measured_rate(dtype: str) -> float:
  """Measures the FLOP/s of this machine's matmuls in a dtype.

  Takes the best time of repeated square matmuls within half a second after the
  compile. On a shared machine, other jobs can keep half of the cores busy
  during a shorter measurement. The rate of one accelerator is multiplied by
  their number. CPU devices share their cores, so one measurement counts for
  all.
  """
  cpu = jax.default_backend() == 'cpu'
  n, repeats = (768, 2) if cpu else (8192, 8)
  noise = np.random.default_rng(0)
  x, y = (
      np.tile(noise.standard_normal((256, 256)) / n ** 0.5, (n // 256,) * 2)
      for _ in range(2))

  @jax.jit
  def multiply(x, y):
    for _ in range(repeats):
      x = x @ y
    return x

  with jax.transfer_guard('allow'):
    x, y = (jax.device_put(m.astype(jnp.dtype(dtype))) for m in (x, y))
    multiply(x, y).block_until_ready()
    best, end = float('inf'), time.perf_counter() + 0.5
    while time.perf_counter() < end:
      start = time.perf_counter()
      multiply(x, y).block_until_ready()
      best = min(best, time.perf_counter() - start)
  devices = 1 if cpu else jax.device_count()
  return devices * repeats * 2.0 * n ** 3 / best


def peak_memory() -> int:
  """Returns the peak memory in bytes.

  This is the maximum over the local devices, or this process's on CPU.
  """
  stats = [device.memory_stats() for device in jax.local_devices()]
  if all(stats):
    return max(s['peak_bytes_in_use'] for s in stats)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else peak * 1024
