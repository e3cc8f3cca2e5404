"""Tests of the joint update of a policy and an actor, against two twins."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import actor as actor_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import rejection
from jaxrl_llm.learner.options import OptimizerConfig
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import token_stats
from jaxrl_llm.ops.token_stats import StudentStats, TokenStats
from jaxrl_llm.prepare import choices, methods
from tests.helpers import devices, learners, tiny
from tests.learner import rejection_update_test as coupled
from tests.learner import update_test as plain
from tests.reference import rejection as reference

B, L, T, V, K = plain.B, plain.L, plain.T, plain.V, 4
ACTOR = ModelConfig(
    vocab_size=V, width=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    mlp_width=10, logit_softcap=3.0)
CLIP, LIMITS = coupled.CLIP, coupled.LIMITS
LOSS = coupled.LOSS.replace(actor=jax.tree.map(
    np.float32, dict(**CLIP, cap=1.2, kl_target=.05)))
TRAINING = actor_lib.Training(distill=.7, importance='tis')
CASES = {
    # The union of both models' likeliest tokens, and kappa of the last update.
    'topk': (dict(), dict()),
    'exact': (dict(z='exact', mask='expected'), dict(distill_top_k=5)),
    'behaviour': (dict(z='exact'), dict(controlled=True)),
    'p_ref': (dict(target='p_ref'), dict(ppo=False)),
    'p_ref_exact': (dict(target='p_ref', z='exact'), dict()),
    'two_pass': (dict(two_pass=True), dict(importance='none')),
}


@functools.lru_cache(None)
def _learner(sgd=plain.SGD, rejected=True, training=(), **choices):
  """Makes the joint learner; `training` are items of TRAINING's changes."""
  return learners.make(
      plain.MODEL, dataclasses.replace(
          plain.CONFIG, importance='none', rejection=(
              rejection.Rejection(top_k=K, decoupled=True, **choices)
              if rejected else None),
          actor=dataclasses.replace(TRAINING, **dict(training))),
      sgd, actor=ACTOR)


def _shapes(model):
  return jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))


@functools.lru_cache(None)
def _omega(seed=5):
  params = transformer.init(jax.random.key(seed), ACTOR)
  return jax.device_get(jax.tree.map(lambda x: 2.0 * x, params))


def _logq(params, batch):
  """Returns the actor's log-probs [B, T, V] of the response, dense."""
  hidden, _ = transformer.forward(params, batch.tokens, cfg=ACTOR)
  logits = transformer.logits(params, hidden, ACTOR) / LOSS.temperature
  columns = jnp.minimum(batch.prompt_length[:, None] + np.arange(T), L + T - 1)
  return jax.nn.log_softmax(logits)[
      jnp.arange(len(batch.tokens))[:, None], columns - 1]


def _batch(seed=0, old=7):
  """Makes rows that the actor of seed 6 wrote, with its likeliest tokens.

  The sampler's log-probs differ a little from the trainer's. The policy of seed
  1 was the old one, and the actor of seed `old`.
  """
  batch = coupled._batch(seed)
  rng = np.random.default_rng(seed)
  wrote = np.asarray(_logq(_omega(6), batch))
  ids = np.argsort(-wrote, -1, kind='stable')[..., :K]
  chosen = coupled._chosen(batch, wrote)
  return batch.replace(
      behaviour_logprobs=(chosen + .1 * rng.standard_normal(
          chosen.shape)).astype(np.float32),
      actor_logprobs=coupled._chosen(
          batch, np.asarray(_logq(_omega(old), batch))),
      top_ids=np.swapaxes(ids, 1, 2).astype(np.int32),
      top_logprobs=np.swapaxes(np.take_along_axis(wrote, ids, -1), 1, 2))


def _union_z(batch, logp, logq, lam):
  """Computes Z over the sampler's tokens and the policy's K likeliest."""
  out = np.zeros((B, T))
  for b, t in np.ndindex(B, T):
    known = dict(zip(batch.top_ids[b, :, t], batch.top_logprobs[b, :, t]))
    for v in np.argsort(-logp[b, t], kind='stable')[:K]:
      known.setdefault(v, logq[b, t, v])
    out[b, t] = sum(
        min(np.exp(np.float64(q)), np.exp(logp[b, t, v]) / lam)
        for v, q in known.items())
  return out


