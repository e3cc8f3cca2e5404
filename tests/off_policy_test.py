"""Tests of `off_policy=jackpot` in a run: equal weights, and its fields."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.learner import rejection
from jaxrl_llm.models import transformer
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build
from tests.helpers import tiny
from tests.helpers.tolerance import policy_gap

EXACT = dict(
    off_policy='jackpot', jackpot__z='exact', jackpot__top_k=0,
    jackpot__mask='expected')


@functools.cache
def first_step(**fields):
  """Takes the first step of a run with these fields.

  Returns:
    Its config, metrics, batch, gradient, and the parameters before it.
  """
  config = tiny.load(**fields, sampling__top_p=.5, optimizer__max_grad_norm=1e9)
  watched = tiny.watch(build.parts(config), tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  params = jax.device_get(state.learner.params)
  state, report = train.take_step(watched.parts, state, fixed, timing.Timer())
  # The first moment is 1 - b1 times the gradient.
  moment = jax.device_get(optax.tree.get(state.learner.opt_state, 'mu'))
  batch, = watched.batches
  return config, report.row, batch, jax.tree.map(
      lambda x: x / (1 - config.optimizer.b1), moment), params


def logprobs_of(config, batch):
  """Returns parameters -> log-probs [B, S - 1] of all tokens but the first."""
  model = config_lib.model_config(config)

  def logprobs(params):
    hidden, _ = transformer.forward(params, batch.tokens[:, :-1], cfg=model)
    logp = jax.nn.log_softmax(
        hidden @ transformer.unembedding(params).T, axis=-1)
    return jnp.take_along_axis(logp, batch.tokens[:, 1:, None], -1)[..., 0]

  return logprobs


def place(batch, values):
  """Returns values [B, T] of the mask's tokens where `logprobs_of` has them."""
  placed = np.zeros(batch.tokens[:, 1:].shape)
  for row, first in enumerate(batch.prompt_length):
    there = np.flatnonzero(batch.mask[row])
    placed[row, first - 1 + there] = values[row, there]
  return placed


def sizes(config, params, batch):
  """Sums |advantage| |d log p| over tokens, and divides by their number."""
  weights = place(batch, np.abs(
      batch.advantages[:, None] * batch.mask)) / batch.mask.sum()
  jacobian = jax.jit(jax.jacrev(logprobs_of(config, batch)))(params)
  return jax.tree.map(
      lambda x: np.einsum('bt,bt...->...', weights, np.abs(x)), jacobian)


@pytest.mark.parametrize('objective', [
    pytest.param('clip', marks=pytest.mark.slow), 'no_clip'])
def test_equal_weights_are_plain_training(objective):
  """The actor's log-probs are of the tempered distribution, not the truncated.

  Behaviour and target differ by rounding alone, so every token is accepted, Z
  is 1, and every weight is 1.
  """
  config, plain, batch, gradient, params = first_step(
      loss__objective=objective)
  _, row, same, ours, _ = first_step(loss__objective=objective, **EXACT)
  assert tiny.same(same.tokens, batch.tokens)
  assert tiny.same(same.advantages, batch.advantages)
  real = batch.mask
  assert real.sum() > 50 and (batch.advantages != 0).any()
  # Truncated, most log-probs would be 0 or far from those of the learner.
  gap = float(policy_gap(config, same.behaviour_logprobs[real]))
  assert row['update/behaviour_gap_max'] < gap < 1e-4
  assert 1 - 1e-5 < row['update/obrs_acceptance'] <= 1
  assert row['update/obrs_z'] == pytest.approx(1, abs=gap)
  assert row['update/importance'] == pytest.approx(1, abs=3 * gap)
  assert row['update/obrs_at_c1'] == row['update/obrs_at_c2'] == 0
  # Acceptance, Z, its product with the ratio, and the share of accepted tokens
  # are 1 to the gap of two log-probs.
  error = 4 * gap
  mean = np.abs(batch.advantages[:, None] * real).sum() / real.sum()
  assert row['update/loss'] == pytest.approx(
      plain['update/loss'], rel=0, abs=error * mean)
  for got, want, size in zip(*map(jax.tree.leaves, (
      ours, gradient, sizes(config, params, batch)))):
    assert np.abs(want).max() > 0
    np.testing.assert_array_less(
        np.abs(got - want), error * size + error * np.abs(want) + 1e-12)


@pytest.mark.parametrize('mask', [
    'sampled', pytest.param('expected', marks=pytest.mark.slow)])
def test_masking_alone_of_what_8_bits_wrote(mask):
  """No weight: REINFORCE of the kept tokens, by the row's own noise."""
  config, row, batch, gradient, params = first_step(
      off_policy='jackpot', jackpot__weight=False, jackpot__mask=mask,
      jackpot__denominator='all', sampling__weights='float8',
      sampling__kv='float8')
  logprobs = logprobs_of(config, batch)
  at = np.minimum(batch.prompt_length[:, None] + np.arange(
      batch.mask.shape[1]), batch.tokens.shape[1] - 1) - 1
  new = np.take_along_axis(np.asarray(logprobs(params)), at, 1)
  keep = np.minimum(np.exp(new - batch.behaviour_logprobs), 1)
  assert keep[batch.mask].min() < .98  # float8 is no rounding of float32
  if mask == 'sampled':
    keep = np.asarray(rejection.noise(
        batch.identity, 0, config.max_response)) < keep
  weights = place(
      batch, -batch.advantages[:, None] * keep) / batch.mask.sum()
  alone = jax.grad(lambda p: jnp.sum(weights * logprobs(p)))(params)
  assert row['update/importance'] == 1 and 0 < row['update/obrs_kept'] < 1
  error = 4 * float(policy_gap(config, batch.behaviour_logprobs[batch.mask]))
  assert row['update/obrs_kept'] == pytest.approx(
      keep[batch.mask].mean(), abs=error)
  for got, want, size in zip(*map(jax.tree.leaves, (
      gradient, alone, sizes(config, params, batch)))):
    assert np.abs(want).max() > 0
    np.testing.assert_array_less(
        np.abs(got - want), error * size + error * np.abs(want) + 1e-12)


