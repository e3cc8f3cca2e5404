"""Tests of weights split over devices: results, collectives and memory."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import lora, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sharding import collectives
from jaxrl_llm.types import LearnerBatch
from tests.helpers import devices, learners
from tests.helpers.tolerance import decoder, typical

V, D, L, T, B = 48, 16, 5, 7, 24
MODEL = ModelConfig(
    vocab_size=V, width=D, layers=2, heads=4, kv_heads=4, head_dim=4,
    mlp_width=24, logit_softcap=5.0)
# Plain descent at rate 1: parameters move by exactly minus the gradient.
SGD = optimizer_lib.Optimizer(optax.sgd(1.0), optax.constant_schedule(1.0))
LOSS = jax.tree.map(np.float32, update_lib.LossParams(
    temperature=0.8, entropy_bonus=0.05, kl_coef=0.3, budget=6.0,
    objective=dict(clip_low=0.1, clip_high=0.2), importance=dict(cap=1.2)))


def frequent(rows=8, columns=512):
  """Returns tokens, most of them 5, and gradients of their embeddings."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, V, (rows, columns), np.int32)
  tokens[rng.random(tokens.shape) < 0.7] = 5
  slopes = rng.uniform(0.5, 1.5, (rows, columns, D)).astype(jnp.bfloat16)
  return tokens, slopes


def table_gradient(tokens, slopes):
  """Sums the gradients for each token, in float64."""
  total = np.zeros((V, D))
  np.add.at(total, tokens, np.float64(slopes))
  return total


def sizes_of_collectives(program):
  """Returns result sizes of a program's collectives, largest first.

  Leaves out collectives between two data groups of four devices.
  """
  found = re.findall(
      r' = (\S*|\(.*?\)) ((?:all-|reduce-scatter|collective).*)',
      program.as_text())
  shapes = [
      shape for result, rest in found
      if not re.search(r'groups=(\{\{0,4\},|\[4,2\]<=\[2,4\]T\()', rest)
      for shape in re.findall(r'\[([\d,]*)\]', result)]
  return sorted((
      math.prod(int(n) for n in shape.split(',') if n)
      for shape in shapes), reverse=True)


def looked_up(sizes, axes, picked):
  """Looks up rows of a float32 table in bfloat16 on a mesh.

  Returns:
    Whether the rows are right; the gradient's dtype; the gradient; the size of
    the largest collective.
  """
  collectives._PICKED = picked
  mesh = sharding.make_mesh(*sizes)
  table = np.random.default_rng(1).standard_normal((V, D), np.float32)
  tokens, slopes = frequent()
  put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))

  @functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=(P(), P('data'), P('data')), out_specs=(P('data'), P()))
  def both(table, tokens, slopes):
    pick = functools.partial(
        collectives.lookup, tokens=tokens, axes=axes, dtype=jnp.bfloat16)
    rows, pull = jax.vjp(pick, table)
    return rows, jax.lax.psum(pull(slopes)[0], 'data')

  placed = (put(table, tuple(axes)), put(tokens, ('data', 'fsdp')),
            put(slopes, ('data', 'fsdp')))
  program = jax.jit(both).lower(*placed).compile()
  rows, grad = program(*placed)
  same = np.array_equal(rows, table.astype(jnp.bfloat16)[tokens])
  return (same, str(grad.dtype), np.asarray(grad, np.float64).tolist(),
          sizes_of_collectives(program)[0])


@pytest.mark.parametrize('case', [
    ((2, 2, 2), ('tensor', 'fsdp'), 1 << 25),
    ((2, 4, 1), ('tensor', 'fsdp'), 200 * 4 * D),  # 200, 200, 112 columns
    ((2, 2, 2), ('tensor',), 1 << 25),
])
def test_lookup_on_eight_devices(case):
  same, dtype, grad, largest = devices.run(looked_up, *case)
  assert same and dtype == 'float32' and largest <= case[2]
  want = table_gradient(*frequent())
  assert want[5].min() > 2000  # where bfloat16 resolves 8
  # A sum over the tokens of what bfloat16 holds.
  np.testing.assert_allclose(grad, want, rtol=typical(8 * 512))


