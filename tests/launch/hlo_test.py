"""Reading compiled programs: shapes, loops and what calls what."""

import jax
import jax.numpy as jnp
import pytest

from launch.aot import cost, hlo

X = jnp.ones((8, 8))


def module(f, *args):
  return hlo.parse(jax.jit(f).lower(*args).compile().as_text())


def loops(f, *args):
  """Scope name to turns, of every loop of a compiled function."""
  found = module(f, *args)
  turns = hlo.Loops(found)
  return {
      cost.loop_name(x.scope): turns.turns(computation, x)
      for computation, x in hlo.walk(found) if x.op == 'while'}


def loop(name, n, f, x, start=0):
  with jax.named_scope(name):
    return jax.lax.fori_loop(start, n, lambda i, x: f(x), x)


def test_turns_of_loops_within_loops():
  def f(x, n):
    step = lambda x: jnp.tanh(x @ x)
    x = loop('outer', 5, lambda x: loop('inner', 7, step, x, start=4), x)
    return loop('traced', n, step, x)

  assert loops(f, X, 3) == {'outer': 5, 'inner': 3, 'traced': None}


def test_a_limit_that_an_outer_loop_only_carries_along():
  def f(x, n):
    def body(carry):
      i, limit, x = carry
      x = loop('inner', limit, lambda x: jnp.tanh(x @ x), x)
      return i + 1, limit, x

    with jax.named_scope('outer'):
      return jax.lax.while_loop(
          lambda c: c[0] < n, body, (0, jnp.int32(6), x))

  assert loops(f, X, 3) == {'outer': None, 'inner': 6}


def test_a_limit_that_changes_is_not_known():
  def f(x):
    def body(i, carry):
      limit, x = carry
      return limit + 1, loop('inner', limit, lambda x: jnp.tanh(x @ x), x)

    with jax.named_scope('outer'):
      return jax.lax.fori_loop(0, 4, body, (jnp.int32(1), x))

  assert loops(f, X) == {'outer': 4, 'inner': None}


LINE = (
    '  ROOT %slice-start.1 = ((bf16[26,4,256]{2,1,0:T(8,128)(2,1)}), '
    'bf16[26,4,72]{0,1,2:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) '
    'slice-start(%a.b), slice={[0:26], [0:4], [0:72]}, '
    'metadata={op_name="jit(f)/decode/while" id=3}, calls=%inside.2')


def test_a_line_of_a_program_for_tpus():
  text = f'ENTRY %main (a.b: bf16[26,4,256]) -> bf16[2] {{\n{LINE}\n}}\n'
  found = hlo.parse(text)
  computation = found.computations[found.entry]
  x = computation.instructions[computation.root]
  assert x.op == 'slice-start' and x.operands == ('a.b',)
  assert x.arrays == (
      hlo.Array('bf16', (26, 4, 256)), hlo.Array('bf16', (26, 4, 72), True),
      hlo.Array('s32', (), True))
  assert x.bytes == 26 * 4 * 256 * 2  # the second lies on the chip
  assert x.scope == 'jit(f)/decode/while' and x.calls == {'calls': 'inside.2'}
  assert x.attribute('slice') == '[0:26], [0:4], [0:72]'


def test_text_of_something_else():
  with pytest.raises(ValueError, match='no text of a compiled program'):
    hlo.parse('module @jit_f {\n}')
