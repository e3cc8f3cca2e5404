"""Tests of the cost estimate against XLA's own count and sums by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.launch.aot import chips, cost, hlo, operations
from tests.helpers import devices


def compiled(f, *args):
  return jax.jit(f).lower(*args).compile()


def estimate(program, turns=None, chances=None):
  return cost.estimate(
      program.as_text(), slice_of((0, 0, 0)), turns or {}, chances or {})


def test_products_in_loops_are_counted_as_often_as_they_run():
  x, w = jnp.ones((32, 64)), jnp.ones((5, 64, 64))

  def f(x, w, n):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)
    with jax.named_scope('steps'):
      return jax.lax.fori_loop(0, n, lambda i, x: jnp.tanh(x @ w[0]), x)

  program = compiled(f, x, w, 1)
  once = 2 * 32 * 64 * 64
  assert estimate(program, {'steps': 3}).flops == (5 + 3) * once
  unknown = estimate(program)
  assert unknown.flops == (5 + 1) * once
  assert [cost.loop_name(scope) for scope in unknown.unknown] == ['steps']


@pytest.mark.parametrize('stride, padding, spread, gap', [
    (1, (0, 0), 1, 1), (2, (3, 1), 1, 1), (1, (2, 2), 3, 1), (3, (1, 0), 2, 2)])
def test_convolutions_count_products_with_what_is_there(
    stride, padding, spread, gap):
  image, kernel = jnp.ones((2, 9, 3)), jnp.ones((4, 3, 5))

  def f(image, kernel):
    return jax.lax.conv_general_dilated(
        image, kernel, (stride,), [padding], (spread,), (gap,),
        dimension_numbers=('NWC', 'WIO', 'NWC'))

  program = jax.jit(f).lower(image, kernel)
  assert estimate(program.compile()).flops == (
      program.compile().cost_analysis()['flops'])


def test_a_branch_counts_as_often_as_it_is_taken():
  def f(x, yes):
    with jax.named_scope('seldom'):
      return jax.lax.cond(yes, lambda x: x @ x, lambda x: x + 1, x)

  program = compiled(f, jnp.ones((16, 16)), True)
  assert estimate(program).flops == 2 * 16 ** 3
  assert estimate(program, chances={'seldom': 0.25}).flops == 2 * 16 ** 3 / 4


def test_shares_of_the_branches_of_a_conditional():
  """A tuple counts for the conditional itself, not for one inside it."""
  x = jnp.ones((16, 16))

  def f(x, i):
    inner = lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, jnp.sin, x)
    with jax.named_scope('length'):
      return jax.lax.switch(
          i, [jnp.cos, lambda x: x @ x @ x, lambda x: inner(x) @ x @ x @ x], x)

  program, once = compiled(f, x, 1), 2 * 16 ** 3
  assert estimate(program).flops == 4 * once
  shares = {'length': (0.5, 0.5, 0.0)}
  assert estimate(program, chances=shares).flops == once
  shares = {'length': (0.0, 0.0, 1.0)}
  assert estimate(program, chances=shares).flops == 4 * once


def test_a_branch_that_is_never_taken_leaves_no_trace():
  def f(x, yes, n):
    def dear(x):
      with jax.named_scope('steps'):
        return jax.lax.fori_loop(0, n, lambda i, x: jnp.tanh(x @ x), x)

    with jax.named_scope('never'):
      return jax.lax.cond(yes, dear, lambda x: x + 1, x)

  program = compiled(f, jnp.ones((16, 16)), True, 3)
  assert len(estimate(program).unknown) == 1
  found = estimate(program, chances={'never': 0.0})
  assert found.unknown == [] and found.flops == 0
  total = cost.Cost()
  total.add(cost.estimate(text(GATHER), LINE_OF_4, {}, {}), 0.0)
  assert total == cost.Cost()


def test_what_is_sliced_or_updated_in_place_counts_as_its_part():
  def f(cache, new, n):
    def body(i, cache):
      row = jax.lax.dynamic_index_in_dim(cache, i, 0) + new
      return jax.lax.dynamic_update_slice(cache, jnp.sin(row), (i, 0))

    with jax.named_scope('steps'):
      return jax.lax.fori_loop(0, n, body, cache)

  program = jax.jit(f, donate_argnums=0).lower(
      jnp.ones((64, 4096)), jnp.ones((1, 4096)), 2).compile()
  row = 4096 * 4
  step = estimate(program, {'steps': 11}).bytes - estimate(
      program, {'steps': 10}).bytes
  # A row of the cache and the new one are read, a row is written.
  assert 3 * row <= step < 4 * row


def text(lines, inner=''):
  return f'{inner}\nENTRY %main (p: f32[4]) -> f32[4] {{\n{lines}\n}}\n'


def slice_of(*coords):
  """Makes a machine of v5e chips at given places, on one axis of the mesh."""
  where = np.empty(len(coords), object)
  where[:] = [types.SimpleNamespace(coords=c) for c in coords]
  return cost.Machine(chips.CHIPS['v5e'], types.SimpleNamespace(
      devices=where, axis_names=('fsdp',)))


LINE_OF_4 = slice_of((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0))
GATHER = (
    '  %p = f32[1000000]{0} parameter(0)\n'
    '  %g = f32[4000000]{0} all-gather(%p), replica_groups=[1,4]<=[4], '
    'dimensions={0}\n'
    '  ROOT %t = f32[4000000]{0} tanh(%g)')


def test_a_collective_that_is_waited_for_and_one_that_goes_on_beside():
  # 3/4 of 16 MB arrive over one link of 45 GB/s, 3 hops of a microsecond.
  collective = 12e6 / 45e9 + 3e-6
  tanh = 32e6 / 819e9
  waited = cost.estimate(text(GATHER), LINE_OF_4, {}, {})
  assert waited.interconnect == pytest.approx(collective)
  assert waited.seconds == pytest.approx(collective + tanh)
  assert waited.bound == 'interconnect'
  beside = GATHER.replace(
      '%g = f32[4000000]{0} all-gather(%p)',
      '%s = (f32[1000000]{0}, f32[4000000]{0}) all-gather-start(%p)').replace(
          '  ROOT', '  %g = f32[4000000]{0} all-gather-done(%s)\n  ROOT')
  hidden = cost.estimate(text(beside), LINE_OF_4, {}, {})
  assert hidden.interconnect == pytest.approx(collective)
  assert hidden.seconds == pytest.approx(max(collective, tanh))
  found, = hidden.collectives
  assert (found.kind, found.axes, found.bytes, found.waited) == (
      'all-gather', ('fsdp',), 16_000_000, False)


def fused(name, op, result, more):
  """Makes a computation with a collective; all of them share one channel."""
  return (
      f'%{name} (a: f32[1000000]) -> f32[4000000] {{\n'
      '  %a = f32[1000000]{0} parameter(0)\n'
      f'  %c = f32[{result}]{{0}} {op}(%a), channel_id=1, '
      f'replica_groups=[1,4]<=[4]{more}\n'
      f'  ROOT %r = f32[4000000]{{0}} custom-call(%c), '
      f'custom_call_target="{name}"\n}}\n')


def test_collectives_inside_of_fusions_that_share_a_channel():
  chain = ', frontend_attributes={chain_id="0"}'
  inner = ''.join([
      fused('AsyncCollectiveStart', 'all-gather', 4000000, chain),
      fused('Carry', 'all-gather', 4000000, chain),
      fused('AsyncCollectiveDone', 'all-gather', 4000000, chain),
      fused('Other', 'all-reduce', 1000000, '')])
  found = cost.estimate(text(
      '  %p = f32[1000000]{0} parameter(0)\n'
      '  %s = f32[4000000]{0} fusion(%p), calls=%AsyncCollectiveStart\n'
      '  %b = f32[4000000]{0} fusion(%p), calls=%Carry\n'
      '  %d = f32[4000000]{0} fusion(%p), calls=%AsyncCollectiveDone\n'
      '  %o = f32[250000]{0} fusion(%p), calls=%Other\n'
      '  ROOT %t = f32[4000000]{0} tanh(%d)', inner), LINE_OF_4, {}, {})
  # The chain's parts are one collective. Of the other only a quarter comes out.
  assert [(c.kind, c.bytes, c.waited) for c in found.collectives] == [
      ('reduce-scatter', 4_000_000, True), ('all-gather', 16_000_000, False)]
  assert [c.seconds for c in found.collectives] == pytest.approx([
      3e6 / 45e9 + 3e-6, 12e6 / 45e9 + 3e-6])


@pytest.mark.parametrize('kind, share', [
    ('all-reduce', 2 * 3 / 4), ('reduce-scatter', 3 / 4),
    # Two send half of theirs over the link in the middle.
    ('all-to-all', 2 * 1 / 2), ('collective-permute', 1)])
def test_time_of_each_kind_of_collective(kind, share):
  groups = ('source_target_pairs={{0,1},{1,2},{2,3},{3,0}}'
            if kind == 'collective-permute' else 'replica_groups={{0,1,2,3}}')
  lines = (f'  %p = f32[1000000]{{0}} parameter(0)\n'
           f'  ROOT %g = f32[1000000]{{0}} {kind}(%p), {groups}')
  rounds = 2 if kind == 'all-reduce' else 1
  assert cost.estimate(text(lines), LINE_OF_4, {}, {}).interconnect == (
      pytest.approx(share * 4e6 / 45e9 + rounds * 3e-6))


def test_a_shift_around_a_ring_uses_one_direction():
  ring = slice_of(*[(i, 0, 0) for i in range(16)])
  pairs = ','.join(f'{{{i},{(i + 1) % 16}}}' for i in range(16))
  lines = ('  %p = f32[1000000]{0} parameter(0)\n'
           '  ROOT %g = f32[1000000]{0} collective-permute(%p), '
           f'source_target_pairs={{{pairs}}}')
  assert cost.estimate(text(lines), ring, {}, {}).interconnect == (
      pytest.approx(4e6 / 45e9 + 1e-6))


def test_an_all_to_all_is_bound_by_the_middle_of_the_slice():
  # 8 devices send half of their 4 MB to the other half of a square over 4
  # links; 3 hops along each side.
  square = slice_of(*[(i, j, 0) for i in range(4) for j in range(4)])
  lines = ('  %p = f32[1000000]{0} parameter(0)\n  ROOT %g = f32[1000000]{0} '
           'all-to-all(%p), replica_groups=[1,16]<=[16]')
  assert cost.estimate(text(lines), square, {}, {}).interconnect == (
      pytest.approx(8 * 2e6 / (4 * 45e9) + 6e-6))


@pytest.mark.parametrize('groups, want', [
    ('replica_groups={{0,2},{1,3}}', [0, 2]),
    ('replica_groups=[2,4]<=[8]', [0, 1, 2, 3]),
    ('replica_groups=[4,2]<=[2,2,2]T(1,0,2)', [0, 1]),
    ('replica_groups=[2,4]<=[4,2]T(1,0)', [0, 2, 4, 6]),
    ("replica_groups=mesh['a'=2,'b'=4] {'b'}, x=1", [0, 1, 2, 3]),
    ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}",
     [0, 4]),
    ('replica_groups={}, x=1', [0, 1, 2, 3, 4, 5, 6, 7]),
    ('source_target_pairs={{0,0},{1,3},{3,5},{5,1}}, x=1', [1, 3, 5])])
def test_who_takes_part(groups, want):
  assert cost.group(collective(groups), 8) == want


def collective(groups):
  lines = f'  ROOT %g = f32[8]{{0}} all-reduce(%p), {groups}'
  return hlo.parse(text(lines)).computations['main'].instructions['g']


@pytest.mark.parametrize('groups, devices', [
    ('replica_groups=[2@4], x=1', 8), ('replica_groups={}', None), ('x=1', 8)])
def test_a_group_that_cannot_be_read(groups, devices):
  with pytest.raises(ValueError, match='cannot be read') as error:
    cost.group(collective(groups), devices)
  assert groups in str(error.value)


def test_memory_traffic_leaves_out_what_lies_on_the_chip():
  lines = (
      '  %p = f32[1000000]{0} parameter(0)\n'
      '  %s = (f32[1000000]{0:S(1)}, f32[1000000]{0}, u32[]) copy-start(%p)\n'
      '  %c = f32[1000000]{0:S(1)} copy-done(%s)\n'
      '  %t = f32[1000000]{0:S(1)} tanh(%c)\n'
      '  ROOT %u = f32[1000000]{0} tanh(%t)')
  found = cost.estimate(text(lines), LINE_OF_4, {}, {})
  assert found.bytes == 8e6  # read once, written once
  # The copy in hides behind the operation that writes.
  assert found.seconds == pytest.approx(8e6 / 819e9)


@pytest.mark.parametrize('size, seconds', [
    # Few multiply-adds for each number, and many.
    (64, 3 * 64 * 64 * 2 / 819e9), (4096, 2 * 4096 ** 3 / 197e12)])
def test_an_operation_takes_as_long_as_its_slower_side(size, seconds):
  shape = f'bf16[{size},{size}]{{1,0}}'
  found = cost.estimate(text(
      f'  %p = {shape} parameter(0)\n  %q = {shape} parameter(1)\n'
      f'  ROOT %d = {shape} dot(%p, %q), lhs_contracting_dims={{1}}, '
      'rhs_contracting_dims={0}'), LINE_OF_4, {}, {})
  assert found.seconds == pytest.approx(seconds)
  assert found.seconds == max(found.compute, found.memory)


def test_slices_of_one_array_are_read_once_at_most():
  inner = (
      '%take (a: f32[8]) -> f32[6] {\n  %a = f32[8] parameter(0)\n' + ''.join(
          f'  %s{i} = f32[6] slice(%a), slice={{[{i}:{i + 6}]}}\n'
          for i in range(3)) + '  %t = f32[6] add(%s0, %s1)\n'
      '  ROOT %u = f32[6] add(%t, %s2)\n}\n')
  found = cost.estimate(text(
      '  %p = f32[8]{0} parameter(0)\n'
      '  ROOT %f = f32[6]{0} fusion(%p), kind=kLoop, calls=%take', inner),
                        LINE_OF_4, {}, {})
  assert found.bytes == 8 * 4 + 6 * 4


@pytest.mark.parametrize('line, reads, writes', [
    # A copy's result is (to, from, context), a slice's (from, to, context).
    ('(f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(%p)', 32, 0),
    ('(f32[8]{0}, f32[8]{0:S(1)}, u32[]{:S(2)}) copy-start(%p)', 0, 32),
    ('((f32[8]{0}), f32[2]{0:S(1)}, s32[]{:S(2)}) slice-start(%p)', 8, 0),
    ('((f32[8]{0:S(1)}), f32[2]{0}, s32[]{:S(2)}) slice-start(%p)', 0, 8)])
def test_what_is_started_ahead_reads_and_writes(line, reads, writes):
  module = hlo.parse(text(f'  ROOT %s = {line}'))
  main = module.computations['main']
  x = main.instructions['s']
  assert operations.written(module, main, x) == writes
  assert operations.traffic(module, main, x) == reads + writes


def collectives():
  """Returns kind, axes and bytes of a program's collectives on 8 devices."""
  from jax.sharding import PartitionSpec as P

  from jaxrl_llm import sharding
  mesh = sharding.make_mesh(2, 2, 2)

  def f(x):
    x = jax.lax.psum(x, ('data', 'tensor'))
    return jax.lax.all_gather(x, 'fsdp')

  program = jax.jit(jax.shard_map(
      f, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)).lower(
          jnp.ones(6)).compile()
  module = hlo.parse(program.as_text())
  found = []
  for _, x in hlo.walk(module):
    if x.op in cost.COLLECTIVES:
      where = np.unravel_index(cost.group(x), mesh.devices.shape)
      found.append([x.op, [
          axis for axis, index in zip(mesh.axis_names, where)
          if len(np.unique(index)) > 1]])
  return sorted(found)


