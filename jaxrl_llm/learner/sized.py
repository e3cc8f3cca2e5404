"""Programs that are compiled for several sizes of lists, all at once."""

import concurrent.futures
import os
from typing import Any, Callable

import jax

from jaxrl_llm.base import phases
from jaxrl_llm.learner.packing import Plan
from jaxrl_llm.sharding import cpu


class Sized:
  """A jitted program of (a tree, LearnerBatch, Plan, ...).

  The first call with a number of rows, and a kind of arguments, compiles it for
  all sizes of lists that plans of so many rows can have, in threads. Later
  calls compile nothing.
  """

  def __init__(self, program: Any, plans: Callable[[int], list[Plan]]):
    """Wraps a program.

    Args:
      program: from `jax.jit`; kept as an attribute.
      plans: (rows) -> a plan without rows for each size of lists.
    """
    self.program = program
    self._plans = plans
    self._ready = set()
    self.lower = program.lower

  def __call__(self, tree: Any, batch: Any, plan: Plan, *rest: Any) -> Any:
    rows = len(batch.mask)
    # JAX compiles anew for another kind of tree, such as the anchor's.
    kind = rows, jax.tree.structure((tree, batch, rest))
    if kind not in self._ready:
      self._compile(rows, tree, batch, plan, *rest)
      # Compiling leaves gaps into which the program's memory, one piece, does
      # not fit.
      cpu.trim_memory()
      self._ready.add(kind)
    return self.program(tree, batch, plan, *rest)

  def _compile(self, rows, tree, batch, plan, *rest):
    """Compiles the program for all sizes of lists of so many rows."""
    place = getattr(plan.order, 'sharding', None)
    plans = [
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=place), one)
        for one in self._plans(rows)]

    def compile_for(plan):
      self.program.lower(tree, batch, plan, *rest).compile()

    if len(plans) < 2:
      return
    # XLA compiles without Python's lock, so that threads use all cores. What
    # they are doing is shown as a phase of this thread.
    name = getattr(self.program, '__name__', 'program').strip('_<>')
    with phases.phase(
        f'compiling {name}', len(plans), 'sizes', apart=True) as phase, (
            concurrent.futures.ThreadPoolExecutor(
                min(len(plans), os.cpu_count() or 1))) as pool:
      for done in concurrent.futures.as_completed(
          [pool.submit(compile_for, plan) for plan in plans]):
        done.result()
        phase.count()
