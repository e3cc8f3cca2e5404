"""Prefill, and the decode step that feeds one token to every slot.

Layers have one of two forms. Stacked: one cache with a leading layer axis,
updated in place, and a loop over the index of the layer; the compiled program
is small. Unrolled: a list of each layer's weights and cache; steps are faster,
because nothing is sliced out of a stack, but compiling takes longer and the
layers' weights are in memory twice.
"""

import dataclasses
import functools
from typing import Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp

from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import FULL, ModelConfig
from jaxrl_llm.ops import quantise
from jaxrl_llm.sampling import kv_cache
from jaxrl_llm.sampling.kv_cache import Cache, CacheColumns

Array = jax.Array
Caches = Cache | list[Cache]


class DecodeParams(NamedTuple):
  """Parameters as decode steps read them.

  Attributes:
    params: the parameter tree.
    layers: `params['layers']`, or the unrolled form of them.
  """
  params: transformer.Params
  layers: transformer.Params | list[transformer.Params]


class Prefixes(NamedTuple):
  """Prefixes of prompts that are not in the slots' caches.

  Attributes:
    caches: their keys and values, in the same form as those of the slots.
    attend: (cache of `caches`, layer, q, window) -> sums of attention over
      them.
  """
  caches: Caches
  attend: Callable[..., kv_cache.Sums]


def split(
    layers: transformer.Params, cfg: ModelConfig,
    transpose: int | None = None) -> list[transformer.Params]:
  """Converts parameters of layers to the unrolled form.

  Args:
    layers: `params['layers']`.
    cfg: the model.
    transpose: elements from which matrices are transposed, for
      `transformer.block`, unless they are quantised; None for no matrix.

  Returns:
    The parameters of each layer.
  """
  # Not of quantised ones: their product is another, and they are small already.
  def layer(run, i):
    own = run.of(layers, lambda stack, places: stack[places[i]])
    if transpose is None:
      return own
    turned = [name for name in transformer.MATRICES if name in own
              and own[name].size >= transpose and f'{name}_scale' not in own]
    return {name: x for name, x in own.items() if name not in turned} | {
        f'{name}_t': own[name].T for name in turned}

  return [layer(run, i) for run in transformer.runs(cfg)
          for i in range(len(run.layers))]


def _split(cache: Cache, cfg: ModelConfig) -> list[Cache]:
  """Converts a stacked cache to the unrolled form."""
  return [jax.tree.map(lambda x: x[i], cache) for i in range(cfg.layers)]


def empty(
    slots: int, columns: int, *, cfg: ModelConfig, unroll: bool,
    kv: str | None = None) -> Caches:
  """Returns caches of zeros for `slots` rows of `columns` positions.

  Args:
    slots: S.
    columns: C.
    cfg: the model.
    unroll: whether to return the unrolled form.
    kv: quantised type, a key of `quantise.TYPES`; None for the compute type.
  """
  lead = (cfg.layers, slots, cfg.kv_heads)
  dtype = cfg.dtype if kv is None else quantise.TYPES[kv]
  scale = None if kv is None else jnp.zeros((*lead, columns), jnp.float32)
  cache = Cache(
      jnp.zeros((*lead, cfg.head_dim, columns), dtype),
      jnp.zeros((*lead, columns, cfg.head_dim), dtype), scale, scale)
  return _split(cache, cfg) if unroll else cache


def prefill(
    params: transformer.Params,
    tokens: Array,
    length: Array,
    *,
    cfg: ModelConfig,
    unroll: bool,
    kv: str | None = None,
    buckets: Sequence[int] = (),
    attention: str = 'xla',
) -> tuple[Caches, Array | None]:
  """Computes the keys and values of whole prompts.

  Args:
    params: the parameter tree.
    tokens: [P, L] int32, right-padded.
    length: [P] int32, tokens of each prompt.
    cfg: the model.
    buckets: lengths below L to compile too; the shortest that holds all these
      prompts is used, and the columns after it are zeros.
    unroll: whether to return the unrolled form.
    kv: quantised type of the caches, a key of `quantise.TYPES`; None for the
      compute type. Prompts attend to keys and values that are not quantised.
    attention: implementation, from `attention.resolve`.

  Returns:
    Caches with P slots and L columns; and the experts of the tokens [P, L, E],
    from `experts.Record`, or None.
  """
  full = tokens.shape[1]
  # All prompts together run at one length, so that one branch runs: prompts of
  # several lengths would be as many passes over the weights.
  lengths = sorted({*buckets, full})

  def keys_and_values(columns):
    _, kept = transformer.forward(
        params, tokens[:, :columns], cfg=cfg,
        execution=dataclasses.replace(
            transformer.PLAIN, attention=attention), keep_kv=True)
    # The order of `Cache`, once for each prompt and not at each step.
    k, v = kept.kv
    k, v = k.transpose(0, 1, 3, 4, 2), v.transpose(0, 1, 3, 2, 4)
    if columns < full:
      rest = (0, full - columns)
      k = jnp.pad(k, (*[(0, 0)] * 4, rest))
      v = jnp.pad(v, (*[(0, 0)] * 3, rest, (0, 0)))
    records = None
    if kept.experts is not None:
      records = jnp.pad(
          experts.Record.of(cfg).pack(kept.experts),
          ((0, 0), (0, full - columns), (0, 0)))
    return kv_cache.make_cache(
        k, v, None if kv is None else quantise.TYPES[kv]), records

  # No logits: [P, L, V] takes more memory than all else, and a slot's first
  # decode step feeds the last prompt token again.
  cache, records = jax.lax.switch(
      jnp.searchsorted(jnp.asarray(lengths), jnp.max(length)),
      [functools.partial(keys_and_values, columns) for columns in lengths])
  return _split(cache, cfg) if unroll else cache, records