def _mask(batch):
  return batch.mask & (np.arange(T) < batch.response_length[:, None])


def _policy_twin(params, batch, choices, step, calibration, exact, present):
  """Returns gradient, loss and calibration of the policy's loss alone.

  Args:
    exact: log-probs [B, T, V] of the actor that wrote the rows.
    present: the same of the actor in the forward pass.
  """
  cfg = rejection.Rejection(top_k=K, decoupled=True, **choices)
  mask = _mask(batch)
  dense, pull = jax.vjp(lambda p: coupled._logprobs(p, batch), params)
  logp = np.asarray(dense, np.float64)
  zero = lambda x: np.where(mask, x, 0).astype(np.float64)
  new = zero(coupled._chosen(batch, logp))
  old, behaviour = map(zero, (batch.old_logprobs, batch.behaviour_logprobs))
  target = logp if cfg.target == 'p_new' else np.asarray(
      coupled._logprobs(coupled._params(1), batch), np.float64)
  topk = _union_z(batch, target, present, LIMITS['lam'])
  noise = np.asarray(rejection.noise(batch.identity, step, T))
  acceptance, keep = reference.tokens(
      new, old, behaviour, mask, noise, target=cfg.target, kind=cfg.mask,
      lam=LIMITS['lam'])
  own = cfg.target == 'p_ref' or cfg.two_pass
  counted = cfg.z == 'topk' or cfg.target == 'p_new'
  after = reference.calibrate(
      acceptance, keep, mask, topk, alpha=cfg.alpha, own=own,
      previous=calibration)
  after = after if counted else (calibration[0], after[1])
  used = after if own else calibration
  z = used[0] * topk
  if cfg.z == 'exact':
    z = np.minimum(np.exp(exact), np.exp(target) / LIMITS['lam']).sum(-1)
  args = (new, old, behaviour, batch.advantages.astype(np.float64), mask,
          batch.response_length > 0, noise, z, used)
  options = dict(
      target=cfg.target, kind=cfg.mask, weighted=True, objective='clip',
      denominator='accepted', aggregation='token_mean', correction='none',
      low=0, cap=0, budget=6.0, **LIMITS, **CLIP)
  slope = reference.gradient(new, *args, **options)
  columns = np.minimum(
      batch.prompt_length[:, None] + np.arange(T), L + T - 1)
  tokens = np.take_along_axis(batch.tokens, columns, 1)
  cotangent = np.zeros(dense.shape, np.float32)
  np.put_along_axis(cotangent, tokens[..., None], slope[..., None], -1)
  return jax.device_get(pull(jnp.asarray(cotangent))[0]), reference.loss(
      new, *args, **options).sum(), after


@functools.partial(jax.jit, static_argnames='training')
@functools.partial(jax.value_and_grad, has_aux=True)
def _actor_twin(omega, theta, batch, distill, training):
  """Computes the actor's loss alone, written out with dense logits."""
  mask = batch.mask & (jnp.arange(T) < batch.response_length[:, None])
  mean = lambda x: jnp.sum(jnp.where(mask, x, 0.0)) / mask.sum()
  logq, logp = _logq(omega, batch), coupled._logprobs(theta, batch)
  new = jnp.where(mask, coupled_chosen(batch, logq), 0.0)
  ratio = jnp.exp(new - jnp.where(mask, batch.actor_logprobs, 0.0))
  gap = jnp.where(mask, batch.actor_logprobs - batch.behaviour_logprobs, 0.0)
  weight = 1.0 if training.importance == 'none' else jnp.minimum(
      jnp.exp(gap), 1.2)
  a = batch.advantages[:, None]
  ppo = -weight * jnp.minimum(
      ratio * a, jnp.clip(ratio, 1 - CLIP['clip_low'], 1 + CLIP['clip_high'])
      * a)
  p, q = jnp.exp(logp), jnp.exp(logq)
  if training.distill_top_k:
    rank = jnp.argsort(jnp.argsort(-logp, axis=-1), axis=-1)
    groups = jax.nn.one_hot(
        jnp.minimum(rank, training.distill_top_k), training.distill_top_k + 1)
    p, q = (jnp.einsum('btv,btvk->btk', x, groups) for x in (p, q))
  kl = jnp.sum(p * (jnp.log(p) - jnp.log(q)), -1)
  total = distill * mean(kl) + training.ppo * mean(ppo)
  return total, dict(
      actor_kl=mean(kl), actor_distill_loss=distill * mean(kl),
      actor_gap=mean(jnp.abs(gap)), actor_loss=total)


