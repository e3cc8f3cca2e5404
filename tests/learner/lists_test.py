"""Tests of updates on lists of tokens, against rows that are padded whole."""

import dataclasses
import functools
import gc
import itertools

import jax
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.ops import importance, policy_losses
from tests.helpers import devices, families, learners
from tests.helpers.methods import hyperparameters
from tests.helpers.tolerance import decoder, typical
from tests.learner import actor_test as paired
from tests.learner import rejection_update_test as coupled
from tests.learner import update_test as plain
from tests.learner.update_test import B, L, T, V
from tests.reference import padded

# Groups of every size. Group 0 has prompts of one token, group 3 of L tokens.
GROUPS = (0, 3, 3, 1, 3, 0, 1, 2, 2, 3, 1, 4)
# Several microbatches, in chunks and in rows.
CHUNKS = dict(tokens=4 * T)
ROWS = dict(tokens=30, attention='splash')
VIEWS = pytest.mark.parametrize('view', [CHUNKS, ROWS], ids=('chunks', 'rows'))


def _quickly(view):
  """Marks a test of both views, of which the other one is slow."""
  return pytest.mark.parametrize('view', [
      x if x is view else pytest.param(x, marks=pytest.mark.slow)
      for x in (CHUNKS, ROWS)], ids=('chunks', 'rows'))


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
  return batch.replace(tokens=tokens, prompt_length=length)


@functools.lru_cache(None)
def _batch(seed=0):
  return shared(plain._batch(seed=seed))


@functools.lru_cache(4)
def _learner(kind, **changes):
  return kind(plain.MODEL, dataclasses.replace(plain.CONFIG, **changes),
              plain.SGD)


def _twin(batch, loss=plain.LOSS, **changes):
  """Returns parameters and metrics after an update with padded rows."""
  learner = _learner(padded.Learner, **changes)
  state, metrics = learner.update(
      learner.init(jax.device_put(plain._params())), jax.device_put(batch),
      jax.tree.map(np.float32, loss))
  return jax.device_get((state.params, learners.unpadded(metrics)))


def _run(batch, loss=plain.LOSS, groups=GROUPS, **changes):
  """Returns parameters and metrics after an update with lists."""
  learner = _learner(learners.make, **changes)
  state, metrics = learners.update(
      learner, learner.init(jax.device_put(plain._params())),
      jax.device_put(batch), jax.tree.map(np.float32, loss), prompt=groups)
  return jax.device_get((state.params, learners.unpadded(metrics)))


@VIEWS
def test_update_equals_padded_rows(view):
  want = _twin(_batch(), row_facts=True)
  got = _run(_batch(), row_facts=True, samples=3, **view)
  plain._close(got, want)


@VIEWS
def test_scores_equal_padded_rows(view):
  args = jax.device_put(
      (plain._params(), _batch(), jax.tree.map(np.float32, plain.LOSS)))
  want = _learner(padded.Learner).score(*args).logprobs
  got = learners.score(
      _learner(learners.make, **view), *args, prompt=GROUPS).logprobs
  plain._close(got, want)
  assert (np.asarray(want) != 0).sum() > 30


def _losses(objective, correction):
  """Returns the hyperparameters of a combination."""
  values = dict(clip_low=.1, clip_high=.2, cap=1.2, low=.5, high=2.0)
  of = lambda fn: {name: values.get(name, 1.0)
                   for name in hyperparameters(fn)}
  return plain.LOSS.replace(
      objective=of(update_lib.OBJECTIVES[objective]),
      importance=of(importance.CORRECTIONS[correction]))


def _compare(objective, aggregation, correction, remat, view):
  loss = _losses(objective, correction)
  given = dict(objective=objective, aggregation=aggregation,
               importance=correction)
  plain._close(_run(_batch(), loss, remat=remat, **given, **view),
               _twin(_batch(), loss, **given))


@pytest.mark.parametrize('view, case', [
    (CHUNKS, ('gspo', 'sequence_mean', 'sequence_tis', 'full')),
    (ROWS, ('no_clip', 'constant', 'none', 'matmuls'))], ids=str)
