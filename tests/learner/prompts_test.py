"""Tests of prompts that are computed once, against rows computed whole."""

import dataclasses
import functools
import gc
import itertools

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
from tests.helpers import devices, families, tiny
from tests.helpers.tolerance import decoder, typical
from tests.learner import actor_test as paired
from tests.learner import rejection_update_test as coupled
from tests.learner import update_test as plain
from tests.learner.update_test import B, L, T, V

# Groups of every size. Group 0 has prompts of one token, group 3 of L tokens.
GROUPS = (0, 3, 3, 1, 3, 0, 1, 2, 2, 3, 1, 4)
WAVES = dict(plan='waves', buckets=(2, 4))
LISTS = dict(plan='lists', buckets=(5, 9, 14))
PLANS = pytest.mark.parametrize(
    'plan', [WAVES, LISTS], ids=lambda plan: plan['plan'])


def _quickly(plan):
  """Marks a test of both plans, of which the other one is slow."""
  return pytest.mark.parametrize('plan', [
      x if x is plan else pytest.param(x, marks=pytest.mark.slow)
      for x in (WAVES, LISTS)], ids=lambda plan: plan['plan'])


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
  got, metrics = plain._run(_batch(), real=True, **WAVES)
  # By hand: 5 prompts, and the responses of 10 rows: 2 is filler, 4 masked.
  batch = _batch()
  needed = (batch.response_length > 0) & batch.mask.any(1)
  first = [GROUPS.index(g) for g in {*np.array(GROUPS)[needed]}]
  real = batch.response_length[needed].sum() + (
      batch.prompt_length[first] - 1).sum()
  # Two rows a microbatch at lengths 2, 4 and 7; bins of 8.
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


@_quickly(WAVES)
def test_without_numbers_every_row_has_its_own_prompt(plan):
  batch = plain._batch()
  want = plain._run(batch)
  plain._close(plain._run(batch, **plan), want)


@PLANS
def test_scores_equal_rows_computed_whole(plan):
  args = jax.device_put(
      (plain._params(), _batch(), jax.tree.map(np.float32, plain.LOSS)))
  want = plain._learner().score(*args).logprobs
  got = plain._learner(**plan).score(*args).logprobs
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


def _compare(objective, aggregation, correction, remat, plan):
  loss = _losses(objective, correction)
  given = dict(objective=objective, aggregation=aggregation,
               importance=correction, remat=remat, buckets=())
  want, whole = plain._run(_batch(), loss, **given)
  got, metrics = plain._run(_batch(), loss, **{**given, **plan})
  plain._close(got.params, want.params)
  plain._close(metrics, whole)


@pytest.mark.parametrize('plan, case', [
    (WAVES, ('gspo', 'sequence_mean', 'sequence_tis', 'full')),
    (LISTS, ('no_clip', 'constant', 'none', 'matmuls'))], ids=str)
def test_losses(case, plan):
  _compare(*case, plan)


@pytest.fixture
def forget():
  """Frees the programs of a test: a process has room for a few hundred."""
  yield
  plain._learner.cache_clear()
  jax.clear_caches()
  gc.collect()


@pytest.mark.slow
@PLANS
@pytest.mark.parametrize('case', [
    *((*names, 'attention') for names in itertools.product(
        policy_losses.OBJECTIVES, policy_losses.AGGREGATIONS,
        importance.CORRECTIONS)),
    ('likelihood', 'token_mean', 'none', 'none')], ids='/'.join)
def test_every_loss(case, plan, forget):
  _compare(*case, plan)


def _model(name):
  model, *_ = families.family(name)
  return dataclasses.replace(model, window=model.window and 4)


@functools.lru_cache(3)
def _of_family(name, plan, remat='none'):
  model = _model(name)
  learner = update_lib.make(model, dataclasses.replace(
      plain.CONFIG, microbatch=4, remat=remat, buckets=(),
      plan=plan), plain.SGD)
  params = jax.tree.map(lambda x: 1.5 * x, transformer.init(
      jax.random.key(3), model))
  loss = jax.tree.map(np.float32, plain.LOSS)
  state, metrics = learner.update(
      learner.init(params), *jax.device_put((_batch(), loss)))
  return jax.device_get((state.params, metrics['loss'], params))


@pytest.mark.parametrize('name, plan', [
    ('gemma2', 'waves'), ('gemma2', 'lists'),
    pytest.param('qwen2', 'waves', marks=pytest.mark.slow)])
def test_families(name, plan):
  """Gemma 2 has windows of fewer tokens than a row, and soft caps."""
  _family(name, plan)


@pytest.mark.slow
@PLANS
@pytest.mark.parametrize('remat', transformer.REMAT)
@pytest.mark.parametrize('name', families.NAMES)
def test_every_family(name, remat, plan):
  _family(name, plan['plan'], remat)


def _family(name, plan, remat='none'):
  model = _model(name)
  got, want = (_of_family(name, plan, remat) for plan in (plan, 'rows'))
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