def test_the_gradient_of_a_frequent_token_is_a_float32_sum():
  """On one device too."""
  cfg = ModelConfig(
      vocab_size=V, width=D, layers=1, heads=1, kv_heads=1, head_dim=4,
      mlp_width=4, dtype='bfloat16')
  tokens, slopes = frequent()
  rows, pull = jax.vjp(
      lambda table: transformer.embed({'embed': table}, tokens, cfg),
      jnp.ones((V, D)))
  assert rows.dtype == jnp.bfloat16
  grad, = pull(jnp.asarray(slopes))
  np.testing.assert_allclose(
      grad, table_gradient(tokens, slopes), rtol=typical(tokens.size))


def summed(sizes):
  """Sums a tree over `data`, of integers, so that the order does not matter.

  Returns:
    Whether the sums are right; the sizes of the arrays that were sent.
  """
  collectives._LARGE = 20
  mesh = sharding.make_mesh(*sizes)
  rng = np.random.default_rng(0)
  tree = {name: rng.integers(-9, 9, (sizes[0], *shape)).astype(np.float32)
          for name, shape in dict(
              a=(), b=(4, 5), c=(3, 2), d=(30,), e=(7,)).items()}

  @jax.jit
  @functools.partial(
      jax.shard_map, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=P('data'), out_specs=P())
  def total(tree):
    return collectives.sum_over_data(
        jax.tree.map(lambda x: x[0], tree), mesh)

  placed = jax.device_put(tree, NamedSharding(mesh, P('data')))
  found = total(placed)
  same = all(
      np.array_equal(found[name], x.sum(0)) and found[name].shape == x.shape[1:]
      for name, x in tree.items())
  return same, sizes_of_collectives(total.lower(placed).compile())


@pytest.mark.parametrize('sizes, sent', [
    ((8, 1, 1), [30, 20, 14]),  # a, c and e in one
    ((2, 2, 2), None),  # apart: they may be split
    ((1, 8, 1), [])])
def test_small_arrays_are_summed_in_one_message(sizes, sent):
  same, found = devices.run(summed, sizes)
  assert same
  assert sent is None or found == sent


def make(sizes, tied, adapters, vocab=V, chunk=None):
  """Makes a learner on a mesh, trained parameters, and frozen ones."""
  model = dataclasses.replace(MODEL, vocab_size=vocab, tie_embeddings=tied)
  cfg = learner_lib.LearnerConfig(
      tokens=1, max_prompt=L, max_response=T, importance='tis',
      remat='full', vocab_chunk=chunk)
  mesh = sharding.make_mesh(*sizes, jax.devices()[:math.prod(sizes)])
  params, frozen = transformer.init(jax.random.key(0), model), None
  options = {}
  if adapters:
    frozen = jax.device_put(params, sharding.shardings(
        params, sharding.SAMPLE_RULES, mesh))
    params = lora.init(jax.random.key(1), params, 2, '.*')
    params = jax.tree.map(lambda x: x + 0.1, params)
    options = dict(trained=params, compose=lambda p, f: lora.join(f, p))
  learner = learners.make(model, cfg, SGD, mesh=mesh, **options)
  params = jax.device_put(
      params, sharding.shardings(params, sharding.TRAIN_RULES, mesh))
  return learner, mesh, params, frozen


def batch():
  """Makes the rows of 3 microbatches."""
  rng = np.random.default_rng(0)
  response = rng.integers(1, T + 1, B, np.int32)
  mask = np.arange(T) < response[:, None]
  logprobs = lambda: rng.normal(-3.0, 0.8, (B, T)).astype(np.float32)
  return LearnerBatch(
      tokens=rng.integers(0, V, (B, L + T), np.int32),
      prompt_length=rng.integers(1, L + 1, B, np.int32),
      response_length=response, mask=mask, behaviour_logprobs=logprobs(),
      advantages=rng.normal(size=B).astype(np.float32),
      old_logprobs=logprobs(), anchor_logprobs=logprobs())