def test_losses(case, view):
  _compare(*case, view)


@pytest.fixture
def forget():
  """Frees the programs of a test: a process has room for a few hundred."""
  yield
  _learner.cache_clear()
  jax.clear_caches()
  gc.collect()


@pytest.mark.slow
@VIEWS
@pytest.mark.parametrize('case', [
    *((*names, 'attention') for names in itertools.product(
        policy_losses.OBJECTIVES, policy_losses.AGGREGATIONS,
        importance.CORRECTIONS)),
    ('likelihood', 'token_mean', 'none', 'none')], ids='/'.join)
def test_every_loss(case, view, forget):
  _compare(*case, view)


@functools.lru_cache(3)
def _of_family(name, kind, remat='none', **view):
  model, *_ = families.family(name)
  model = dataclasses.replace(model, window=model.window and 4)
  learner = kind(model, dataclasses.replace(
      plain.CONFIG, remat=remat, **view), plain.SGD)
  params = jax.tree.map(lambda x: 1.5 * x, transformer.init(
      jax.random.key(3), model))
  args = learner.init(params), *jax.device_put(
      (_batch(), jax.tree.map(np.float32, plain.LOSS)))
  state, metrics = learner.update(*args) if kind is padded.Learner else (
      learners.update(learner, *args, prompt=GROUPS))
  return model, jax.device_get((state.params, metrics['loss'], params))


@pytest.mark.parametrize('name, view', [
    ('gemma2', CHUNKS), ('gemma2', ROWS),
    pytest.param('qwen2', CHUNKS, marks=pytest.mark.slow)])
def test_families(name, view):
  """Gemma 2 has windows of fewer tokens than a row, and soft caps."""
  _family(name, view)


@pytest.mark.slow
@VIEWS
@pytest.mark.parametrize('remat', transformer.REMAT)
@pytest.mark.parametrize('name', families.NAMES)
def test_every_family(name, remat, view):
  _family(name, view, remat)


def _family(name, view, remat='none'):
  model, want = _of_family(name, padded.Learner)
  _, got = _of_family(name, learners.make, remat, **view)
  # Forward, back to states and to weights; the vocabulary; sums over the rows.
  bound = typical(3 * decoder(model, L + T), model.vocab_size, B * T)
  jax.tree.map(lambda a, b, start: np.testing.assert_allclose(
      a, b, rtol=0, atol=bound * max(1, np.abs(start).max(), np.abs(
          a - start).max())), got[0], want[0], want[2])
  np.testing.assert_allclose(got[1], want[1], rtol=bound, atol=bound)


def _both(make, state_of, batch, loss, *rest, view):
  """Compares an update with lists to one with padded rows.

  Args:
    make: (function like `learner.make`, fields of the config) -> learner.
    state_of: (learner) -> its first state.
    batch: the rows.
    loss: hyperparameters.
    *rest: more arguments of the update.
    view: fields of the config.
  """
  batch, loss = jax.device_put(batch), jax.tree.map(np.float32, loss)
  found = []
  for kind, fields in ((padded.Learner, {}), (learners.make, view)):
    learner = make(kind, fields)
    args = state_of(learner), batch, loss, *rest
    state, metrics = learner.update(*args) if kind is padded.Learner else (
        learners.update(learner, *args, prompt=GROUPS))
    metrics = learners.unpadded(metrics)
    players = state if isinstance(state, tuple) else (state,)
    found.append(jax.device_get(([x.params for x in players], metrics)))
  # Gradients of the actor's losses are up to 4, so sums of them are.
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=plain.TOLERANCE * max(1, np.abs(b).max())), *found)


@_quickly(CHUNKS)
def test_rejection(view):
  batch = shared(coupled._batch()).replace(
      identity=np.zeros((B, 3), np.uint32))
  _both(
      lambda kind, fields: kind(plain.MODEL, dataclasses.replace(
          plain.CONFIG, importance='none', **fields,
          rejection=coupled.rejection.Rejection(
              top_k=coupled.K, **coupled.PASSES['two_pass'])), plain.SGD),
      lambda learner: learner.init(jax.device_put(coupled._params(2))),
      batch, coupled.LOSS, view=view)


