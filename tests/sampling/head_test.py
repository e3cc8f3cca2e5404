"""Tests of the split head: the same tokens, with small collectives."""

import functools
import math
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import head
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests
from tests.helpers import devices
from tests.helpers.tolerance import FUNCTION, rounding, typical
from tests.reference import sampler as reference

_SAMPLING = {
    'plain': {}, 'cold': dict(temperature=0.7), 'greedy': dict(temperature=0),
    'top_k': dict(top_k=9), 'top_p': dict(top_p=0.9), 'min_p': dict(min_p=0.05),
    'all': dict(temperature=1.3, top_k=40, top_p=0.8, min_p=0.02)}
# Tensor sizes and vocabularies: one that stays whole, one that 16 blocks fit,
# ones that they don't, and a size that divides no number of such blocks.
_SPLITS = [(2, 48), (2, 2048), (4, 1004), (8, 2048), (8, 1000), (3, 999)]


def _model(vocab):
  return ModelConfig(vocab_size=vocab, width=8, layers=1, heads=4, kv_heads=4,
                     head_dim=2, mlp_width=8)


def _heads(splits):
  """Returns the tokens of one device and of shards, per split and sampling."""
  results = []
  for tensor, vocab in splits:
    cfg = _model(vocab)
    rng = np.random.default_rng(vocab)
    # Quarters: their products add up without rounding, in any order.
    normal = lambda *shape, rng=rng: (
        np.round(4 * rng.standard_normal(shape)).astype(np.float32) / 4)
    w = normal(vocab, 8)
    # Each of the last rows has a twin on some shard: their logits tie, often at
    # the top, because they are large.
    n = vocab // 4
    twins = rng.choice(vocab - n, n, replace=False)
    w[-n:] = w[twins] = 2 * w[twins]
    # 6 slots on each data shard: they do not divide over 4 or 8.
    data = 8 // tensor
    hidden = normal(6 * data, 8)
    noise = rng.random(6 * data, np.float32)
    mesh = sharding.make_mesh(data, 1, tensor, jax.devices()[:data * tensor])
    draw = functools.partial(
        head.next_tokens, cfg=cfg, top_logprobs=20, tempered=True)
    rows = P(('data', 'fsdp'))
    split = jax.jit(jax.shard_map(
        draw, mesh=mesh, axis_names={'data', 'fsdp'}, check_vma=False,
        in_specs=(P(), rows, rows, P()), out_specs=rows))
    put = lambda x, spec, mesh=mesh: jax.device_put(
        x, NamedSharding(mesh, spec))
    for name, values in _SAMPLING.items():
      sampling = SamplingParams(**values)
      whole = jax.jit(draw)(dict(embed=w), hidden, noise, sampling)
      shards = split(put(dict(embed=w), P('tensor')), put(hidden, rows),
                     put(noise, rows), put(sampling, P()))
      twin = dict(tempered_logprobs=[
          np.log(reference.filtered(row, temperature=sampling.temperature)[0][
              token]) for row, token in zip(hidden @ w.T, whole['tokens'])])
      results.append([name, tensor, vocab, *(
          {key: np.asarray(x, np.float64).tolist() for key, x in got.items()}
          for got in (whole, shards, twin))])
  return results


def test_a_split_head_draws_what_a_whole_one_does():
  results = devices.run(_heads, _SPLITS)
  assert len(results) == len(_SPLITS) * len(_SAMPLING)
  tied = 0
  for name, tensor, vocab, whole, split, twin in results:
    where = f'{name}, tensor={tensor}, V={vocab}'
    for key in ('tokens', 'top_ids'):
      np.testing.assert_array_equal(split[key], whole[key], where)
    for key in ('logprobs', 'entropy', 'top_logprobs'):
      # A small vocabulary is put together: the same program on the same bits.
      # Of a large one the sum has another order; then there are its log and,
      # at the size of log-probs, two differences.
      finite = np.abs(np.ma.masked_invalid(whole[key])).max()
      atol = 0 if vocab <= 256 else (
          typical(vocab, 2 * FUNCTION) + rounding(2, magnitude=finite))
      np.testing.assert_allclose(
          split[key], whole[key], rtol=0, atol=atol, err_msg=where)
    # The sums before and after truncation, their logs, and the quotient and
    # three differences, at the size of log-probs.
    for got, want in ((split, whole), (whole, twin)):
      np.testing.assert_allclose(
          got['tempered_logprobs'], want['tempered_logprobs'], rtol=0,
          atol=typical(2 * vocab, 3 * FUNCTION) + rounding(
              4, magnitude=np.abs(twin['tempered_logprobs']).max()),
          err_msg=where)
    if name == 'greedy':
      np.testing.assert_array_equal(whole['entropy'], 0, where)
    elif name == 'plain':
      best = np.array(whole['top_logprobs'])
      tied += np.sum(best[:, 0] == best[:, 1])
  assert tied > 20