def learned(sizes, *options):
  """Returns log-probs, the gradient and metrics."""
  learner, mesh, params, frozen = make(sizes, *options)
  before = jax.device_get(params)
  rows = jax.device_put(batch(), sharding.rows(mesh))
  scores = learners.score(learner, params, rows, LOSS, frozen)
  state, metrics = learners.update(
      learner, learner.init(params), rows, LOSS, frozen)
  metrics = learners.unpadded(metrics)
  slopes = jax.tree.map(
      lambda a, b: a - np.asarray(b), before, state.params)
  return [np.asarray(x, np.float64).tolist()
          for x in jax.tree.leaves((scores, slopes, metrics))]


# Tied or not, LoRA or not, tokens of a chunk.
@pytest.mark.parametrize('sizes, options', [
    ((2, 2, 2), (False, False, V, 6)),
    ((1, 2, 4), (False, True, V, 5)),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ((1, 2, 4), (True, False, V, 8)),
        ((4, 2, 1), (True, False, V, None)))),
])
def test_an_update_is_the_same_on_eight_devices(sizes, options):
  want = learned((1, 1, 1), *options)
  found = devices.run(learned, sizes, *options)
  # Forward, back to states and to weights; the vocabulary; the tokens.
  counts = 3 * decoder(MODEL, L + T), V, B * T
  for a, b in zip(found, want, strict=True):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=typical(*counts, magnitude=max(
            .1, np.abs(b).max())))


def moved(tied, adapters):
  """Returns the sizes of the collectives of score and of update."""
  learner, mesh, params, frozen = make((2, 2, 2), tied, adapters, 4096, 4)
  rows = jax.device_put(batch(), sharding.rows(mesh))
  plan = learners.plan(learner, batch())
  return [sizes_of_collectives(program.compile()) for program in (
      learner.lower('score', params, rows, plan, LOSS, frozen),
      learner.lower('update', learner.init(params), rows, plan, LOSS, frozen))]


@pytest.mark.parametrize('tied, adapters', [(False, False), (True, True)])
def test_neither_embeddings_nor_logits_move(tied, adapters):
  score, update = devices.run(moved, tied, adapters)
  # Not even the logits of one token of the 1024 whose embeddings a device has,
  # or of the 2048 beside LoRA.
  for sizes in (score, update):
    assert len(sizes) > 10 and sizes[0] < 1024


def test_what_the_partitioner_is_told(monkeypatch):
  """Programs of the size of tests are the same either way; pods' are not."""
  told = []
  monkeypatch.setattr(
      jax.lax, 'with_sharding_constraint',
      lambda x, spec: told.append((x.dtype.name, spec)) or x)
  fetch = collectives.gathering(sharding.TRAIN_RULES, jnp.bfloat16)
  jax.grad(lambda x: fetch({'down': x})['down'].sum())(jnp.ones((16, 8)))
  whole, split = P('tensor', None), P(('tensor', 'fsdp'), None)
  assert told == [
      ('bfloat16', whole), ('float32', whole), ('float32', split)]


def brought(remat):
  """Returns the temporary bytes of an update, and shapes in its collectives."""
  model = ModelConfig(
      vocab_size=64, width=128, layers=16, heads=4, kv_heads=4, head_dim=32,
      mlp_width=512, dtype='bfloat16')
  cfg = learner_lib.LearnerConfig(
      tokens=1, max_prompt=L, max_response=T, remat=remat,
      importance='tis')
  mesh = sharding.make_mesh(1, 8, 1)
  learner = learners.make(model, cfg, SGD, mesh=mesh)
  rows = jax.device_put(batch(), sharding.rows(mesh))
  program = learner.lower(
      'update', learner.state, rows, learners.plan(learner, batch()),
      LOSS).compile()
  layers = learner.state.params['layers']
  return [
      program.memory_analysis().temp_size_in_bytes,
      sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(layers)),
      re.findall(r' = \w+\[([\d,]+)\]\S* all-gather\(', program.as_text())]


@pytest.mark.parametrize('remat', ['none', 'matmuls'])
def test_weights_come_a_layer_at_a_time_and_activations_stay(remat):
  used, weights, moved = devices.run(brought, remat)
  assert used < weights * (0.75 if remat == 'none' else 0.6)
  assert '128,512' in moved
  assert not [
      shape for shape in moved if shape.startswith(f'8,{L + T},')]