@_quickly(CHUNKS)
def test_an_actor_that_is_another_model(view):
  """Both players, and the parameters that wrote the rows."""
  batch = shared(paired._batch()).replace(
      identity=np.zeros((B, 3), np.uint32))
  choices, training = paired.CASES['behaviour']
  _both(
      lambda kind, fields: kind(
          plain.MODEL, dataclasses.replace(
              plain.CONFIG, importance='none', **fields,
              rejection=coupled.rejection.Rejection(
                  top_k=paired.K, decoupled=True, **choices),
              actor=dataclasses.replace(paired.TRAINING, **training)),
          plain.SGD, actor=paired.ACTOR),
      lambda learner: learner.init(*jax.device_put(
          (plain._params(), paired._omega(6)))),
      batch, paired.LOSS, None, {
          'behaviour': jax.device_put(paired._omega(5))}, view=view)


@VIEWS
def test_nothing_compiles_after_the_first_call(view):
  learner = _learner(learners.make, samples=3, **view)
  state = learner.init(jax.device_put(plain._params()))
  loss = jax.device_put(jax.tree.map(np.float32, plain.LOSS))
  nothing = _batch(2)
  nothing = nothing.replace(mask=np.zeros_like(nothing.mask))
  counts, sizes = set(), set()
  for batch, groups in (
      (_batch(1), GROUPS), (_batch(3), tuple(range(B))),
      (shared(plain._batch(seed=4), (3,) * B), (3,) * B), (nothing, GROUPS)):
    was = jax.device_get(state)
    plan = learners.plan(learner, batch, groups, batch.mask.any(1))
    sizes.add(plan.sizes)
    state, metrics = learner.update(
        state, *jax.device_put((batch, plan)), loss)
    counts.add(learner.programs.update.program._cache_size())
  assert counts == {len(learner.plans(B))} and sizes <= {
      one.sizes for one in learner.plans(B)}
  # The last batch has no row: it changes nothing.
  assert metrics['tokens'] == 0
  plain._same(jax.device_get(state.params), was.params)


def _on_mesh(sizes, view):
  """Returns scores and parameters of an update on a mesh."""
  model = dataclasses.replace(plain.MODEL, vocab_size=24, heads=4, kv_heads=2)
  params = transformer.init(jax.random.key(0), model)
  mesh = sharding.make_mesh(*sizes)
  learner = learners.make(model, dataclasses.replace(
      plain.CONFIG, row_facts=True, vocab_chunk=16, samples=3, **view),
                            plain.SGD, mesh=mesh)
  state = learner.init(jax.device_put(
      params, sharding.shardings(params, sharding.TRAIN_RULES, mesh)))
  groups = *GROUPS, 1, 1, 5, 0
  batch = shared(plain._batch(16), groups)
  batch = jax.device_put(batch, sharding.rows(mesh))
  loss = jax.tree.map(np.float32, plain.LOSS)
  scores = learners.score(
      learner, state.params, batch, loss, prompt=groups).logprobs
  state, metrics = learners.update(
      learner, state, batch, loss, prompt=groups)
  metrics = learners.unpadded(metrics)
  return [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(
      (scores, state.params, metrics))]


@pytest.mark.parametrize('sizes, view', [
    ((2, 2, 2), CHUNKS), *(
        pytest.param(sizes, view, marks=pytest.mark.slow) for sizes, view in (
            ((4, 1, 2), ROWS), ((8, 1, 1), CHUNKS), ((2, 4, 1), ROWS),
            ((4, 2, 1), CHUNKS)))])
def test_eight_devices(sizes, view):
  want = _one_device()
  got = devices.run(_on_mesh, sizes, view)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(
        a, b, rtol=plain.TOLERANCE, atol=plain.TOLERANCE)


@functools.lru_cache(None)
def _one_device():
  return devices.run(_on_mesh, (1, 1, 1), CHUNKS, devices=1)