def coupled_chosen(batch, dense):
  columns = jnp.minimum(batch.prompt_length[:, None] + np.arange(T), L + T - 1)
  tokens = jnp.take_along_axis(batch.tokens, columns, 1)
  return jnp.take_along_axis(dense, tokens[..., None], -1)[..., 0]


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow) if (
        name in ('two_pass', 'exact', 'p_ref_exact')) else name
    for name in CASES])
def test_two_joint_updates_equal_two_separate_ones(name):
  """Losses, gradients, calibration and lambda_distill; the actor's old
  log-probs and the normaliser come from the joint score where it is needed."""
  choices, changes = CASES[name]
  training = dataclasses.replace(TRAINING, **changes)
  learner = _learner(training=tuple(changes.items()), **choices)
  state = learner.init(*jax.device_put((coupled._params(0), _omega())))
  calibration, distill = (1.0, 1.0), .7
  for step in range(2):
    batch = _batch(step)
    theta, omega = jax.device_get([player.params for player in state])
    behaviour_params, given = None, batch
    wrote = present = np.asarray(_logq(omega, batch), np.float64)
    if name == 'behaviour':
      behaviour_params = jax.device_put(_omega(6))
      wrote = np.asarray(_logq(behaviour_params, batch), np.float64)
    if 'p_ref' in name:
      scores = jax.device_get(learners.score(
          learner, (coupled._params(1), _omega(7)), batch.replace(
              old_logprobs=None, actor_logprobs=None), LOSS))
      for got, want in ((scores.logprobs, batch.old_logprobs),
                        (scores.actor_logprobs, batch.actor_logprobs)):
        plain._close(np.where(_mask(batch), got, 0),
                     np.where(_mask(batch), want, 0))
      given = batch.replace(z=scores.z, top_ids=None, top_logprobs=None)
      wrote = present = np.asarray(_logq(_omega(7), batch), np.float64)
    grad, loss, after = _policy_twin(
        theta, batch, choices, step, calibration, wrote, present)
    (actor_loss, parts), actor_grad = jax.device_get(_actor_twin(
        omega, theta, batch, distill, training))
    numbers = LOSS if training.importance == 'tis' else LOSS.replace(
        actor={name: x for name, x in LOSS.actor.items() if name != 'cap'})
    state, metrics = learners.update(
        learner, state, given, numbers, None,
        behaviour_params and {'behaviour': behaviour_params})
    got, metrics = jax.device_get((state, metrics))
    plain._close(metrics['loss'], loss)
    plain._close({x: metrics[x] for x in parts}, parts)
    if training.ppo:
      plain._close(metrics['actor_policy_loss'] + distill * parts['actor_kl'],
                   actor_loss)
    # The actor's ratios reach hundreds, and so does its gradient; the error of
    # a ratio is that of log-probs of this size.
    depth = np.abs(np.where(
        _mask(batch), coupled._chosen(batch, present), 0)).max()
    scale = max(1.0, metrics['actor_grad_norm'] * depth)
    plain._close(*(jax.tree.map(lambda x: x / scale, trees) for trees in (
        [player.params for player in got], [
            jax.tree.map(np.subtract, theta, grad),
            jax.tree.map(np.subtract, omega, actor_grad)])))
    plain._close(
        (metrics['grad_norm'], metrics['actor_grad_norm'] / scale),
        (optax.tree.norm(grad), optax.tree.norm(actor_grad) / scale))
    plain._close((got[0].calibration.kappa, got[0].calibration.alpha), after)
    assert abs(metrics['lambda_distill'] - distill) < 1e-6
    if training.controlled:  # The KL is far above its target: 2% a step.
      distill *= 1.02
    calibration = after
  assert abs(got[1].distill - distill) < 1e-6
  assert [int(player.step) for player in got] == [2, 2]


