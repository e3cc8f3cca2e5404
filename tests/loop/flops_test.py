"""Tests of the FLOPs of a step, of the matmul rate and of the peak memory."""

import time

import numpy as np
import pytest

from jaxrl_llm.loop import flops
from jaxrl_llm.models import flops as model_flops
from jaxrl_llm.models.config import PRESETS
from jaxrl_llm.storage import compiled


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_matmul_rate(dtype):
  rate = flops.matmul_rate(dtype)
  assert 1e9 < rate < 1e18
  assert flops.matmul_rate(dtype) == rate  # measured once


def test_the_matmul_rate_is_kept_for_a_week(tmp_path, monkeypatch):
  measured, now = [], [1e9]

  def measure(dtype):
    measured.append(dtype)
    return 1e12 + len(measured)

  def rate(dtype='float32'):  # as another process would have it
    flops.matmul_rate.cache_clear()
    return flops.matmul_rate(dtype) - 1e12

  monkeypatch.setattr(flops, 'measured_rate', measure)
  monkeypatch.setattr(time, 'time', lambda: now[0])
  monkeypatch.setattr(compiled, 'folder', lambda: tmp_path)
  assert [rate(), rate(), rate('bfloat16'), rate()] == [1, 1, 2, 1]
  assert measured == ['float32', 'bfloat16']
  now[0] += 7 * 86_400 - 1
  assert rate() == 1
  now[0] += 1
  assert [rate(), rate()] == [3, 3]
  now[0] -= 2  # measured in the future: another clock
  assert [rate(), rate()] == [4, 4]
  for damaged in ('', '[]', '{"rate": 1e12}', '{"rate": 0, "time": 999999999}'):
    for file in tmp_path.iterdir():
      file.write_text(damaged)
    before = len(measured)
    assert rate() == rate() == before + 1
  for folder in (None, tmp_path / 'missing'):  # nothing is kept
    monkeypatch.setattr(compiled, 'folder', lambda folder=folder: folder)
    assert rate() < rate()
  flops.matmul_rate.cache_clear()


def test_a_rate_that_a_run_exceeds_is_measured_again(tmp_path, monkeypatch):
  found = iter([1e12, 4e12, 5e12, 2e12])
  monkeypatch.setattr(flops, 'measured_rate', lambda _: next(found))
  monkeypatch.setattr(compiled, 'folder', lambda: tmp_path)
  flops.matmul_rate.cache_clear()
  rate = flops.Rate('float32')
  assert not rate.exceeded(0.95) and rate.value == 1e12
  assert rate.exceeded(3.86) and rate.value == 4e12
  assert not rate.exceeded(3.86)  # once: this machine is as fast as that
  flops.matmul_rate.cache_clear()
  other = flops.Rate('float32')  # of another process
  assert other.value == 4e12 and other.exceeded(0.96) and other.value == 5e12
  other = flops.Rate('float32')
  assert other.exceeded(1.0) and other.value == 5e12  # a busy hour again
  flops.matmul_rate.cache_clear()


def test_peak_memory_is_in_bytes():
  before = flops.peak_memory()
  ballast = np.ones(10_000_000)  # 80 MB
  assert 80e6 < flops.peak_memory() < 1e12
  assert flops.peak_memory() >= before
  del ballast


def test_a_step_is_sampled_once_and_trained_on_in_each_epoch():
  prompts, prompt = np.array([5, 3]), np.array([5, 5, 3])
  response = np.array([4, 2, 6])
  first = np.array([5, 3]), np.array([4, 6])
  second = np.array([5]), np.array([2])
  model, larger = PRESETS['tiny'], PRESETS['qwen3-1.7b']
  for epochs, frozen in ((1, False), (3, True)):
    # The first round leaves a row out; the second comes back to it. A teacher
    # has a forward pass alone, a third of an update.
    assert flops.of_step(
        model, (prompts, prompt, response), [first, second], epochs=epochs,
        passes=[(model, 2 if frozen else 3), (larger, 1)]) == pytest.approx(
            dict(sample=model_flops.sample(model, prompts, prompt, response),
                 update=epochs * sum(
                     model_flops.update(model, *rows, frozen=frozen)
                     + model_flops.update(larger, *rows) / 3
                     for rows in (first, second))))
  assert flops.of_step(
      model, (response[:0],) * 3, [], epochs=1, passes=[(model, 3)]) == dict(
          sample=0, update=0)
