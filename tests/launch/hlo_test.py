"""Tests of the parser of compiled programs: shapes, loops and calls."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl_llm.launch.aot import cost, hlo

X = jnp.ones((8, 8))


def loops(f, *args, noted=False):
  """Returns scope name to iterations, of every loop of a compiled function.

  Removes the compiler's annotation, which programs for TPUs do not have.
  """
  text = jax.jit(f).lower(*args).compile().as_text()
  assert 'known_trip_count' in text or not noted
  found = hlo.parse(text if noted else text.replace('known_trip_count', ''))
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


@pytest.mark.parametrize('step, want', [
    (lambda i, x, n: i + 1, 12), (lambda i, x, n: i + 3, 4),
    (lambda i, x, n: i + 5, 3), (lambda i, x, n: i + n, None),
    (lambda i, x, n: i + 1 + (x[0, 0] > 0).astype(int), None)])
def test_a_loop_that_counts_in_steps(step, want):
  def f(x, n):
    with jax.named_scope('steps'):
      return jax.lax.while_loop(
          lambda c: c[0] < 12,
          lambda c: (step(c[0], c[1], n), jnp.tanh(c[1] @ c[1])), (0, x))

  assert loops(f, X, 3) == {'steps': want}


def test_turns_that_the_compiler_noted():
  f = lambda x: loop('steps', 7, lambda x: jnp.tanh(x @ x), x)
  assert loops(f, X, noted=True) == loops(f, X) == {'steps': 7}
  # Of a loop that nothing else tells about.
  text = LOOP.format(add='%n')
  assert turns_of(text) == [None]
  noted = ', backend_config={"known_trip_count":{"n":"5"}}'
  assert turns_of(text.replace('body=%body', f'body=%body{noted}')) == [5]


LOOP = '''
%add (a: s32[], b: s32[]) -> s32[] {{
  %b = s32[] parameter(1)
  %a = s32[] parameter(0)
  ROOT %sum = s32[] add(%a, %b)
}}
%body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %p = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] get-tuple-element(%p), index=1
  %four = s32[] constant(4)
  %next = s32[] fusion(%i, {add}), calls=%add
  ROOT %r = (s32[], s32[]) tuple(%next, %next)
}}
%condition (q: (s32[], s32[])) -> pred[] {{
  %q = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant(12)
  ROOT %c = pred[] compare(%i, %limit), direction=LT
}}
ENTRY %main (x: s32[]) -> (s32[], s32[]) {{
  %x = s32[] parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], s32[]) tuple(%zero, %x)
  ROOT %w = (s32[], s32[]) while(%t), condition=%condition, body=%body
}}
'''


def turns_of(text):
  found = hlo.parse(text)
  return [hlo.Loops(found).turns(computation, x)
          for computation, x in hlo.walk(found) if x.op == 'while']


def test_a_loop_that_does_not_count():
  text = LOOP.format(add='%n')
  endless = 'ROOT %c = pred[] constant(true)'
  assert turns_of(text.replace(
      'ROOT %c = pred[] compare(%i, %limit), direction=LT', endless)) == [None]
  for step in ('%four', '%n', '%p'):
    assert turns_of(text.replace('tuple(%next,', f'tuple({step},')) == [None]


def test_a_step_that_a_fusion_is_given():
  assert turns_of(LOOP.format(add='%four')) == [3]
  assert turns_of(LOOP.format(add='%n')) == [None]
  # The counter is what something else makes of it.
  assert turns_of(LOOP.format(add='%four').replace(
      '%i = s32[] get-tuple-element(%p)', '%o = (s32[], s32[]) custom-call(%p)'
      '\n  %i = s32[] get-tuple-element(%o)')) == [None]


def test_a_limit_is_known_if_the_loop_itself_leaves_it_alone():
  text = LOOP.format(add='%four').replace(
      '%limit = s32[] constant(12)',
      '%limit = s32[] get-tuple-element(%q), index=1').replace(
          '%t = (s32[], s32[]) tuple(%zero, %x)',
          '%twelve = s32[] constant(12)\n'
          '  %t = (s32[], s32[]) tuple(%zero, %twelve)')
  assert turns_of(text.replace('tuple(%next, %next)', 'tuple(%next, %n)')) == [
      3]
  assert turns_of(text) == [None]


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


def test_an_attribute_of_many_lines():
  found = hlo.parse(
      'ENTRY %main (p: f32[4]) -> f32[4] {\n  %p = f32[4] parameter(0)\n'
      '  %k = f32[4] custom-call(%p), frontend_attributes={metadata={\n'
      '"a": {\n"}{": "\\"{", x = s32[] y()\n}\n}}\n'
      '  ROOT %t = f32[4] tanh(%k)\n}\n').computations['main']
  assert [*found.instructions] == ['p', 'k', 't'] and found.root == 't'
  assert found.instructions['k'].text.endswith('\n}\n}}')


def test_a_computation_of_another_thread():
  found = hlo.parse(
      '%sparse (p: f32[4]) -> f32[4] {\n  ROOT %p = f32[4] parameter(0)\n'
      '}, execution_thread="sparsecore"\n\n'
      'ENTRY %main (q: f32[4]) -> f32[4] {\n  ROOT %q = f32[4] parameter(0)\n'
      '}\n')
  assert {n: [*c.instructions] for n, c in found.computations.items()} == {
      'sparse': ['p'], 'main': ['q']}


def test_a_computation_without_an_end():
  with pytest.raises(ValueError, match='no end of the computation main'):
    hlo.parse('ENTRY %main (q: f32[4]) -> f32[4] {\n  %q = f32[4] tanh(%q)\n')


def test_text_of_something_else():
  with pytest.raises(ValueError, match='not the text of a compiled program'):
    hlo.parse('module @jit_f {\n}')