def test_without_rejection_both_learn_the_same_and_are_clipped_separately():
  """The policy's loss is then that of its own learner."""
  limit = 1e-3
  clipped = optimizer_lib.Optimizer(
      optax.chain(optax.clip_by_global_norm(limit), optax.sgd(1.0)),
      optax.constant_schedule(1.0))
  learner = _learner(rejected=False, sgd=clipped)
  batch = _batch().replace(top_ids=None, top_logprobs=None, identity=None)
  state, metrics = jax.device_get(learners.update(
      learner, learner.init(*jax.device_put(
          (coupled._params(0), _omega()))), batch, LOSS))
  alone = learners.make(plain.MODEL, dataclasses.replace(
      plain.CONFIG, importance='none'), plain.SGD)
  want, theirs = jax.device_get(learners.update(
      alone, alone.init(jax.device_put(coupled._params(0))),
      batch.replace(actor_logprobs=None), LOSS))
  for name, value in theirs.items():
    plain._close(metrics[name], value)
  (_, parts), grad = jax.device_get(_actor_twin(
      _omega(), coupled._params(0), batch, .7, TRAINING))
  plain._close({x: metrics[x] for x in parts}, parts)
  grads = jax.tree.map(np.subtract, coupled._params(0), want.params), grad
  for before, after, each, name in zip(
      (coupled._params(0), _omega()), state, grads,
      ('grad_norm', 'actor_grad_norm')):
    norm = float(optax.tree.norm(each))
    assert norm > 10 * limit
    plain._close(metrics[name], norm)
    # By `limit / norm` in place of 1, times the rounding of parameters near 1.
    jax.tree.map(lambda x, y, g, norm=norm: np.testing.assert_allclose(
        y - x, -g * limit / norm, rtol=0, atol=max(
            1e-6, plain.TOLERANCE * limit)), before, after.params, each)


def _states(batch, training=(), **fields):
  """Returns the players before and after an update, and its metrics."""
  learner = _learner(training=training, **fields)
  before = learner.init(*jax.device_put((coupled._params(0), _omega())))
  kept = jax.device_get(before)
  return kept, *jax.device_get(
      learners.update(learner, before, batch, LOSS))


@pytest.mark.parametrize('field', ['old_logprobs', 'actor_logprobs'])
def test_a_loss_that_is_not_finite_skips_both(field):
  """The first is in the policy's loss alone, the second in the actor's."""
  batch = _batch()
  broken = batch.replace(**{
      field: np.full_like(getattr(batch, field), np.nan)})
  before, after, metrics = _states(broken)
  assert metrics['skipped'] == metrics['skipped_in_row'] == 1
  for a, b in zip(before, after):
    plain._same(b.params, a.params)
    assert b.step == 0 and b.skipped == 1
  assert after[1].distill == before[1].distill


def test_the_actor_learns_where_the_policy_accepts_nothing():
  before, after, metrics = _states(coupled._far(_batch()))
  assert metrics['obrs_empty'] == 1
  plain._same(after[0].params, before[0].params)
  assert [int(player.step) for player in after] == [0, 1]
  assert float(optax.tree.norm(jax.tree.map(
      np.subtract, after[1].params, before[1].params))) > 0


def test_rows_without_tokens_change_nothing():
  batch = _batch()
  before, after, metrics = _states(
      batch.replace(mask=np.zeros_like(batch.mask)))
  assert metrics['tokens'] == 0
  plain._same([x.replace(calibration=None) for x in after],
              [x.replace(calibration=None) for x in before])


@pytest.mark.parametrize('rejected, choices', [
    (False, {}), (True, {}), (True, dict(z='exact', mask='expected'))], ids=str)
def test_an_actor_that_does_not_learn_stays_to_the_bit(rejected, choices):
  """The policy learns as with an actor that does, but for the normaliser.

  A top-k normaliser knows the sampler's tokens alone: there is no pass of the
  actor in the update. Weight decay would move an actor without a gradient.
  """
  decay = optimizer_lib.make_optimizer(OptimizerConfig(
      learning_rate=.1, weight_decay=.1), 9)
  learner = _learner(
      sgd=decay, rejected=rejected, training=(('ppo', False), ('distill', 0.0)),
      **choices)
  twin = _learner(sgd=decay, rejected=rejected, **choices)
  batch = _batch()
  if not rejected:
    batch = batch.replace(top_ids=None, top_logprobs=None, identity=None)
  found = []
  for made in (learner, twin):
    states = made.init(*jax.device_put((coupled._params(0), _omega())))
    found.append(jax.device_get(learners.update(made, states, batch, LOSS)))
  (states, metrics), (others, _) = found
  plain._same(states[1].params, _omega())
  assert not jax.tree.leaves(states[1].opt_state) and states[1].step == 0
  assert not [name for name in metrics if name.startswith('actor_')]
  assert states[0].step == 1 and np.isfinite(metrics['loss'])
  if not rejected or choices:
    # A step of Adam is the sign of a gradient: compare its first moment.
    plain._close(*(optax.tree.get(x[0].opt_state, 'mu')
                   for x in (states, others)))


