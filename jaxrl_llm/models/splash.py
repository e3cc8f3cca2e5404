"""Splash attention: JAX's Pallas kernels for TPUs, over the rows of a batch.

The scores exist a block at a time, on chip, in the forward and in the backward
pass, and blocks that the mask hides are skipped. A kernel cannot be cut up by
XLA's partitioner: each device runs it on its own rows and heads.
"""

import functools
from typing import Optional

import jax
from jax.experimental.pallas.ops.tpu import splash_attention as lib
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np

# Most queries of a block, and what a block is a multiple of. With heads of 256
# the kernels' blocks fit into the 16 MB of on-chip memory that they may have.
BLOCK = 512
LANES = 128

# The fused backward kernel spares a second pass over the scores, but writes a
# partial gradient of the queries for each block of keys. So many at most: they
# take about as much memory as the hidden units of an MLP.
PARTIALS = 8


@functools.lru_cache
def _kernel(
    heads, length, block, keys, fused, window, cap, name, interpret):
  """The kernel of one row: q [heads, length, h], k and v [groups, length, h].

  Args:
    heads: query heads.
    length: tokens of the row.
    block: of queries, and of keys in the forward pass.
    keys: of a block in the backward pass, a multiple of block.
    fused: whether backward is one kernel.
    window: see `attend`; None is all.
    cap: see `attend`.
    name: see `attend`.
    interpret: see `attend`.
  """
  shape = (length, length)
  mask = lib.CausalMask(shape) if window is None else (
      lib.LocalMask(shape, (window - 1, 0), 0))
  sizes = lib.BlockSizes(
      block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=keys,
      block_kv_dkv_compute=block, block_q_dq=None if fused else block,
      block_kv_dq=None if fused else block, use_fused_bwd_kernel=fused)
  # It is kept for other traces, so no array of it may belong to this one.
  with jax.ensure_compile_time_eval():
    kernel = lib.make_splash_mha(
        lib.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1,
        q_seq_shards=1, attn_logits_soft_cap=cap,
        residual_checkpoint_name=name, interpret=interpret)
    return jax.tree.map(np.asarray, kernel)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    window: Optional[int],
    windowed: jax.Array | bool,
    cap: Optional[float],
    name: str,
    interpret: bool,
) -> jax.Array:
  """Causal grouped-query attention within each row.

  Where the mesh's axes 'fsdp' and 'tensor' are the partitioner's, rows are
  split over the first and heads over the second.

  Args:
    q: [B, S, H, h] queries; any h.
    k: [B, S, KV, h] keys; KV divides H.
    v: [B, S, KV, h] values.
    scale: factor of the query-key products.
    window: positions a query may look back, itself included; None is all.
    windowed: [] bool, whether the window holds; without one, ignored.
    cap: soft cap of the scores, or None.
    name: that `jax.checkpoint` knows the output and the log-sum-exp by, all
      that backward needs beside q, k and v.
    interpret: run by Pallas's interpreter, on any device.

  Returns:
    [B, S, H, h], in q's type.
  """
  s, h = q.shape[1], q.shape[3]
  blocks = -(-s // BLOCK)
  block = -(-s // (blocks * LANES)) * LANES
  length = blocks * block
  keys = block * 2 if blocks % 2 == 0 and h * q.dtype.itemsize <= 512 else block
  # The kernel has no scale. A power of two is exact; any other rounds q once
  # more, in 16-bit types, where XLA does not fuse it with the rotary embedding.
  q = (q.astype(jnp.float32) * scale).astype(q.dtype)

  def by_head(x):
    # Padding comes after all that is real, so the causal mask hides it.
    return jnp.pad(
        x.swapaxes(1, 2), ((0, 0), (0, 0), (0, length - s), (0, 0)))

  def local(q, k, v, windowed):
    def run(window):
      return jax.vmap(_kernel(
          q.shape[1], length, block, keys, length <= keys * PARTIALS, window,
          cap, name, interpret))

    if window is None:
      return run(None)(q, k, v)
    return jax.lax.cond(windowed, run(window), run(None), q, k, v)

  mesh = jax.sharding.get_abstract_mesh()
  free = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types)
          if kind == AxisType.Auto} & {'fsdp', 'tensor'}
  if free:
    part = P(*(axis if axis in free else None for axis in ('fsdp', 'tensor')))
    local = jax.shard_map(
        local, axis_names=free, check_vma=False,
        in_specs=(part, part, part, P()), out_specs=part)
  out = local(*map(by_head, (q, k, v)), jnp.asarray(windowed))
  return out[:, :, :s].swapaxes(1, 2)