def test_axes_of_real_collectives():
  assert devices.run(collectives) == [
      ['all-gather', ['fsdp']], ['all-reduce', ['data', 'tensor']]]


def test_kernels_of_attention_count_the_blocks_they_visit():
  # 2 rows of 3 heads of 128, 1024 tokens, blocks of 256 queries and 512 keys:
  # the queries of a block see 512, 512, 1024 and 1024 keys.
  pairs = 256 * (512 + 512 + 1024 + 1024)
  for name, kind, fused, products in (
      ('fwd_residuals', '', 'true', 2), ('dkv', '_dkv', 'true', 5),
      ('dkv', '_dkv', 'false', 4), ('dq', '_dq', 'false', 3)):
    lines = (
        '  %m = s8[3,4,2]{2,1,0} parameter(0)\n'
        '  %q = bf16[2,3,1024,128]{3,2,1,0} parameter(1)\n'
        f'  ROOT %splash_mha_{name}.1 = bf16[2,3,1024,128] custom-call(%m, %q)'
        ', custom_call_target="tpu_custom_call", frontend_attributes={'
        'kernel_metadata={\n"xprof_metadata":"{'
        rf'\"block_q{kind}\": 256, \"block_kv{kind}\": 512, '
        rf'\"use_fused_bwd_kernel\": {fused}}}"' '\n}}')
    found = cost.estimate(text(lines), LINE_OF_4, {}, {})
    assert found.flops == 2 * products * 2 * 3 * pairs * 128
    # q is read, as much is written; the mask is small.
    assert found.bytes == 2 * (2 * 3 * 1024 * 128 * 2) + 24


