"""Splash attention, JAX's Pallas kernels for TPUs, over the rows of a batch.

In the forward and the backward pass only one block of scores exists at a time,
on chip. Blocks that the mask hides are skipped. XLA's partitioner cannot split
a kernel, so each device runs it on its own rows and heads.
"""

import functools
from typing import Optional

import jax
from jax.experimental.pallas.ops.tpu import splash_attention as lib
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

# A block has at most BLOCK queries, a multiple of LANES. With a head_dim of 256
# the kernels' blocks still fit into their limit of 16 MB of on-chip memory.
BLOCK = 512
LANES = 128

# The fused backward kernel avoids a second pass over the scores, but writes a
# partial gradient of the queries for each block of keys. It is used for at most
# PARTIALS blocks: these take about as much memory as an MLP's hidden units.
PARTIALS = 8


@functools.lru_cache
def _kernel(heads, length, block, keys, window, cap, name, interpret):
  """Makes the kernel of one row.

  Its arguments are q [heads, length, h], k and v [groups, length, h].

  Args:
    heads: query heads.
    length: tokens of the row.
    block: queries of a block, and keys of a block in the forward pass.
    keys: keys of a block in the backward pass, a multiple of `block`.
    window: positions a query may look back, itself included; None for all.
    cap: soft cap of the scores, or None.
    name: of the output and the log-sum-exp, for `jax.checkpoint`.
    interpret: whether to run in Pallas's interpreter.
  """
  shape = (length, length)
  mask = lib.CausalMask(shape) if window is None else (
      lib.LocalMask(shape, (window - 1, 0), 0))
  fused = length <= keys * PARTIALS
  sizes = lib.BlockSizes(
      block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=keys,
      block_kv_dkv_compute=block, block_q_dq=None if fused else block,
      block_kv_dq=None if fused else block, use_fused_bwd_kernel=fused)
  # The kernel is cached for other traces, so it must hold no tracer of this.
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
    window: Optional[int],
    windowed: jax.Array | bool,
    cap: Optional[float],
    name: str,
    interpret: bool,
) -> jax.Array:
  """Computes causal grouped-query attention within each row.

  Where the mesh axes 'fsdp' and 'tensor' are automatic, rows are split over
  'fsdp' and heads over 'tensor'.

  Args:
    q: [B, S, H, h] queries, already scaled: the kernel has no factor; any h.
    k: [B, S, KV, h] keys; KV divides H.
    v: [B, S, KV, h] values.
    window: positions a query may look back, itself included; None for all.
    windowed: [] bool, whether to apply the window, if there is one.
    cap: soft cap of the scores, or None.
    name: name of the output and the log-sum-exp for `jax.checkpoint`. The
      backward pass needs only these two and q, k and v.
    interpret: whether to run in Pallas's interpreter, on any device.

  Returns:
    [B, S, H, h], in q's type.
  """
  s, h = q.shape[1], q.shape[3]
  blocks = -(-s // BLOCK)
  block = -(-s // (blocks * LANES)) * LANES
  length = blocks * block
  keys = block * 2 if blocks % 2 == 0 and h * q.dtype.itemsize <= 512 else block

  # Padding follows all real positions, so the causal mask hides it.
  q, k, v = (jnp.pad(x, ((0, 0), (0, length - s), (0, 0), (0, 0)))
             for x in (q, k, v))

  def local(q, k, v, windowed):
    def run(window):
      return jax.vmap(_kernel(
          q.shape[1], length, block, keys, window, cap, name, interpret))

    if window is None:
      return run(None)(q, k, v)
    with jax.named_scope('windowed'):
      return jax.lax.cond(windowed, run(window), run(None), q, k, v)

  free = {*jax.sharding.get_abstract_mesh().auto_axes} & {'fsdp', 'tensor'}
  if free:
    row, head = (axis if axis in free else None for axis in ('fsdp', 'tensor'))
    part = P(row, head)
    local = jax.shard_map(
        local, axis_names=free, check_vma=False,
        in_specs=(part, part, part, P()), out_specs=part)
  out = local(
      *(x.swapaxes(1, 2) for x in (q, k, v)), jnp.asarray(windowed))
  return out[:, :, :s].swapaxes(1, 2)
