"""Tests of the learner against a twin with dense logits and plain autodiff."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.options import OptimizerConfig
from jaxrl_llm.models import experts, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import policy_losses
from jaxrl_llm.types import LearnerBatch
from tests.helpers import devices, learners
from tests.helpers.tolerance import decoder, typical

V, L, T, B = 23, 5, 7, 12
MODEL = ModelConfig(
    vocab_size=V, width=12, layers=2, heads=2, kv_heads=1, head_dim=6,
    mlp_width=20, qk_norm=True, tie_embeddings=False, logit_softcap=5.0)
# A list has room for two full rows or a few more: a batch is several.
CONFIG = learner_lib.LearnerConfig(
    tokens=4 * T, max_prompt=L, max_response=T, importance='tis')
# Plain descent at rate 1: parameters move by exactly minus the gradient.
SGD = optimizer_lib.Optimizer(optax.sgd(1.0), optax.constant_schedule(1.0))
LOSS = update_lib.LossParams(
    temperature=0.8, entropy_bonus=0.05, kl_coef=0.3, budget=6.0,
    objective=dict(clip_low=0.1, clip_high=0.2), importance=dict(cap=1.2))


@functools.lru_cache(None)
def _learner(**changes):
  return learners.make(
      MODEL, dataclasses.replace(CONFIG, **changes), SGD)


@functools.lru_cache(None)
def _params():
  params = transformer.init(jax.random.key(0), MODEL)
  # Far from uniform, so that every term of the loss counts; not so far that
  # float32 gradients differ by their order of summation.
  params = jax.tree.map(lambda x: 2.0 * x, params)
  for name in {'embed', 'unembed'} & params.keys():
    params[name] *= 0.02 * MODEL.width ** 0.5
  return jax.device_get(params)


def _batch(rows=B, seed=0):
  """Makes rows of every kind: short, full, one token, masked inside, filler."""
  rng = np.random.default_rng(seed)
  response = rng.integers(1, T + 1, rows, np.int32)
  response[:3] = 1, T, 0
  prompt = rng.integers(1, L + 1, rows, np.int32)
  prompt[1] = L
  mask = np.arange(T) < response[:, None]
  mask[3] &= rng.random(T) < 0.5  # single tokens left out
  mask[4] = False  # a row that counts but trains nothing
  logprobs = lambda: np.where(
      mask, rng.normal(-3.0, 0.8, (rows, T)), np.nan).astype(np.float32)
  return LearnerBatch(
      tokens=rng.integers(0, V, (rows, L + T), np.int32),
      prompt_length=prompt, response_length=response, mask=mask,
      behaviour_logprobs=logprobs(),
      advantages=rng.normal(size=rows).astype(np.float32),
      old_logprobs=logprobs(), anchor_logprobs=logprobs())


def _run(batch, loss=LOSS, params=None, real=False, **changes):
  """Returns state and metrics after one update of the initial state."""
  learner = _learner(**changes)
  state = learner.init(jax.device_put(params or _params()))
  loss = jax.tree.map(np.float32, loss)
  state, metrics = learners.update(
      learner, state, *jax.device_put((batch, loss)))
  metrics = metrics if real else learners.unpadded(metrics)
  return jax.device_get((state, metrics))


def _dense(params, batch, temperature):
  """Computes log-probs and entropy [B, T] of the response from dense logits."""
  hidden, _ = transformer.forward(params, batch.tokens, cfg=MODEL)
  logits = transformer.logits(params, hidden, MODEL) / temperature
  rows = jnp.arange(len(batch.tokens))[:, None]
  columns = batch.prompt_length[:, None] + np.arange(T)
  columns = jnp.minimum(columns, L + T - 1)
  logp = jax.nn.log_softmax(logits)[rows, columns - 1]
  chosen = jnp.take_along_axis(
      logp, batch.tokens[rows, columns][..., None], axis=-1)
  return chosen[..., 0], -jnp.sum(jnp.exp(logp) * logp, axis=-1)


@functools.partial(jax.jit, static_argnames='objective')
@functools.partial(jax.grad, has_aux=True)
def _twin(params, batch, loss, objective='clip'):
  """Computes gradient and parts of the token-mean loss, written out."""
  mask = batch.mask & (jnp.arange(T) < batch.response_length[:, None])
  zero = lambda x: jnp.where(mask, x, 0.0)
  new, entropy = map(zero, _dense(params, batch, loss.temperature))
  old, behaviour, anchor = map(zero, (
      batch.old_logprobs, batch.behaviour_logprobs, batch.anchor_logprobs))
  a = jnp.where(mask, batch.advantages[:, None], 0.0)
  ratio = jnp.exp(new - old)
  low, high, cap = 0.1, 0.2, 1.2  # as in LOSS
  if objective == 'likelihood':
    policy, weight = -new * a, jnp.ones_like(a)
  else:
    policy = -jnp.minimum(ratio * a, a * jnp.clip(ratio, 1 - low, 1 + high))
    weight = jnp.minimum(jnp.exp(old - behaviour), cap)
  kl = jnp.exp(anchor - new) - 1 - (anchor - new)
  mean = lambda x: jnp.sum(zero(x)) / mask.sum()
  total = mean(weight * policy - loss.entropy_bonus * entropy
               + loss.kl_coef * kl)
  return total, dict(
      loss=total, policy_loss=mean(weight * policy), tokens=mask.sum(),
      processed=mask.sum(),
      entropy=mean(entropy), ratio=mean(ratio), ratio_max=zero(ratio).max(),
      clip_low=mean((ratio < 1 - low) & (a < 0)),
      clip_high=mean((ratio > 1 + high) & (a > 0)),
      kl_old=mean(jnp.exp(old - new) - 1 - (old - new)), kl_anchor=mean(kl),
      behaviour_gap=mean(jnp.abs(old - behaviour)),
      behaviour_gap_max=jnp.abs(old - behaviour).max(),
      importance=mean(weight),
      importance_capped=mean(weight >= cap),
      learning_rate=1.0, skipped=0.0, skipped_in_row=0.0)


# Forward, back to states and to weights; the vocabulary; sums over the tokens.
# Parameters, gradients and metrics are of the order of 1.
TOLERANCE = typical(3 * decoder(MODEL, L + T), V, B * T)


def _close(got, want):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=TOLERANCE, atol=TOLERANCE), got, want)


def _same(got, want):
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_update_equals_twin():
  batch = _batch()
  grads, want = _twin(_params(), batch, LOSS)
  state, metrics = _run(batch)
  assert min(want[k] for k in ('clip_low', 'clip_high', 'kl_anchor',
                               'importance_capped')) > 0
  want['grad_norm'] = optax.tree.norm(grads)
  _close(metrics, want)
  _close(state.params, jax.tree.map(jnp.subtract, _params(), grads))
  assert state.step == 1


@pytest.mark.parametrize('changes', [{}, dict(tokens=1)], ids=str)
def test_each_row_has_its_own_temperature(changes):
  heat = np.linspace(.6, 1.4, B, dtype=np.float32)
  batch = _batch().replace(temperature=np.where(np.arange(B) == 2, 0, heat))
  grads, want = _twin(_params(), batch, LOSS.replace(
      temperature=heat[:, None, None]))
  want['grad_norm'] = optax.tree.norm(grads)
  state, metrics = _run(batch, **changes)  # row 2 is filler
  _close(metrics, want)
  _close(state.params, jax.tree.map(jnp.subtract, _params(), grads))
  score = learners.score(_learner(), *jax.device_put(
      (_params(), batch, jax.tree.map(np.float32, LOSS))))
  # A list without any row has places of temperature 0.
  nothing = batch.replace(mask=np.zeros((B, T), bool))
  _, metrics = _run(nothing, tokens=500)
  assert metrics['grad_norm'] == metrics['skipped'] == 0
  mask = batch.mask
  _close(score.logprobs[mask], _dense(
      _params(), batch, heat[:, None, None])[0][mask])


@pytest.mark.parametrize('changes', [
    dict(tokens=1), dict(tokens=500), dict(tokens=1, attention='splash'),
    dict(tokens=60, attention='splash')], ids=str)
def test_sizes_of_lists_change_nothing(changes):
  want = _run(_batch())
  got = _run(_batch(), **changes)
  _close(got, want)


def surprised(new, old, advantages, mask, **given):
  """Reports a number of each token, one of all of them, and a constant."""
  surprise = jnp.where(mask, -new, jnp.nan)
  return policy_losses.clip(new, old, advantages, mask, **given), {
      'mine/surprise': surprise,
      'mine/mean': jnp.sum(-new, where=mask) / jnp.maximum(mask.sum(), 1),
      'mine/constant': .5, 'mine/share': surprise > 3}


@pytest.mark.parametrize('tokens', [1, 4 * T, 500])
def test_an_objective_reports_means_over_the_tokens_trained_on(tokens):
  batch = _batch()
  state, metrics = _run(batch, objective=surprised, tokens=tokens)
  own = metrics.pop('objective')
  mask = batch.mask & (np.arange(T) < batch.response_length[:, None])
  new = jax.device_get(_dense(_params(), batch, LOSS.temperature)[0])[mask]
  mean = -new.mean()
  _close(own, {'mine/surprise': mean, 'mine/mean': mean, 'mine/constant': .5,
               'mine/share': np.mean(-new > 3)})
  _close((state, metrics), _run(batch, tokens=tokens))


def test_likelihood_is_supervised_learning():
  batch = _batch()
  loss = LOSS.replace(
      kl_coef=0.0, entropy_bonus=0.0, objective={}, importance={})
  grads, want = _twin(_params(), batch, loss, objective='likelihood')
  state, metrics = _run(batch, loss, objective='likelihood',
                        importance='none')
  _close(metrics['loss'], want['loss'])
  _close(state.params, jax.tree.map(jnp.subtract, _params(), grads))


def test_without_old_logprobs_the_first_pass_stands_in():
  batch = _batch()
  score = learners.score(_learner(), *jax.device_put(
      (_params(), batch, jax.tree.map(np.float32, LOSS))))
  want = _run(batch.replace(old_logprobs=jax.device_get(score.logprobs)))
  got = _run(batch.replace(old_logprobs=None))
  _close(got, want)
  assert got[1]['ratio'] == got[1]['ratio_max'] == 1.0
  assert got[1]['kl_old'] == 0.0


def test_facts_about_rows_come_beside_the_same_update():
  """In the rows' own order, whatever the order of the microbatches."""
  batch = _batch()
  state, metrics = _run(batch, row_facts=True)
  facts = metrics.pop('rows')
  mask = batch.mask & (np.arange(T) < batch.response_length[:, None])
  count = np.maximum(mask.sum(1), 1)
  new, entropy = jax.device_get(_dense(_params(), batch, LOSS.temperature))
  _close(facts['entropy'], np.where(mask, entropy, 0).sum(1) / count)
  ratio = np.exp(np.where(mask, new - batch.old_logprobs, 0))
  a = batch.advantages[:, None]
  clipped = mask & np.where(a > 0, ratio > 1.2, ratio < .9)
  # No ratio is so near a bound that rounding could clip it.
  assert min(np.abs(ratio[mask] - bound).min() for bound in (.9, 1.2)) > 1e-4
  _close(facts['clip_share'], clipped.sum(1) / count)
  assert 0 < clipped.sum() < mask.sum() and not mask.any(1).all()
  _close((state, metrics), _run(batch))


