"""Tests of updates under rejection: calibration, noise, kept state, devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import rejection
from jaxrl_llm.models import transformer
from tests.helpers import devices, learners
from tests.helpers.tolerance import rounding
from tests.learner import update_test as plain
from tests.reference import rejection as reference

B, T, V, K = plain.B, plain.T, plain.V, 4
CLIP = dict(clip_low=.1, clip_high=.2)
LIMITS = dict(lam=1.1, c1=1.5, c2=1.3)
LOSS = jax.tree.map(np.float32, plain.LOSS.replace(
    entropy_bonus=0.0, kl_coef=0.0, objective=CLIP, importance={},
    rejection=LIMITS))
PASSES = {
    'last': dict(),
    'two_pass': dict(two_pass=True, mask='expected'),
    'p_ref': dict(target='p_ref', alpha='mask'),
    'exact': dict(z='exact'),
}


@functools.lru_cache(None)
def _learner(tokens=1, aggregation='token_mean', **choices):
  return learners.make(plain.MODEL, dataclasses.replace(
      plain.CONFIG, importance='none', tokens=tokens, aggregation=aggregation,
      rejection=rejection.Rejection(top_k=K, **choices)), plain.SGD)


@functools.lru_cache(None)
def _params(seed):
  """Returns parameters near those of the other tests."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda x: x + np.float32(.05) * rng.standard_normal(x.shape).astype(
          np.float32), plain._params())


@jax.jit
def _logprobs(params, batch):
  """Returns log-probs [B, T, V] at the response's positions, dense."""
  hidden, _ = transformer.forward(params, batch.tokens, cfg=plain.MODEL)
  logits = transformer.logits(params, hidden, plain.MODEL) / LOSS.temperature
  columns = jnp.minimum(
      batch.prompt_length[:, None] + np.arange(T), plain.L + T - 1)
  rows = jnp.arange(len(batch.tokens))[:, None]
  return jax.nn.log_softmax(logits)[rows, columns - 1]


def _chosen(batch, dense):
  """Returns the log-probs [B, T] of the response's tokens."""
  columns = np.minimum(
      batch.prompt_length[:, None] + np.arange(T), plain.L + T - 1)
  tokens = np.take_along_axis(batch.tokens, columns, 1)
  return np.take_along_axis(dense, tokens[..., None], -1)[..., 0]