@pytest.mark.parametrize('kind, share', [
    # Each of 4 slices sends its part to the 3 others; an all-reduce does so
    # with a quarter of its sums twice.
    ('ALL_REDUCE', 3 * 2 / 4), ('ALL_GATHER', 3), ('REDUCE_SCATTER', 3 / 4)])
def test_messages_between_slices(kind, share):
  program = text(
      '%x = f32[1024] parameter(0)\n'
      '%t = token[] after-all()\n'
      '%s = (f32[1024], u32[], token[]) send(%x, %t), channel_id=2, '
      'is_host_transfer=true, frontend_attributes={'
      f'_xla_megascale_transfer_type="{kind}"}}')
  mesh = types.SimpleNamespace(
      devices=np.array([
          types.SimpleNamespace(coords=(0, 0, 0), slice_index=i)
          for i in range(4)]), shape=dict(data=4, fsdp=1, tensor=1))
  found = cost.estimate(
      program, cost.Machine(chips.CHIPS['v5e'], mesh), {}, {})
  assert found.seconds == pytest.approx(share * 4096 / 3.125e9)
  sent, = found.collectives
  assert (sent.kind, sent.axes, sent.bytes) == (
      kind.lower().replace('_', '-'), ('data',), 4096)


@pytest.mark.parametrize('name, result, visits, tiles', [
    # 4096 rows in tiles of 128 or 512; each of 32 experts begins in a tile.
    ('ragged-dot-none.1', 'bf16[4096,768]', 32 + 31, 32),
    ('tgmm.1', 'f32[32,2048,768]', 8 + 31, 8)])
def test_kernels_of_experts_count_the_tiles_they_visit(
    name, result, visits, tiles):
  other = 'bf16[32,2048,768]' if name[0] == 'r' else 'bf16[4096,768]'
  call = (
      '  %n = s32[1]{0} parameter(0)\n  %e = s32[33]{0} parameter(1)\n'
      f'  %v = s32[{visits}]{{0}} parameter(2)\n'
      '  %x = bf16[4096,2048]{1,0} parameter(3)\n'
      f'  %w = {other} parameter(4)\n'
      f'  ROOT %{name} = {result} custom-call(%n, %e, %v, %v, %n, %x, %w), '
      'custom_call_target="tpu_custom_call"')
  found = cost.estimate(text(call), LINE_OF_4, {}, {})
  assert found.flops == pytest.approx(
      2 * 4096 * 2048 * 768 * visits / tiles)


def test_what_prepares_a_product_of_experts_is_no_arithmetic():
  found = cost.estimate(text(
      '  %s = s32[32]{0} parameter(0)\n'
      '  ROOT %ragged-dot-metadata = (s32[33], s32[63]) custom-call(%s), '
      'custom_call_target="tpu_custom_call"'), LINE_OF_4, {}, {})
  assert found.flops == 0
