"""Tests of the phases of compiles, and of their count."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl_llm.base import phases
from jaxrl_llm.monitoring import compiles


@pytest.fixture(name='seen')
def fixture_seen():
  """Names of the phases at each event that begins, as JAX compiles."""
  seen = []
  compiles.expect(())  # what earlier tests of this process announced

  def listen(event, _, **__):
    if 'compile' in event:
      seen.append([phase.name for phase in phases.running()])

  jax.monitoring.register_scalar_listener(listen)
  yield seen
  jax.monitoring.unregister_scalar_listener(listen)
  compiles.expect(())


def program(name):
  """Returns a new function of this name, with a constant from a program."""
  def function(x):
    with jax.ensure_compile_time_eval():
      constant = jax.jit(lambda x: x + 2)(1)
    return x + constant

  function.__name__ = name
  return jax.jit(function)


def test_a_program_is_named_while_it_is_traced_and_compiled(seen):
  with phases.phase('step'):
    program('_update')(jnp.ones(3))
    assert [phase.name for phase in phases.running()] == ['step']
  ours = [names[1] for names in seen if 'update' in names[-1]]
  # While its constant is compiled, it is still traced.
  assert [*dict.fromkeys(ours)] == [
      'tracing update', 'lowering update', 'compiling update']
  assert all(len(names) == 2 and names[0] == 'step' for names in seen)


def test_large_programs_are_numbered_in_their_order(seen):
  compiles.expect(['update', 'sharded_generate', 'score', 'update'])
  x = jnp.ones(3)
  del seen[:]
  with phases.phase('run'):
    # A warm start that comes from a cache has no update; `other` is small.
    for name in ('other', 'sharded_generate', 'update'):
      program(name)(x)
  assert [names[-1] for names in seen if names[-1].startswith('comp')] == [
      'compiling other', 'compiling sampler (2 of 4)',
      'compiling update (4 of 4)']


def test_a_program_that_fails_ends_its_phase(seen):
  def broken(x):
    raise ValueError

  with phases.phase('run'):
    with pytest.raises(ValueError):
      jax.jit(broken)(1.0)
    assert [phase.name for phase in phases.running()] == ['run']
    program('next')(jnp.ones(3))
    assert [phase.name for phase in phases.running()] == ['run']
  assert ['run', 'tracing broken'] in seen
  assert ['run', 'compiling next'] in seen


def test_compiles_are_no_part_of_the_pace():
  with phases.phase('run') as run:
    program('slow')(jnp.ones(3))
    assert 0 < run._left_out <= run.passed()