def test_score_equals_dense_logprobs():
  batch = _batch()
  got = learners.score(_learner(), *jax.device_put(
      (_params(), batch, jax.tree.map(np.float32, LOSS))))
  want, _ = _dense(_params(), batch, LOSS.temperature)
  real = np.arange(T) < batch.response_length[:, None]
  np.testing.assert_allclose(
      got.logprobs, np.where(real, want, 0.0), rtol=0, atol=typical(
          decoder(MODEL, L + T), V, magnitude=np.abs(want[real]).max()))


def test_what_masked_tokens_and_filler_rows_hold_is_inert():
  """To the bit; NaN and a mask that should be False included."""
  batch = _batch()
  keep = batch.mask.any(1)
  other = jax.tree.map(np.copy, batch)
  for field in (other.behaviour_logprobs, other.old_logprobs,
                other.anchor_logprobs):
    field[~batch.mask] = 1e30
  other.advantages[~keep] = np.nan
  other.tokens[~keep] = 1
  other.mask[2] = True  # row 2 is filler: it has no response token
  _same(_run(other), _run(batch))


def test_filler_costs_no_microbatch_and_counts_nowhere():
  """Token 22 has a NaN embedding; whatever runs its row has a NaN gradient."""
  options = dict(tokens=1)
  batch = _batch()
  batch.tokens[batch.tokens == V - 1] = 0
  state, want = _run(batch, **options)
  batch.tokens[batch.response_length == 0] = V - 1
  broken = dict(_params(), embed=_params()['embed'].copy())
  broken['embed'][V - 1] = np.nan
  got_state, got = _run(batch, params=broken, **options)
  _same(got, want)
  _same(got_state.params['layers'], state.params['layers'])
  # The test can tell: the same token in a real row does spoil the gradient.
  batch.tokens[1, 0] = V - 1
  assert _run(batch, params=broken, **options)[1]['skipped'] == 1