def test_an_actor_that_is_a_copy_of_the_policy_is_plain_training():
  """Same seed and architecture: the actor starts as the policy.

  The first wave has the same tokens. With an exact normaliser and the expected
  mask, all weights are 1 but for rounding, and so the policy's gradient is that
  of plain training. Lambda_distill is 0.
  """
  config, _, batch, gradient, params = first_step(loss__objective='no_clip')
  copy = {name.replace('model__', 'actor__model__'): value for name, value in (
      ('model__preset', 'tiny'), ('model__width', 32), ('model__layers', 1),
      ('model__heads', 2), ('model__kv_heads', 1), ('model__head_dim', 16),
      ('model__mlp_width', 32))}
  _, row, same, ours, _ = first_step(
      loss__objective='no_clip', actor__distill=0, **copy, **EXACT)
  assert tiny.same(same.tokens, batch.tokens)
  assert (batch.advantages != 0).any()
  gap = float(policy_gap(config, same.behaviour_logprobs[batch.mask]))
  assert row['update/behaviour_gap_max'] < gap < 1e-4
  assert 1 - 1e-5 < row['update/obrs_acceptance'] <= 1
  assert row['update/obrs_z'] == pytest.approx(1, abs=gap)
  assert row['update/actor_kl'] == pytest.approx(0, abs=gap)
  assert row['update/lambda_distill'] == row['update/actor_distill_loss'] == 0
  # As above: four factors are 1 to the gap of two log-probs.
  error = 4 * gap
  for got, want, size in zip(*map(jax.tree.leaves, (
      ours, gradient, sizes(config, params, batch)))):
    assert np.abs(want).max() > 0
    np.testing.assert_array_less(
        np.abs(got - want), error * size + error * np.abs(want) + 1e-12)


@pytest.mark.parametrize('fields, said', [
    (dict(loss__behaviour='sampled'), 'before top-k.* loss.behaviour=sampled'),
    (dict(loss__importance='sequence_tis'), 'sequence_tis weights whole'),
    (dict(jackpot__mask='none', jackpot__weight=False), 'nothing to do'),
    (dict(jackpot__alpha='mask', jackpot__mask='expected'),
     'alpha=mask needs a sampled mask'),
    (dict(jackpot__top_k=0), 'top_k=0 leaves .*no tokens'),
    (dict(jackpot__top_k=99), 'top_k=99 exceeds the vocabulary: use at most'),
    (dict(jackpot__weight=False, jackpot__c1=2.0), 'c1=2.0 has no effect'),
    (dict(jackpot__target='p_ref', jackpot__c2=2.0), 'c2=2.0 has no effect'),
    (dict(loss__objective='no_clip', jackpot__c2=2.0), 'c2=2.0 has no effect'),
    (dict(loss__importance='identity', jackpot__c1=2.0),
     'c1=2.0 has no effect with loss.importance=identity'),
    (dict(jackpot__target='p_ref', jackpot__two_pass=True),
     'two_pass=True has no effect'),
    (dict(loss__aggregation='constant', jackpot__denominator='all'),
     'denominator=all has no effect with loss.aggregation=constant'),
    (dict(jackpot__z='exact', actor__lag=1), 'exact.*actor.lag=1'),
    (dict(jackpot__z='exact', selection='replay', replay__rounds=2),
     'exact.*selection=replay'),
    (dict(jackpot__z='exact', curriculum='dynamic'), 'exact.*dynamic'),
    (dict(off_policy='none', jackpot__c1=2.0), 'jackpot.c1 has no effect'),
    (dict(off_policy='jackpots'), 'did you mean .?jackpot'),
    (dict(jackpot__lam=0.0), 'jackpot.lam=0'),
    (dict(jackpot__lam='nan'), 'jackpot.lam'),
    (dict(jackpot__c1=0.0), 'jackpot.c1=0'),
    (dict(jackpot__top_k=-1), 'jackpot.top_k=-1'),
    (dict(actor__lag=-1), 'actor.lag=-1'),
], ids=str)
def test_fields_that_do_not_fit_are_one_sentence(fields, said):
  with pytest.raises(ValueError, match=f'(?is){said}') as error:
    tiny.load(**{'off_policy': 'jackpot', **fields})
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('fields', [
    dict(jackpot__lam=.5, jackpot__c1='inf', jackpot__c2='inf'),
    dict(jackpot__z='exact'), dict(jackpot__z='exact', jackpot__top_k=0),
    dict(jackpot__target='p_ref', jackpot__z='exact', actor__lag=2),
    dict(loss__objective='gspo'), dict(loss__objective='cispo'),
    dict(loss__importance='icepop'), dict(loss__importance='identity'),
    dict(advantage='pkpo', pkpo__k=2, curriculum='dynamic')], ids=str)
def test_fields_that_fit(fields):
  tiny.load(**{'off_policy': 'jackpot', **fields})


def test_a_run_with_another_rejection_is_another_run():
  saved = tiny.load(off_policy='jackpot')
  for other in (
      tiny.load(), tiny.load(off_policy='jackpot', jackpot__target='p_ref'),
      tiny.load(off_policy='jackpot', actor__lag=1)):
    assert config_lib.resume_conflicts(saved, other)