def copy_slot(caches: Caches, slot: Array, source: Caches, row: Array):
  """Copies a row of `source` into the first columns of a slot of `caches`."""
  axis = 0 if isinstance(caches, list) else 1

  def copy(cache, source):
    columns = jax.lax.dynamic_index_in_dim(source, row, axis)
    return jax.lax.dynamic_update_slice_in_dim(cache, columns, slot, axis)

  return jax.tree.map(copy, caches, source)


def step(
    weights: DecodeParams,
    caches: Caches,
    tokens: Array,
    cols: CacheColumns,
    rope: transformer.Rope,
    *,
    cfg: ModelConfig,
    prefixes: Prefixes | None = None,
    record: bool = False,
) -> tuple[Array, Caches, Array | None]:
  """Feeds one token to every slot.

  Args:
    weights: with layers in the same form as `caches`.
    caches: keys and values so far.
    tokens: [S] int32.
    cols: the columns that each slot sees.
    rope: tables for the slots' positions [S], from `transformer.rope_table`.
    cfg: the model.
    prefixes: of the prompts, if they are not in `caches`.
    record: whether to return the experts of the tokens.

  Returns:
    Final hidden states [S, D]; the caches with this step's entries; and [S, E],
    from `experts.Record`, or None.
  """
  params, _ = weights

  def attend(q, k, v, cache, shared, index, window):
    before = prefixes and prefixes.attend(shared, index, q, window)
    new = kv_cache.write(
        cache, index, k[..., None], v[:, :, None], cols.write)
    return kv_cache.attend(
        new, index, q, cols, window, cfg=cfg, before=before), new

  x, caches, chosen = apply(
      weights, caches, tokens, rope, attend, cfg=cfg,
      shared=prefixes and prefixes.caches, record=record)
  packed = experts.Record.of(cfg).pack(
      jnp.concatenate(chosen)) if record else None
  return transformer.rms_norm(x, params['norm'], cfg), caches, packed


def apply(
    weights: DecodeParams,
    caches: Caches,
    tokens: Array,
    rope: transformer.Rope,
    attend: Callable[..., tuple[Array, Cache]],
    *,
    cfg: ModelConfig,
    shared: Caches | None = None,
    record: bool = False,
) -> tuple[Array, Caches, list[Array]]:
  """Applies all layers to some tokens.

  Args:
    weights: with layers in the same form as `caches`.
    caches: keys and values so far.
    tokens: [N] int32.
    rope: tables for the tokens' positions [N], from `transformer.rope_table`.
    attend: (q [N, H, h], k [N, KV, h], v, cache, its part of `shared`, index
      into their leading axis or None, window) -> [N, H, h] and the new cache.
    cfg: the model.
    shared: other caches to read, in the same form.
    record: whether to return the experts of the tokens.

  Returns:
    [N, D] before the last norm; the caches; and, of each run of layers with
    experts, these [layers, N, k], if they are recorded.
  """
  def block(x, layer, cache, shared, index, window):
    own = transformer.layer_rope(rope, window < FULL, cfg)
    return transformer.block(
        x, layer, own,
        lambda q, k, v: attend(q, k, v, cache, shared, index, window), cfg)

  params, layers = weights
  x = transformer.embed(params, tokens, cfg)
  if isinstance(layers, list):
    new, chosen = [], []
    for layer, cache, of_prompts, window in zip(
        layers, caches, shared or caches, cfg.layer_windows()):
      x, cache, of_layer = block(x, layer, cache, of_prompts, None, window)
      new.append(cache)
      chosen += [] if of_layer is None else [of_layer[None]]
    return x, new, chosen
  return _stacked(block, x, layers, caches, shared, cfg, record)


def _stacked(block, x, layers, caches, shared, cfg, record):
  """Applies stacked layers.

  Args:
    block: (x, layer, caches, shared, index, window) -> x, caches, experts.
    x: [S, D].
    layers, caches: stacked.
    shared: caches of the prompts' prefixes, or None.
    cfg: the model.
    record: whether to return experts.

  Returns:
    x; the caches; and, of each run of layers with experts, these [layers, S,
    k], if they are recorded.
  """
  windows, chosen = jnp.asarray(cfg.layer_windows()), []

  # A loop over the index with the stack in its carry updates the cache in
  # place. As inputs and outputs of a scan, CPUs copy it three times a step,
  # and TPUs write whole layers anew.
  def layer(run, i, carry):
    x, cache, chosen = carry
    x, cache, of_layer = block(
        x, run.of(layers, lambda stack, places: jax.lax.dynamic_index_in_dim(
            stack, i + (places.start - run.layers.start), keepdims=False)),
        cache, shared, i, windows[i])
    if chosen is not None:
      chosen = jax.lax.dynamic_update_index_in_dim(
          chosen, of_layer, i - run.layers.start, 0)
    return x, cache, chosen

  for run in transformer.runs(cfg):
    of_run = None
    if record and run.sparse:
      of_run = jnp.zeros(
          (len(run.layers), len(x), cfg.experts_per_token), jnp.int32)
    x, caches, of_run = jax.lax.fori_loop(
        run.layers.start, run.layers.stop, functools.partial(layer, run),
        (x, caches, of_run))
    chosen += [] if of_run is None else [of_run]
  return x, caches, chosen