def test_nonfinite_updates_are_skipped_and_counted():
  learner = _learner()
  good, bad = _batch(), _batch()
  bad.advantages[1] = np.inf
  loss = jax.device_put(jax.tree.map(np.float32, LOSS))
  state = learner.init(jax.device_put(_params()))
  state, _ = learners.update(learner, state, jax.device_put(good), loss)
  before = jax.device_get(state)
  for count in (1, 2, 3):
    state, metrics = learners.update(
        learner, state, jax.device_put(bad), loss)
    assert not np.isfinite(metrics['loss'])
    assert state.skipped == state.skipped_in_row == count
    assert metrics['skipped'] == metrics['skipped_in_row'] == count
    _same(jax.device_get((state.step, state.params, state.opt_state)),
          (before.step, before.params, before.opt_state))
  state, metrics = learners.update(learner, state, jax.device_put(good), loss)
  assert (state.step, state.skipped, state.skipped_in_row) == (2, 3, 0)
  assert not np.array_equal(state.params['embed'], before.params['embed'])


PLAIN = dict(entropy_bonus=0.0, kl_coef=0.0)  # nothing has a gradient at 0


def _skipping(batch, loss, state, **changes):
  """Updates with all rows, and with those that have an advantage."""
  learner, counts = _learner(**changes), batch.mask.any(1)
  batch = batch.replace(anchor_logprobs=None)
  return [jax.device_get(learner.update(
      jax.tree.map(jnp.copy, state), *jax.device_put((
          batch, learners.plan(learner, batch, needed=needed),
          jax.tree.map(np.float32, loss)))))
          for needed in (counts, counts & (batch.advantages != 0))]


