"""Tests of programs of several sizes."""

import jax
import jax.numpy as jnp

from jaxrl_llm.base import phases
from jaxrl_llm.learner import packing
from jaxrl_llm.learner.sized import Sized
from jaxrl_llm.sharding import cpu
from tests.helpers import tiny
from tests.learner import update_test


def test_all_sizes_are_compiled_before_the_first_call(monkeypatch):
  """And then the memory that this took is returned, once."""
  trimmed = []
  monkeypatch.setattr(cpu, 'trim_memory', lambda: trimmed.append(len(names)))
  sizes = [packing.Sizes(columns, 3, layout=packing.ChunkLayout(4))
           for columns in (8, 16, 24)]
  plans = lambda rows: [
      packing.nothing(one, rows=rows, shards=1) for one in sizes]

  @jax.jit
  def update(tree, batch, plan):
    return tree + plan.sizes.columns

  program = Sized(update, plans)
  shown = []
  monkeypatch.setattr(phases.Phase, 'count', lambda phase: shown.append(
      (phase.name, phase.total, phase.unit, phase in phases.running())))
  batch, tree = update_test._batch(), jnp.float32(1)
  names = tiny.compiled()
  for plan in plans(len(batch.mask)):
    assert program(tree, batch, plan) == 1 + plan.sizes.columns
    assert names.count('jit(update)') == 3
  assert len(trimmed) == 1 and trimmed[0] >= 3
  assert shown == [('compiling update', 3, 'sizes', True)] * 3