def _batch(seed=0, count=K):
  """Makes rows that the parameters of seed 1 wrote."""
  batch = plain._batch(seed=seed)
  dense = np.asarray(_logprobs(_params(1), batch))
  ids = np.argsort(-dense, axis=-1, kind='stable')[..., :count]
  logp = np.take_along_axis(dense, ids, -1)
  old = _chosen(batch, dense)
  return batch.replace(
      behaviour_logprobs=old, old_logprobs=old, anchor_logprobs=None,
      top_ids=np.swapaxes(ids, 1, 2).astype(np.int32),
      top_logprobs=np.swapaxes(logp, 1, 2),
      identity=np.stack([np.full(B, 7), np.arange(B) // 3, np.arange(B) % 3],
                        1).astype(np.uint32))


def _update(learner, state, batch, choices):
  """Scores if needed, and updates."""
  cfg = rejection.Rejection(top_k=K, **choices)
  given, actor = batch, None
  if cfg.scores_z:
    z = learners.score(
        learner, jax.device_put(_params(1)), batch, LOSS).z
    given = batch.replace(z=jax.device_get(z), top_ids=None, top_logprobs=None)
  if cfg.needs_actor:
    actor = jax.device_put(_params(1))
  return jax.device_get(learners.update(
      learner, state, given, LOSS, None, actor and {'behaviour': actor}))


def _expected(params, step, calibration, batch, choices, aggregation):
  """Returns the twin's gradient, loss and calibration of an update."""
  cfg = rejection.Rejection(top_k=K, **choices)
  mask = batch.mask & (np.arange(T) < batch.response_length[:, None])
  dense, pull = jax.vjp(lambda p: _logprobs(p, batch), params)
  dense64 = np.asarray(dense, np.float64)
  zero = lambda x: np.where(mask, x, 0).astype(np.float64)
  new = zero(_chosen(batch, dense64))
  old, behaviour = map(zero, (batch.old_logprobs, batch.behaviour_logprobs))
  ids, logq = (
      np.swapaxes(x, 1, 2) for x in (batch.top_ids, batch.top_logprobs))
  actor = np.asarray(_logprobs(_params(1), batch), np.float64)
  target = actor if cfg.target == 'p_ref' else dense64
  z_topk = reference.topk_z(
      logq.astype(np.float64), np.take_along_axis(target, ids, -1),
      LIMITS['lam'])
  noise = np.asarray(rejection.noise(batch.identity, step, T))
  acceptance, keep = reference.tokens(
      new, old, behaviour, mask, noise, target=cfg.target, kind=cfg.mask,
      lam=LIMITS['lam'])
  own = cfg.target == 'p_ref' or cfg.two_pass
  after = reference.calibrate(
      acceptance, keep, mask, z_topk, alpha=cfg.alpha, own=own,
      previous=calibration)
  used = after if own else calibration
  z = used[0] * z_topk
  if cfg.z == 'exact':
    z = reference.topk_z(actor, target, LIMITS['lam'])
  args = (new, old, behaviour, batch.advantages.astype(np.float64), mask,
          batch.response_length > 0, noise, z, used)
  options = dict(
      target=cfg.target, kind=cfg.mask, weighted=True, objective='clip',
      denominator=cfg.denominator, aggregation=aggregation, correction='none',
      low=0, cap=0, budget=6.0, **LIMITS, **CLIP)
  slope = reference.gradient(new, *args, **options)
  columns = np.minimum(
      batch.prompt_length[:, None] + np.arange(T), plain.L + T - 1)
  tokens = np.take_along_axis(batch.tokens, columns, 1)
  cotangent = np.zeros(dense.shape, np.float32)
  np.put_along_axis(cotangent, tokens[..., None], slope[..., None], -1)
  grad, = pull(jnp.asarray(cotangent))
  loss = reference.loss(new, *args, **options).sum()
  # The mean of kappa z is the accepted share, for the batch's own kappa.
  return jax.device_get(grad), loss, after, (acceptance.sum() if cfg.alpha != (
      'mask') else keep.sum()) / mask.sum()


@pytest.mark.parametrize('name', PASSES)
def test_two_updates_equal_the_twin(name):
  """The second one has the first one's kappa, where that is kept."""
  choices = PASSES[name]
  aggregation = 'sequence_mean' if name == 'two_pass' else 'token_mean'
  learner = _learner(aggregation=aggregation, **choices)
  state = learner.init(jax.device_put(_params(0)))
  calibration = 1.0, 1.0
  for step in range(2):
    batch, params = _batch(step), jax.device_get(state.params)
    grad, loss, after, share = _expected(
        params, step, calibration, batch, choices, aggregation)
    state, metrics = _update(learner, state, batch, choices)
    plain._close(metrics['loss'], loss)
    plain._close(state.params, jax.tree.map(jnp.subtract, params, grad))
    got = state.calibration
    plain._close((got.kappa, got.alpha), after)
    assert after[0] != 1 and after[1] < 1
    if name in ('two_pass', 'p_ref'):  # the batch's own kappa
      assert abs(metrics['obrs_z'] - share) < 1e-6
      assert metrics['obrs_kappa'] == got.kappa
    else:
      assert abs(metrics['obrs_kappa'] - calibration[0]) <= rounding(B * T)
    calibration = after
    state = jax.device_put(state)


@pytest.mark.parametrize('name', ['last', 'two_pass', 'p_ref'])
def test_rows_in_another_order_and_microbatches_change_nothing(name):
  choices, batch = PASSES[name], _batch()
  order = np.random.default_rng(0).permutation(B)
  results = []
  for rows, size in ((batch, 1), (jax.tree.map(lambda x: x[order], batch), 1),
                     (batch, 500)):
    learner = _learner(size, **choices)
    state, metrics = _update(
        learner, learner.init(jax.device_put(_params(0))), rows, choices)
    metrics = learners.unpadded(metrics)
    results.append((state, metrics))
  for other in results[1:]:
    plain._close(other, results[0])


def test_topk_of_the_whole_vocabulary_is_exact():
  choices = dict(z='exact')
  learner = _learner(**choices)
  _, metrics = _update(
      learner, learner.init(jax.device_put(_params(0))),
      _batch(count=V), choices)
  # kappa is 1 in the first update, so the error is of the normalisers alone.
  assert metrics['obrs_z'] < .9
  assert metrics['obrs_z_error'] <= plain.TOLERANCE


def test_noise_belongs_to_the_row_and_the_update():
  """A row of another batch has it too; another update or name has not."""
  rows = np.uint32([[7, 3, 0], [7, 3, 1], [7, 4, 0], [8, 3, 0]])
  a = np.asarray(rejection.noise(rows, 5, 400))
  b = np.asarray(rejection.noise(rows[::-1], 5, 400))
  np.testing.assert_array_equal(a, b[::-1])
  every = np.concatenate([a, rejection.noise(rows, 6, 400)])
  assert len(np.unique(every)) > .99 * every.size
  # Uniform: mean 1/2, standard error 1 / sqrt(12 n).
  assert abs(every.mean() - .5) < 4 / np.sqrt(12 * every.size)


def _far(batch, gap=60.0):
  """Makes the actor's log-probs much larger than those of the policy."""
  return batch.replace(behaviour_logprobs=batch.behaviour_logprobs + gap)


@pytest.mark.parametrize('name', ['last', 'two_pass', 'p_ref'])
def test_a_batch_without_an_accepted_token_changes_nothing(name):
  """Neither parameters nor kappa, alpha or steps; it is counted."""
  choices = {**PASSES[name], 'mask': 'sampled'}
  learner = _learner(**choices)
  state = learner.init(jax.device_put(_params(0)))
  given = rejection.Calibration(np.float32(1.3), np.float32(.6))
  state = state.replace(calibration=jax.device_put(given))
  before = jax.device_get(state)
  after, metrics = _update(learner, state, _far(_batch()), choices)
  assert metrics['loss'] == metrics['grad_norm'] == 0
  assert metrics['obrs_empty'] == 1 and metrics['obrs_kept'] == 0
  assert metrics['tokens'] > 0
  plain._same(after, before)


def test_a_batch_without_tokens_leaves_the_calibration():
  learner = _learner()
  state = learner.init(jax.device_put(_params(0)))
  given = rejection.Calibration(np.float32(1.3), np.float32(.6))
  batch = _batch()
  after, metrics = _update(
      learner, state.replace(calibration=jax.device_put(given)),
      batch.replace(mask=np.zeros_like(batch.mask)), {})
  plain._same(after.calibration, given)
  assert metrics['obrs_empty'] == 0 == metrics['tokens']


@pytest.mark.parametrize('alpha', ['estimate', 'mask'])
@pytest.mark.parametrize('name, value', [
    ('behaviour_logprobs', np.nan), ('advantages', np.inf)])
def test_a_skipped_update_leaves_the_calibration(alpha, name, value):
  """A number that is not finite, between good batches."""
  learner, good = _learner(alpha=alpha), _batch()
  bad = np.array(getattr(good, name))
  bad[tuple(np.argwhere(good.mask)[0])[:bad.ndim]] = value
  state, skipped = learner.init(jax.device_put(_params(0))), []
  for batch in good, good.replace(**{name: bad}), good:
    before = jax.device_get(state.calibration)
    state, metrics = _update(learner, state, batch, {})
    skipped.append(int(metrics['skipped']))
    assert np.isfinite(jax.tree.leaves(state.calibration)).all()
    if len(skipped) == 2:
      assert state.calibration == before
    state = jax.device_put(state)
  assert skipped == [0, 1, 1]


def test_rows_of_a_skipped_update_get_other_noise():
  """Else they would come back with the same tokens left out."""
  learner, kept = _learner(), []
  for step, skipped in ((0, 0), (0, 1), (1, 0)):
    state = learner.init(jax.device_put(_params(0)))
    state = state.replace(step=jnp.int32(step), skipped=jnp.int32(skipped))
    _, metrics = _update(learner, state, _batch(), {})
    kept.append(float(metrics['loss']))
  assert kept[0] != kept[1] == kept[2]


@pytest.mark.parametrize('name', PASSES)
@pytest.mark.parametrize('logprob', [-80.0, -.01])
def test_it_stays_finite(name, logprob):
  """The actor's log-probs are all far below or far above the policy's."""
  choices, batch = PASSES[name], _batch()
  batch = batch.replace(
      behaviour_logprobs=np.full_like(batch.behaviour_logprobs, logprob),
      top_logprobs=np.full_like(batch.top_logprobs, logprob))
  learner = _learner(**{
      **choices, **({'aggregation': 'sequence_mean'}
                    if name == 'two_pass' else {})})
  state, metrics = _update(
      learner, learner.init(jax.device_put(_params(0))), batch, choices)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, metrics)))
  assert metrics['skipped'] == 0