@pytest.mark.parametrize('objective, aggregation', zip(
    policy_losses.OBJECTIVES, itertools.cycle(policy_losses.AGGREGATIONS)))
def test_rows_without_an_advantage_need_not_be_computed(objective, aggregation):
  """They count in the denominators; the gradient is the same to 1e-5."""
  batch, changes = _batch(24), dict(
      objective=objective, aggregation=aggregation)
  batch.advantages[5:17] = 0
  loss = LOSS.replace(objective={}, **PLAIN)
  start = _learner(**changes).init(jax.device_put(_params()))
  (whole, all_), (less, metrics) = _skipping(batch, loss, start, **changes)
  flat = lambda x: np.concatenate(
      [np.ravel(leaf) for leaf in jax.tree.leaves(x.params)])
  gradient = flat(whole) - flat(jax.device_get(start))
  norm = float(np.linalg.norm(gradient))
  assert np.linalg.norm(flat(whole) - flat(less)) < 1e-5 * norm > 0
  assert metrics['tokens'] == all_['tokens'] == all_['processed'] == (
      batch.mask.sum())
  assert metrics['processed'] == batch.mask[batch.advantages != 0].sum()
  assert metrics['loss'] == pytest.approx(all_['loss'], abs=1e-5 * norm)


def test_skipped_rows_over_ten_updates_and_when_all_are_skipped():
  adam = optimizer_lib.make_optimizer(OptimizerConfig(
      learning_rate=1e-3, weight_decay=0.1, schedule='cosine'), 20)
  learner = learners.make(MODEL, CONFIG, adam)
  states = [learner.init(jax.device_put(_params()))] * 2
  loss = jax.tree.map(np.float32, LOSS.replace(**PLAIN))
  for number in range(11):
    batch = _batch(seed=number).replace(anchor_logprobs=None)
    batch.advantages[::2] = 0
    if number == 10:
      batch.advantages[:] = 0
    counts = batch.mask.any(1)
    needed = counts, counts & (batch.advantages != 0)
    states = [learner.update(
        jax.tree.map(jnp.copy, state), *jax.device_put((
            batch, learners.plan(learner, batch, needed=rows), loss)))[0]
              for state, rows in zip(states, needed)]
  flat = lambda x: np.concatenate([
      np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(x))])
  whole, less = states
  difference = np.linalg.norm(flat(whole.params) - flat(less.params))
  assert difference < 1e-6 * np.linalg.norm(flat(whole.params))
  # The last one has no gradient, but moves momentum, decay and schedule.
  assert whole.step == less.step == 11
  for mine, theirs in zip(*(
      jax.tree.leaves(jax.device_get(x.opt_state)) for x in states)):
    assert np.linalg.norm(mine - theirs) <= 1e-4 * np.linalg.norm(theirs)