def _program(shape, vocab, slots, rounds):
  """Returns the text of the compiled sampler."""
  cfg = _model(vocab)
  mesh = sharding.make_mesh(*shape)
  place = lambda x, spec: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
  shapes = jax.eval_shape(
      functools.partial(transformer.init, cfg=cfg), jax.random.key(0))
  shards = shape[0] * shape[1]
  n = 4 * shards
  ints = jax.ShapeDtypeStruct((n,), jnp.int32)
  queue = jax.tree.map(lambda x: place(x, P(('data', 'fsdp'))), Queue(
      Prompts(jax.ShapeDtypeStruct((n, 5), jnp.int32), ints, ints),
      Requests(ints, ints, ints),
      jax.ShapeDtypeStruct((shards,), jnp.int32)))
  whole = jax.tree.map(lambda x: place(x, P()), (
      jax.eval_shape(lambda: jax.random.key(0)),
      jax.eval_shape(lambda: jax.tree.map(jnp.asarray, SamplingParams())),
      jax.ShapeDtypeStruct((), jnp.int32)))
  sampler = generate_lib.SamplerConfig(
      slots=slots, max_response=8, top_logprobs=2, tempered=True,
      prefill_prompts=rounds)
  return jax.jit(
      functools.partial(
          generate_lib.sharded_generate, mesh, cfg=cfg, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0}).lower(
          sharding.abstract_params(shapes, sharding.SAMPLE_RULES, mesh), queue,
          *whole
      ).compile().as_text()


def _groups(text):
  """Parses the device groups in a collective's line."""
  found = re.search(
      r'replica_groups=(?:(\{\{[^=]*?\}\})|\[(\d+),(\d+)\]<=\[([\d,]+)\]'
      r'(?:T\(([\d,]+)\))?)', text)
  if found[1]:
    return [[int(i) for i in group.split(',')]
            for group in re.findall(r'\{([\d,]+)\}', found[1])]
  dims = [int(i) for i in found[4].split(',')]
  ids = np.arange(math.prod(dims)).reshape(dims)
  if found[5]:
    ids = ids.transpose([int(i) for i in found[5].split(',')])
  return ids.reshape(int(found[2]), int(found[3])).tolist()


def _collectives(text):
  """Returns (in a branch, elements, groups) of each collective in loops."""
  bodies, name = {}, None
  for line in text.splitlines():
    start = re.match(r'(?:ENTRY )?%([\w.-]+) \(', line)
    if start:
      name = start[1]
      bodies[name] = []
    elif name:
      bodies[name].append(line)
  found, seen = [], set()

  def walk(name, loop, branch):
    if (name, loop, branch) in seen:
      return
    seen.add((name, loop, branch))
    for line in bodies[name]:
      kind = re.search(
          r'= (.*?) (?:all-gather|all-reduce|all-to-all|reduce-scatter|'
          r'collective-permute|collective-broadcast)(?:-start)?\(', line)
      if kind and loop:
        sizes = [math.prod(map(int, filter(None, dims.split(','))))
                 for dims in re.findall(r'\w\[([\d,]*)\]', kind[1])]
        found.append((branch, sum(sizes), line))
      for word, callees in re.findall(
          r'(body|branch_computations|true_computation|false_computation|'
          r'calls|to_apply)=(\{[^}]*\}|%[\w.-]+)', line):
        for callee in re.findall(r'%([\w.-]+)', callees):
          walk(callee, loop or word == 'body',
               branch or 'computation' in word)

  walk(re.search(r'ENTRY %([\w.-]+)', text)[1], False, False)
  return found


def _crossing(*args):
  """Returns (in a branch, elements, groups) of the sampler's collectives."""
  text = _program(*args)
  return [(branch, size, _groups(line))
          for branch, size, line in _collectives(text)]


@pytest.mark.parametrize('shape, rounds', [
    ((2, 1, 4), None), ((2, 2, 2), 2)], ids=str)
def test_a_step_moves_neither_logits_nor_anything_across_data(shape, rounds):
  vocab, slots = 1024, 3
  found = devices.run(_crossing, shape, vocab, slots, rounds)
  tensor = np.arange(8).reshape(-1, shape[2]).tolist()
  for branch, size, groups in found:
    # Rows of groups may be listed in any order, and one may be alone.
    assert sorted(map(sorted, groups)) == tensor, groups
    assert branch or size < slots * vocab / 4
  # It did look at the head: its branches, and the masses of 16 blocks.
  assert any(branch and size >= slots * vocab / 4 for branch, size, _ in found)
  assert any(not branch and size == slots * 16 for branch, size, _ in found)