def _on_mesh(sizes):
  """Returns state and metrics of an update on a mesh; () is one device."""
  model = dataclasses.replace(plain.MODEL, vocab_size=24, heads=4, kv_heads=2)
  results = []
  for choices in (dict(), dict(two_pass=True, z='exact')):
    params = transformer.init(jax.random.key(0), model)
    actor = jax.tree.map(lambda x: x * 1.1, params)
    mesh, put = None, jax.device_put
    if sizes:
      mesh = sharding.make_mesh(*sizes)
      layout = sharding.shardings(params, sharding.TRAIN_RULES, mesh)
      params, actor = (jax.device_put(x, layout) for x in (params, actor))
      put = lambda x: jax.device_put(x, sharding.rows(mesh))
    learner = learners.make(
        model, dataclasses.replace(
            plain.CONFIG, importance='none', tokens=1,
            rejection=rejection.Rejection(top_k=K, **choices)), plain.SGD,
        mesh=mesh)
    batch = _batch()
    state, metrics = learners.update(
        learner, learner.init(params), put(batch), LOSS, None,
        {'behaviour': actor} if 'z' in choices else None)
    metrics = learners.unpadded(metrics)
    results += jax.tree.leaves((state.params, state.calibration, metrics))
  return [np.asarray(x, np.float64).tolist() for x in results]


@pytest.mark.slow  # tests/devices_test.py has a run with rejection
def test_eight_devices_equal_one():
  eight = devices.run(_on_mesh, (2, 2, 2))
  for a, b in zip(_on_mesh(()), eight, strict=True):
    np.testing.assert_allclose(
        b, a, rtol=plain.TOLERANCE, atol=plain.TOLERANCE)