def test_the_stop_token_is_trained():
  """A step on each response's last token alone makes it likelier."""
  batch = _batch()
  last = np.arange(T) == batch.response_length[:, None] - 1
  assert last.sum() == B - 1  # all but the filler row
  warm = jax.tree.map(np.float32, LOSS.replace(temperature=1.0))
  score = lambda params: np.asarray(learners.score(
      _learner(), *jax.device_put((params, batch, warm))).logprobs)
  before = score(_params())
  state, metrics = _run(
      batch.replace(mask=last, advantages=np.full(B, 0.1, np.float32),
                    old_logprobs=before, behaviour_logprobs=before,
                    anchor_logprobs=before),
      LOSS.replace(temperature=1.0, entropy_bonus=0.0, kl_coef=0.0))
  assert metrics['tokens'] == B - 1
  change = (score(state.params) - before)[last]
  assert change.mean() > 0.01


@pytest.mark.parametrize('layers, unroll, scans', [
    (4, None, 0), (5, None, 1), (4, 1, 1)])
def test_few_layers_are_unrolled(layers, unroll, scans):
  """On a CPU; a program has a loop over the microbatches besides."""
  learner = learners.make(
      dataclasses.replace(MODEL, layers=layers),
      dataclasses.replace(CONFIG, unroll=unroll), SGD)
  text = learner.lower(
      'score', learner.state.params, _batch(), learners.plan(learner, _batch()),
      jax.tree.map(np.float32, LOSS)).as_text()
  assert text.count('stablehlo.while') == 1 + scans


def test_an_update_copies_no_moments():
  """A choice of the old or the new ones by array kept 2 of 7 such trees."""
  learner = learners.make(
      dataclasses.replace(MODEL, layers=5, mlp_width=4096), CONFIG,
      optimizer_lib.make_optimizer(OptimizerConfig(0.1), 4))
  memory = learner.lower(
      'update', learner.state, _batch(), learners.plan(learner, _batch()),
      jax.tree.map(np.float32, LOSS)).compile().memory_analysis()
  params = sum(4 * x.size for x in jax.tree.leaves(learner.state.params))
  assert memory.temp_size_in_bytes < 6 * params


def test_one_program_serves_every_mix():
  learner = _learner()
  batches = [_batch(seed=seed) for seed in range(3)]
  batches[1].response_length[2:] = 0
  work = jax.device_put([
      (batch, jax.tree.map(np.float32, LOSS.replace(
          objective=dict(clip_low=0.1, clip_high=0.1 * i),
          temperature=1.0 + i, kl_coef=0.0)))
      for i, batch in enumerate(batches)])
  state = learner.init(jax.device_put(_params()))
  programs = []
  with jax.transfer_guard('disallow'):
    for batch, loss in work:
      plan = jax.device_put(learners.plan(learner, batch))
      learner.score(state.params, batch, plan, loss)
      state, _ = learner.update(state, batch, plan, loss)
      programs.append([
          (x.program._cache_size(), len(x._ready))
          for x in (learner.programs.score, learner.programs.update)])
  # Other tests of this learner may have compiled other kinds of arguments.
  assert programs[0] == programs[1] == programs[2]


