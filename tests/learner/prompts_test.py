"""Tests of prompts that are computed once, against rows computed whole."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import choices, prompts
from jaxrl_llm.learner import loss as loss_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.ops import importance, policy_losses
from tests import devices, families, tiny
from tests.learner import actor_test as paired
from tests.learner import rejection_update_test as coupled
from tests.learner import update_test as plain
from tests.learner.update_test import B, L, T, V
from tests.tolerance import decoder, typical

# Groups of every size. Group 0 has prompts of one token, group 3 of L tokens.
GROUPS = (0, 3, 3, 1, 3, 0, 1, 2, 2, 3, 1, 4)
SHARED = dict(share_prompts=True, buckets=(2, 4))


def shared(batch, groups=GROUPS):
  """Gives rows of a group the same prompt."""
  rng = np.random.default_rng(1)
  tokens, length = batch.tokens.copy(), batch.prompt_length.copy()
  response = [row[n:n + T] for row, n in zip(tokens, length)]
  for group in sorted(set(groups)):
    prompt = rng.integers(0, V, {0: 1, 3: L}.get(group, rng.integers(2, L)))
    for row in np.flatnonzero(np.equal(groups, group)):
      length[row] = len(prompt)
      tokens[row, :len(prompt)] = prompt
      # A response that was cut off at the row's end has padding in its place.
      tokens[row, len(prompt):len(prompt) + T] = np.resize(response[row], T)
  return batch.replace(
      tokens=tokens, prompt_length=length, prompt=np.int32(groups))


@functools.lru_cache(None)
def _batch(seed=0):
  return shared(plain._batch(seed=seed))


def test_update_equals_rows_computed_whole():
  want, whole = plain._run(_batch(), real=True)
  got, metrics = plain._run(_batch(), real=True, **SHARED)
  # By hand: 5 prompts of 1, L, ..., and the responses of 10 rows; row 2 is
  # filler, row 4 is masked.
  batch = _batch()
  needed = (batch.response_length > 0) & batch.mask.any(1)
  first = [GROUPS.index(g) for g in {
      GROUPS[i] for i in np.flatnonzero(needed)}]
  real = batch.response_length[needed].sum() + (
      batch.prompt_length[first] - 1).sum()
  # Two rows a microbatch, longest first, at lengths 2, 4 and 7; bins of 8.
  longest = -np.sort(-batch.response_length[needed])[::2]
  rows = 2 * np.array([2, 4, 7])[np.searchsorted([2, 4, 7], longest)].sum()
  bins = (real - batch.response_length[needed].sum()) / 8
  shares = [real / (rows + 8 * n) for n in (np.ceil(bins), np.ceil(bins) + 1)]
  assert np.isclose(metrics.pop('real_tokens'), shares, rtol=1e-6).any()
  length = (batch.prompt_length + batch.response_length)[needed]
  longest = -np.sort(-length)[::2]
  whole_rows = 2 * np.where(longest > 8, 12, 8).sum()
  assert np.isclose(whole.pop('real_tokens'), length.sum() / whole_rows)
  plain._close(got.params, want.params)
  plain._close(metrics, whole)


def test_without_numbers_every_row_has_its_own_prompt():
  batch = plain._batch()
  want = plain._run(batch)
  plain._close(plain._run(batch, **SHARED), want)


def test_scores_equal_rows_computed_whole():
  args = jax.device_put(
      (plain._params(), _batch(), jax.tree.map(np.float32, plain.LOSS)))
  want = plain._learner().score(*args).logprobs
  got = plain._learner(**SHARED).score(*args).logprobs
  plain._close(got, want)
  assert (np.asarray(want) != 0).sum() > 30


def _losses(objective, correction):
  """Returns the hyperparameters of a combination."""
  values = dict(clip_low=.1, clip_high=.2, cap=1.2, low=.5, high=2.0)
  of = lambda fn: {name: values.get(name, 1.0)
                   for name in policy_losses.hyperparameters(fn)}
  return plain.LOSS.replace(
      objective=of(loss_lib.OBJECTIVES[objective]),
      importance=of(importance.CORRECTIONS[correction]))


def _compare(objective, aggregation, correction, remat):
  loss = _losses(objective, correction)
  given = dict(objective=objective, aggregation=aggregation,
               importance=correction, remat=remat, buckets=())
  want, whole = plain._run(_batch(), loss, **given)
  got, metrics = plain._run(_batch(), loss, **{**given, **SHARED})
  plain._close(got.params, want.params)
  plain._close(metrics, whole)


@pytest.mark.parametrize('case', [
    ('gspo', 'sequence_mean', 'sequence_tis', 'full'),
    ('no_clip', 'constant', 'none', 'matmuls')], ids='/'.join)
def test_losses(case):
  _compare(*case)


@pytest.mark.slow
@pytest.mark.parametrize('case', [
    *((*names, 'attention') for names in itertools.product(
        policy_losses.OBJECTIVES, policy_losses.AGGREGATIONS,
        importance.CORRECTIONS)),
    ('likelihood', 'token_mean', 'none', 'none')], ids='/'.join)
def test_every_loss(case):
  _compare(*case)


def _model(name):
  model, *_ = families.family(name)
  return dataclasses.replace(model, window=model.window and 4)


@functools.lru_cache(None)
def _of_family(name, share, remat='none'):
  model = _model(name)
  learner = update_lib.make(model, dataclasses.replace(
      plain.CONFIG, microbatch=4, remat=remat, buckets=(),
      share_prompts=share), plain.SGD)
  params = jax.tree.map(lambda x: 1.5 * x, transformer.init(
      jax.random.key(3), model))
  loss = jax.tree.map(np.float32, plain.LOSS)
  state, metrics = learner.update(
      learner.init(params), *jax.device_put((_batch(), loss)))
  return jax.device_get((state.params, metrics['loss'], params))


@pytest.mark.parametrize('name', ['gemma2', 'qwen2'])
def test_families(name):
  """Gemma 2 has windows of fewer tokens than a row, and soft caps."""
  _family(name)


@pytest.mark.slow
@pytest.mark.parametrize('remat', transformer.REMAT)
@pytest.mark.parametrize('name', families.NAMES)
def test_every_family(name, remat):
  _family(name, remat)


def _family(name, remat='none'):
  model = _model(name)
  got, want = (_of_family(name, share, remat) for share in (True, False))
  # Forward, back to states and to weights; the vocabulary; sums over the rows.
  bound = typical(3 * decoder(model, L + T), model.vocab_size, B * T)
  jax.tree.map(lambda a, b, start: np.testing.assert_allclose(
      a, b, rtol=0, atol=bound * max(1, np.abs(start).max(), np.abs(
          a - start).max())), got[0], want[0], want[2])
  np.testing.assert_allclose(got[1], want[1], rtol=bound, atol=bound)


def _with(learner, state, batch, loss, *args):
  state, metrics = learner.update(
      state, jax.device_put(batch), jax.tree.map(np.float32, loss), *args)
  metrics.pop('real_tokens')
  players = state if isinstance(state, tuple) else (state,)
  return jax.device_get(([x.params for x in players], metrics))


@pytest.mark.parametrize('name', ['two_pass'])
def test_rejection(name):
  batch = shared(coupled._batch())
  found = []
  for changes in ({}, SHARED):
    learner = update_lib.make(plain.MODEL, dataclasses.replace(
        plain.CONFIG, importance='none', **{'buckets': (), **changes},
        rejection=coupled.rejection.Rejection(
            top_k=coupled.K, **coupled.PASSES[name])), plain.SGD)
    state = learner.init(jax.device_put(coupled._params(2)))
    batch = batch.replace(identity=np.zeros((B, 3), np.uint32))
    found.append(_with(learner, state, batch, coupled.LOSS))
  plain._close(*found)


def test_an_actor_that_is_another_model():
  """Both players and the parameters that wrote the rows have prompts."""
  batch = shared(paired._batch()).replace(
      identity=np.zeros((B, 3), np.uint32))
  choices, training = paired.CASES['writer']
  found = []
  for changes in ({}, SHARED):
    learner = update_lib.make(
        plain.MODEL, dataclasses.replace(
            plain.CONFIG, importance='none', **{'buckets': (), **changes},
            rejection=coupled.rejection.Rejection(
                top_k=paired.K, decoupled=True, **choices),
            actor=dataclasses.replace(paired.TRAINING, **training)), plain.SGD,
        actor=update_lib.Actor(
            paired.ACTOR, paired._shapes(paired.ACTOR), plain.SGD))
    state = learner.init(*jax.device_put(
        (plain._params(), paired._omega(6))))
    found.append(_with(learner, state, batch, paired.LOSS, None,
                       jax.device_put(paired._omega(5))))
  plain._close(*found)


def test_one_program_serves_every_mix():
  learner = plain._learner(**SHARED)
  state = learner.init(jax.device_put(plain._params()))
  loss = jax.device_put(jax.tree.map(np.float32, plain.LOSS))
  nothing = _batch(2)
  nothing = nothing.replace(mask=np.zeros_like(nothing.mask))
  alone = shared(plain._batch(seed=3), tuple(range(B)))
  together = shared(plain._batch(seed=4), (3,) * B)
  before = []
  for batch in (_batch(1), alone, together, nothing):
    was = jax.device_get(state)
    state, metrics = learner.update(state, jax.device_put(batch), loss)
    learner.score(state.params, jax.device_put(batch), loss)
    before.append((learner.score._cache_size(), learner.update._cache_size()))
  assert len(set(before)) == 1
  assert metrics['tokens'] == 0
  plain._same(jax.device_get(state.params), was.params)


def _on_mesh(sizes):
  """Returns scores and parameters of an update on a mesh."""
  model = dataclasses.replace(plain.MODEL, vocab_size=24, heads=4, kv_heads=2)
  params = transformer.init(jax.random.key(0), model)
  mesh = sharding.make_mesh(*sizes)
  learner = update_lib.make(model, dataclasses.replace(
      plain.CONFIG, microbatch=8, row_facts=True, share_prompts=True,
      buckets=()), plain.SGD, mesh=mesh)
  state = learner.init(jax.device_put(
      params, sharding.shardings(params, sharding.TRAIN_RULES, mesh)))
  batch = shared(plain._batch(16), (*GROUPS, 1, 1, 5, 0))
  batch = jax.device_put(batch, sharding.rows(mesh))
  loss = jax.tree.map(np.float32, plain.LOSS)
  scores = learner.score(state.params, batch, loss).logprobs
  state, metrics = learner.update(state, batch, loss)
  metrics.pop('real_tokens')
  return [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(
      (scores, state.params, metrics))]


@pytest.mark.parametrize('sizes', [
    pytest.param((8, 1, 1), marks=pytest.mark.slow), (4, 1, 2)])
def test_eight_devices(sizes):
  want = _one_device()
  got = devices.run(_on_mesh, sizes)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(
        a, b, rtol=plain.TOLERANCE, atol=plain.TOLERANCE)


@functools.lru_cache(None)
def _one_device():
  return devices.run(_on_mesh, (1, 1, 1), devices=1)


@pytest.mark.parametrize('seed', range(3))
def test_plan(seed):
  """Each row once, at a length that holds it, with its own prompt."""
  batch = _batch(seed)
  rng = np.random.default_rng(seed)
  needed = (batch.response_length > 0) & (rng.random(B) < .8)
  sizes = prompts.Sizes(
      rows=2, columns=L - 1, width=2 * L - 2, bins=1, lengths=(2, 4, T))
  plan = jax.device_get(prompts.plan(
      jax.tree.map(jnp.asarray, batch), jnp.asarray(needed), sizes))
  seen = []
  for wave in range(plan.waves):
    tokens, segments = (
        x[wave * sizes.bins:(wave + 1) * sizes.bins].ravel()
        for x in (plan.tokens, plan.segments))
    for m in range(plan.first[wave], plan.first[wave + 1]):
      rows = plan.rows[m][plan.rows[m] < B]
      seen += rows.tolist()
      assert (batch.response_length[rows] <= sizes.lengths[
          plan.bucket[m]]).all()
      for row in rows:
        there = slice(plan.start[row], plan.start[row] + plan.length[row])
        n = batch.prompt_length[row] - 1
        np.testing.assert_array_equal(
            tokens[there], batch.tokens[row, :n])
        assert len(set(segments[there])) <= 1
  assert sorted(seen) == np.flatnonzero(needed).tolist()
  assert plan.first[plan.waves] == plan.first[-1]


@pytest.mark.parametrize('shards', [1, 2, 3, 4])
@pytest.mark.parametrize('seed', range(3))
def test_deal(seed, shards):
  """Every row has one place, and needed ones are spread evenly."""
  batch = _batch(seed)
  needed = np.random.default_rng(seed).random(B) < .6
  order = np.asarray(prompts.deal(
      jax.tree.map(jnp.asarray, batch), jnp.asarray(needed), shards))
  assert sorted(order) == list(range(B))
  counts = needed[order].reshape(shards, -1).sum(1)
  assert counts.max() - counts.min() <= 1


def test_deal_keeps_groups_together():
  """Long prompts stay on one shard; short ones give way to balance."""
  groups = np.repeat([7, 5], 4)
  batch = shared(plain._batch(8), tuple(groups))
  batch = jax.tree.map(jnp.asarray, batch).replace(
      response_length=jnp.asarray([1] * 7 + [2]))
  of = lambda length: groups[np.asarray(prompts.deal(batch.replace(
      prompt_length=jnp.full(8, length)), jnp.ones(8, bool), 2))].reshape(2, 4)
  assert [len(set(shard)) for shard in of(L)] == [1, 1]
  batch = batch.replace(response_length=jnp.asarray([1] * 4 + [T] * 4))
  assert [len(set(shard)) for shard in of(2)] == [2, 2]


def test_errors():
  mesh = AbstractMesh((1, 2, 1), sharding.AXES)
  config = dataclasses.replace(plain.CONFIG, **SHARED)
  with pytest.raises(ValueError, match='needs mesh.fsdp=1, not 2'):
    update_lib.make(plain.MODEL, config, plain.SGD, mesh=mesh)
  with pytest.raises(ValueError, match=r'lie between 1 and max_response = 7'):
    dataclasses.replace(config, buckets=(8,))
  with pytest.raises(ValueError, match='max_prompt of at least 2'):
    dataclasses.replace(config, max_prompt=1)


@pytest.mark.parametrize('fields, sizes, window, reason', [
    ({}, (2, 1, 1), None, ''),
    ({}, (1, 2, 1), None, 'mesh.fsdp=2'),
    (dict(max_prompt=1), (1, 1, 1), None, 'max_prompt=1'),
    (dict(learner__attention='cudnn'), (1, 1, 1), None, 'cudnn'),
    (dict(learner__attention='splash'), (1, 1, 1), 5, 'window of 5 tokens'),
    (dict(learner__attention='splash'), (1, 1, 1), 500, ''),
    (dict(learner__attention='xla'), (1, 1, 1), 5, '')])
def test_why_not_shared(fields, sizes, window, reason):
  config = tiny.get_config()
  for name, value in fields.items():
    section, _, leaf = name.rpartition('__')
    (config[section] if section else config)[leaf] = value
  mesh = _FakeMesh(sizes)
  model = dataclasses.replace(plain.MODEL, window=window)
  found = choices.why_not_shared(config, mesh, [model])
  assert reason in found and bool(reason) == bool(found)
  config.learner.share_prompts = True
  if reason:
    with pytest.raises(ValueError, match=re.escape(reason)):
      choices.shares_prompts(config, mesh, [model])
  else:
    assert choices.shares_prompts(config, mesh, [model])
  config.learner.share_prompts = False
  assert not choices.shares_prompts(config, mesh, [model])


class _FakeMesh:
  """Mesh of more devices than there are."""

  def __init__(self, sizes):
    self.shape = dict(zip(sharding.AXES, sizes))
    self.devices = np.array(jax.devices()[:1])