def test_the_controller_moves_towards_its_target():
  """By .1 times the relative error, of which at most .2 counts."""
  cfg = dataclasses.replace(TRAINING, controlled=True)
  params = dict(kl_target=np.float32(.5))
  for kl, want in ((.5, 2.0), (.55, 2.02), (.45, 1.98), (5.0, 2.04),
                   (0.0, 1.96)):
    got = actor_lib.controlled(np.float32(2), np.float32(kl), params, cfg)
    assert abs(float(got) - want) < 1e-6
  assert actor_lib.controlled(np.float32(2), np.float32(9), {}, TRAINING) == 2


def test_the_rest_of_the_tokens_may_be_nothing():
  """All probability is on the likeliest tokens, and rounding exceeds 1."""
  nothing, top = np.zeros((1, 1)), np.log(np.float32([[[.75, .25000006]]]))
  stats = TokenStats(
      nothing, top_logprobs=top, student=StudentStats(nothing, nothing, top))
  assert abs(token_stats.top_k_kl(
      stats.top_logprobs[..., :2], stats.student.top_logprobs[..., :2])) < 1e-12


def _on_mesh(sizes):
  """Returns states and metrics of an update on a mesh; () is one device."""
  model = dataclasses.replace(plain.MODEL, vocab_size=24, heads=4, kv_heads=2)
  small = dataclasses.replace(
      ACTOR, vocab_size=24, width=16, heads=4, kv_heads=2, mlp_width=16)
  trees = [transformer.init(jax.random.key(i), one)
           for i, one in enumerate((model, small))]
  mesh, put = None, jax.device_put
  if sizes:
    mesh = sharding.make_mesh(*sizes)
    trees = [jax.device_put(tree, sharding.shardings(
        tree, sharding.TRAIN_RULES, mesh)) for tree in trees]
    put = lambda x: jax.device_put(x, sharding.rows(mesh))
  learner = learners.make(
      model, dataclasses.replace(
          plain.CONFIG, importance='none', tokens=1,
          rejection=rejection.Rejection(top_k=K, decoupled=True, z='exact'),
          actor=TRAINING), plain.SGD, mesh=mesh,
      actor=small)
  batch = _batch()
  score = learners.score(learner, tuple(trees), put(batch.replace(
      old_logprobs=None, actor_logprobs=None)), LOSS)
  states, metrics = learners.update(
      learner, learner.init(*trees), put(batch), LOSS)
  metrics = learners.unpadded(metrics)
  results = jax.tree.leaves((
      score, [x.params for x in states], states[0].calibration, metrics))
  return [np.asarray(x, np.float64).tolist() for x in results]


@pytest.mark.slow  # tests/devices_test.py has a run with an actor
def test_eight_devices_equal_one():
  eight = devices.run(_on_mesh, (2, 2, 2))
  for a, b in zip(_on_mesh(()), eight, strict=True):
    np.testing.assert_allclose(
        b, a, rtol=plain.TOLERANCE, atol=plain.TOLERANCE)


@pytest.mark.parametrize('fields, kind, bounds', [
    (dict(), 'none', {}),
    (dict(loss__importance='tis', loss__importance_cap=1.7), 'tis',
     dict(cap=1.7)),
    # Rejection alone truncates at c1.
    (dict(off_policy='jackpot', jackpot__c1=2.5), 'tis', dict(cap=2.5)),
    (dict(off_policy='jackpot', loss__importance='icepop',
          loss__importance_low=.4, loss__importance_cap=1.9), 'icepop',
     dict(low=.4, cap=1.9))])
def test_what_corrects_the_actors_loss(fields, kind, bounds):
  config = tiny.load(**tiny.ACTOR, **fields, actor__clip_high=.3)
  assert methods.actor(config).importance == kind
  wanted = dict(clip_low=.2, clip_high=.3, **bounds)
  assert choices.loss_params(config).actor == {
      name: np.float32(value) for name, value in wanted.items()}