def _update_on_mesh(sizes):
  """Returns scores and state after an update on a mesh; () is one device."""
  optimizer = optimizer_lib.make_optimizer(
      OptimizerConfig(1e-2, eps=1e-3), 4)
  model = dataclasses.replace(
      MODEL, vocab_size=24, heads=4, kv_heads=2, experts=4, experts_per_token=2,
      expert_width=8, dense_layers=(0,))
  params = transformer.init(jax.random.key(0), model)
  mesh = None
  put = jax.device_put
  if sizes:
    mesh = sharding.make_mesh(*sizes)
    layout = sharding.shardings(params, sharding.TRAIN_RULES, mesh)
    params = jax.device_put(params, layout)
    put = lambda x: jax.device_put(x, sharding.rows(mesh))
  learner = learners.make(
      model, dataclasses.replace(
          CONFIG, tokens=1, row_facts=True), optimizer, mesh=mesh)
  state = learner.init(params)
  loss = jax.tree.map(np.float32, LOSS)
  batch = put(_batch())
  scores = learners.score(learner, state.params, batch, loss).logprobs
  # With other experts than the router's.
  record = experts.Record.of(model)
  batch = batch.replace(experts=put(np.random.default_rng(0).permuted(
      np.broadcast_to(np.arange(4, dtype=record.type), (B, L + T, 4)),
      axis=-1)[..., :record.width]))
  state, metrics = learners.update(learner, state, batch, loss)
  if sizes:
    for leaf, moments in zip(
        jax.tree.leaves(state.params),
        jax.tree.leaves(optax.tree.get(state.opt_state, 'mu')), strict=True):
      assert leaf.sharding == moments.sharding
    assert not state.params['layers']['up'].sharding.is_fully_replicated
  return [np.asarray(x, np.float64).tolist() for x in jax.tree.leaves(
      (state.params, scores, metrics['rows'], metrics['loss'],
       metrics['grad_norm'], metrics['experts_load_max'],
       metrics['experts_load_min'], metrics['experts_unused']))]


def test_eight_devices_equal_one():
  eight = devices.run(_update_on_mesh, (2, 2, 2))
  for a, b in zip(_update_on_mesh(()), eight, strict=True):
    # Relative for the norm of all gradients, which is about 9.
    np.testing.assert_allclose(b, a, rtol=TOLERANCE, atol=TOLERANCE)


def test_logits_are_never_all_there():
  """Peak memory at a real vocabulary, against logits of all tokens at once."""
  model = ModelConfig(
      vocab_size=151_936, width=64, layers=1, heads=2, kv_heads=1,
      head_dim=32, mlp_width=64)
  rows, prompt, response = 4, 16, 2048
  array = jax.ShapeDtypeStruct

  def peak(chunk):
    learner = learners.make(
        model, learner_lib.LearnerConfig(
            tokens=rows * (prompt + response), max_prompt=prompt,
            max_response=response, importance='tis', remat='full',
            vocab_chunk=chunk),
        optimizer_lib.make_optimizer(OptimizerConfig(1e-3), 1))
    params = jax.eval_shape(
        lambda: transformer.init(jax.random.key(0), model))
    per_row = array((rows,), jnp.int32)
    per_token = array((rows, response), jnp.float32)
    batch = LearnerBatch(
        tokens=array((rows, prompt + response), jnp.int32),
        prompt_length=per_row, response_length=per_row,
        mask=array((rows, response), bool), behaviour_logprobs=per_token,
        advantages=array((rows,), jnp.float32), old_logprobs=per_token)
    loss = jax.tree.map(lambda _: array((), jnp.float32), LOSS)
    compiled = learner.lower(
        'update', jax.eval_shape(learner.init, params), batch,
        learner.plans(rows)[-1],
        loss).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert peak(None) * 5 <= peak(rows * response)


def test_bad_batch():
  batch = _batch()
  with pytest.raises(ValueError, match='pad them to 12 and 7 columns'):
    _run(batch.replace(tokens=batch.tokens[:, 1:]))


def test_an_observation_has_no_gradient():
  """What the environment wrote is read by later tokens, and never learned."""
  batch = _batch()
  row, at, length = 1, np.arange(T), batch.response_length.copy()
  length[row] = T
  batch.mask[row] = (at < 2) | (at == 4)  # observations at 2, 3, 5, 6
  for name in ('behaviour_logprobs', 'old_logprobs', 'anchor_logprobs'):
    getattr(batch, name)[row] = np.where(batch.mask[row], -3.0, np.nan)
  batch = batch.replace(response_length=length)
  start = int(batch.prompt_length[row])

  def changed(columns):
    tokens = batch.tokens.copy()
    tokens[row, start + np.array(columns)] = (
        tokens[row, start + np.array(columns)] + 1) % V
    return _run(batch.replace(tokens=tokens))

  state, metrics = _run(batch)
  other, same = changed([5, 6])  # no token of the model follows
  jax.tree.map(np.testing.assert_array_equal, state, other)
  jax.tree.map(np.testing.assert_array_equal, metrics, same)
  # The model's token at 4 is written in their sight.
  other, _ = changed([2, 3])
  assert np.abs(other.params['embed'] - state.params['embed']).max() > 1e-4
  assert metrics['tokens'] == batch.mask.sum()
