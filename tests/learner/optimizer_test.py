"""Tests of AdamW, its clipping and its schedules against their formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner.options import OptimizerConfig
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from tests.helpers.tolerance import FUNCTION, rounding


def make(*, steps, **values):
  return optimizer_lib.make_optimizer(OptimizerConfig(**values), steps)


def _rates(name, **changes):
  values = dict(dict(warmup_steps=4, steps=10), **changes)
  schedule = optimizer_lib.make_schedule(name, 2.0, **values)
  return np.array([schedule(i) for i in range(values['steps'] + 1)])


def test_schedules():
  # Warm-up over 4 steps reaches the peak at the fourth; 6 steps of decay.
  warm = [0.5, 1.0, 1.5, 2.0]
  close = functools.partial(  # 4 operations and a cosine, of rates up to 2
      np.testing.assert_allclose, rtol=0,
      atol=rounding(4, FUNCTION, magnitude=2))
  close(_rates('constant'), warm + [2.0] * 7)
  close(_rates('linear'), warm + [2 * (1 - i / 6) for i in range(7)])
  close(_rates('cosine'),
        warm + [1 + np.cos(np.pi * i / 6) for i in range(7)])
  close(_rates('constant', warmup_steps=0), 2.0)


@pytest.mark.parametrize('steps', [1, 3, 41, 47])
def test_both_ends_of_a_schedule_are_exact(steps):
  """Compiled: 41 times the rounded reciprocal of 41 is less than 1."""
  def schedule(name, warmup_steps):
    return jax.jit(optimizer_lib.make_schedule(
        name, 1e-3, warmup_steps=warmup_steps, steps=steps + 2))

  warm = schedule('constant', steps)
  assert [warm(steps - 1), warm(steps)] == [np.float32(1e-3)] * 2
  for name in ('linear', 'cosine'):
    before, *after = map(
        schedule(name, 2), (steps + 1, steps + 2, steps + 3, 10 ** 6))
    assert before > 0 and after == [0, 0, 0]


def test_adamw_by_hand():
  """Two steps of Loshchilov and Hutter's algorithm 2, after a clip."""
  params = dict(w=np.array([1.0, -2.0]), norm=np.array([3.0]))
  grads = [dict(w=np.array([3.0, 0.0]), norm=np.array([4.0])),
           dict(w=np.array([0.1, 0.2]), norm=np.array([0.2]))]
  b1, b2, eps, decay, rate = 0.8, 0.9, 1e-3, 0.1, 0.5
  optimizer = make(
      learning_rate=rate, steps=9, b1=b1, b2=b2, eps=eps, weight_decay=decay,
      max_grad_norm=1.0)
  got = jax.tree.map(jnp.asarray, params)
  state = optimizer.transform.init(got)
  m = v = 0.0
  want = np.concatenate([params['w'], params['norm']])
  for t, grad in enumerate(grads, start=1):
    updates, state = optimizer.transform.update(
        jax.tree.map(jnp.asarray, grad), state, got)
    got = optax.apply_updates(got, updates)
    g = np.concatenate([grad['w'], grad['norm']])
    g = g / max(1.0, np.linalg.norm(g))  # of (3, 0, 4): 5
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    want = want - rate * (step + decay * want * [1, 1, 0])
  # Some 20 operations in each of two steps. 1 - b ** t is down to .1, so the
  # errors of two powers count ten times.
  np.testing.assert_allclose(
      np.concatenate([got['w'], got['norm']]), want, rtol=0,
      atol=rounding(
          2 * 20, 10 * 2 * FUNCTION, magnitude=np.abs(want).max()))


def test_what_decays_and_what_the_moments_are():
  cfg = ModelConfig(
      vocab_size=8, width=8, layers=2, heads=2, kv_heads=1, head_dim=4,
      mlp_width=8, qkv_bias=True, qk_norm=True, post_norms=True,
      tie_embeddings=False)
  params = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), cfg))
  decayed = optimizer_lib.decayed(params)
  matrices = {name for name, yes in decayed['layers'].items() if yes}
  assert matrices == {'q', 'k', 'v', 'o', 'gate', 'up', 'down'}
  assert decayed['embed'] and decayed['unembed'] and not decayed['norm']
  optimizer = make(learning_rate=1e-3, steps=1)
  state = jax.eval_shape(optimizer.transform.init, params)
  for moments in (optax.tree.get(state, 'mu'), optax.tree.get(state, 'nu')):
    assert jax.tree.structure(moments) == jax.tree.structure(params)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(moments))


def test_without_clip():
  params = dict(w=jnp.zeros(2))
  grads = dict(w=jnp.array([30.0, 40.0]))

  def first_moment(**options):
    transform = make(
        learning_rate=1.0, steps=1, b1=0.5, **options).transform
    _, state = transform.update(grads, transform.init(params), params)
    return optax.tree.get(state, 'mu')['w']

  np.testing.assert_allclose(first_moment(max_grad_norm=None), [15.0, 20.0])
  np.testing.assert_allclose(
      first_moment(max_grad_norm=5.0), [1.5, 2.0],
      rtol=rounding(8))  # a norm of two terms, its quotient and products


def test_an_unknown_schedule():
  with pytest.raises(ValueError, match="schedule='step' is not known"):
    make(schedule='step', steps=10)