@_quickly(WAVES)
def test_rejection(plan):
  batch = shared(coupled._batch())
  found = []
  for changes in ({}, plan):
    learner = update_lib.make(plain.MODEL, dataclasses.replace(
        plain.CONFIG, importance='none', **{'buckets': (), **changes},
        rejection=coupled.rejection.Rejection(
            top_k=coupled.K, **coupled.PASSES['two_pass'])), plain.SGD)
    state = learner.init(jax.device_put(coupled._params(2)))
    batch = batch.replace(identity=np.zeros((B, 3), np.uint32))
    found.append(_with(learner, state, batch, coupled.LOSS))
  plain._close(*found)


@_quickly(WAVES)
def test_an_actor_that_is_another_model(plan):
  """Both players and the parameters that wrote the rows have prompts."""
  batch = shared(paired._batch()).replace(
      identity=np.zeros((B, 3), np.uint32))
  choices, training = paired.CASES['writer']
  found = []
  for changes in ({}, plan):
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


@PLANS
def test_one_program_serves_every_mix(plan):
  learner = plain._learner(**plan)
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


def _on_mesh(sizes, plan):
  """Returns scores and parameters of an update on a mesh."""
  model = dataclasses.replace(plain.MODEL, vocab_size=24, heads=4, kv_heads=2)
  params = transformer.init(jax.random.key(0), model)
  mesh = sharding.make_mesh(*sizes)
  learner = update_lib.make(model, dataclasses.replace(
      plain.CONFIG, microbatch=8, row_facts=True, plan=plan,
      buckets=(9,) if plan == 'lists' else (), vocab_chunk=16), plain.SGD,
                            mesh=mesh)
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


@pytest.mark.parametrize('plan, sizes', [
    ('lists', (2, 2, 2)), *(
        pytest.param(plan, sizes, marks=pytest.mark.slow) for plan, sizes in (
            ('waves', (4, 1, 2)), ('waves', (8, 1, 1)), ('lists', (2, 4, 1)),
            ('lists', (4, 2, 1))))])
def test_eight_devices(plan, sizes):
  want = _one_device()
  got = devices.run(_on_mesh, sizes, plan)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(
        a, b, rtol=plain.TOLERANCE, atol=plain.TOLERANCE)


@functools.lru_cache(None)
def _one_device():
  return devices.run(_on_mesh, (1, 1, 1), 'rows', devices=1)


@pytest.mark.parametrize('seed', range(3))
def test_plan(seed):
  """Each row once, at a length that holds it, with its own prompt."""
  batch = _batch(seed)
  rng = np.random.default_rng(seed)
  needed = (batch.response_length > 0) & (rng.random(B) < .8)
  sizes = prompts.Sizes(
      rows=2, columns=L - 1, width=2 * L - 2, widths=(3, 2 * L - 2), bins=1,
      lengths=(2, 4, T))
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
  config = dataclasses.replace(plain.CONFIG, **WAVES)
  with pytest.raises(ValueError, match='needs mesh.fsdp=1, not 2'):
    update_lib.make(plain.MODEL, config, plain.SGD, mesh=mesh)
  with pytest.raises(ValueError, match=r'lie between 1 and max_response = 7'):
    dataclasses.replace(config, buckets=(8,))
  with pytest.raises(ValueError, match='max_prompt of at least 2'):
    dataclasses.replace(config, max_prompt=1)
  with pytest.raises(ValueError, match='rows, waves, lists'):
    dataclasses.replace(config, plan='packed')
  with pytest.raises(ValueError, match=(
      r'learner.list_buckets=\(5, 23\) must lie between 1 and 22')):
    update_lib.make(plain.MODEL, dataclasses.replace(
        plain.CONFIG, plan='lists', buckets=(5, 23)), plain.SGD)


@pytest.mark.parametrize('fields, sizes, window, plan', [
    ({}, (2, 1, 1), None, 'waves'),
    ({}, (1, 2, 1), None, 'lists'),
    (dict(max_prompt=1), (1, 2, 1), None, 'rows'),
    (dict(samples_per_prompt=1), (1, 1, 1), None, 'rows'),
    (dict(samples_per_prompt=1), (1, 2, 1), None, 'lists'),
    (dict(learner__attention='cudnn'), (1, 1, 1), None, 'lists'),
    (dict(learner__attention='splash'), (1, 1, 1), 5, 'lists'),
    (dict(learner__attention='splash'), (1, 1, 1), 500, 'waves'),
    (dict(learner__attention='xla'), (1, 1, 1), 5, 'waves')])
def test_the_plan_of_a_config(fields, sizes, window, plan, caplog):
  config = tiny.get_config()
  for name, value in fields.items():
    section, _, leaf = name.rpartition('__')
    (config[section] if section else config)[leaf] = value
  args = config, FakeMesh(sizes), [
      dataclasses.replace(plain.MODEL, window=window)]
  with caplog.at_level('INFO'):
    assert choices.plan(*args) == plan
  assert 'Updates compute' in caplog.text
  config.learner.share_prompts = True
  if 'max_prompt' in fields:
    with pytest.raises(ValueError, match='not possible with max_prompt=1'):
      choices.plan(*args)
  else:
    assert choices.plan(*args) == plan.replace('rows', 'waves')
  config.learner.share_prompts = False
  assert choices.plan(*args) == 'rows'


class FakeMesh:
  """Mesh of more devices than there are."""

  def __init__(self, sizes):
    self.shape = dict(zip(sharding.AXES, sizes))
    self.devices = np.array(jax.devices()[:1])
