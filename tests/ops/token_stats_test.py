"""Tests of the chunked pass over the vocabulary."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops.token_stats import token_stats
from tests import devices
from tests.reference import policy_losses as numeric
from tests.reference import token_stats as twin

N, D, V, K, M = 23, 5, 13, 4, 3


def _inputs(dtype=np.float32, scale=1.5):
  rng = np.random.default_rng(0)
  hidden = scale * rng.standard_normal((N, D))
  unembed = rng.standard_normal((V, D))
  return (jnp.asarray(hidden, dtype), jnp.asarray(unembed, dtype),
          rng.integers(0, V, N), rng.integers(0, V, (N, M)))


# One chunk; chunks that divide N, that don't, and of one token.
@pytest.mark.parametrize('chunk', [None, 23, 12, 7, 1])
@pytest.mark.parametrize('temperature, softcap', [(1.0, None), (0.7, 3.0)])
def test_equals_the_dense_twin(chunk, temperature, softcap):
  hidden, unembed, targets, ids = _inputs()
  got = jax.jit(
      lambda *args: token_stats(
          *args[:3], ids=args[3], temperature=args[4], softcap=softcap,
          top_k=K, chunk=chunk))(hidden, unembed, targets, ids, temperature)
  want = twin.token_stats(
      hidden, unembed, targets, temperature, softcap, K, ids)
  for name, a, b in zip(got._fields, got, want):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6, err_msg=name)
  assert got.logprobs.dtype == got.entropy.dtype == jnp.float32


@pytest.mark.parametrize('chunk', [None, 7])
def test_gradients_equal_the_twins(chunk):
  hidden, unembed, targets, ids = _inputs()
  rng = np.random.default_rng(1)
  weights = rng.standard_normal((2, N))
  top_weights = rng.standard_normal((N, K))
  id_weights = rng.standard_normal((N, M))

  def combine(stats):
    logprobs, entropy, _, top_logprobs, id_logprobs = stats
    return ((weights[0] * logprobs).sum() + (weights[1] * entropy).sum()
            + (top_weights * top_logprobs).sum()
            + (id_weights * id_logprobs).sum())

  def ours(hidden, unembed):
    return combine(token_stats(
        hidden, unembed, targets, ids=ids, top_k=K, temperature=0.7,
        softcap=3.0, chunk=chunk))

  def theirs(hidden, unembed):
    return combine(twin.token_stats(
        hidden, unembed, targets, 0.7, 3.0, K, ids))

  got = jax.jit(jax.grad(ours, (0, 1)))(hidden, unembed)
  wide = [np.float64(x) for x in (hidden, unembed)]
  want = (numeric.gradient(lambda h: theirs(h, wide[1]), wide[0]),
          numeric.gradient(lambda w: theirs(wide[0], w), wide[1]))
  for a, b in zip(got, want):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize('chunk', [None, 7])
def test_bfloat16_products_accumulate_in_float32(chunk):
  """The values are the twin's on the rounded inputs, as in float32."""
  rng = np.random.default_rng(2)
  hidden = jnp.asarray(rng.standard_normal((N, 512)), jnp.bfloat16)
  unembed = jnp.asarray(rng.standard_normal((V, 512)) / 8, jnp.bfloat16)
  targets, ids = rng.integers(0, V, N), rng.integers(0, V, (N, M))
  got = jax.jit(lambda h, w: token_stats(
      h, w, targets, ids=ids, top_k=K, chunk=chunk))(hidden, unembed)
  want = twin.token_stats(
      np.float32(hidden), np.float32(unembed), targets, 1.0, None, K, ids)
  for a, b in zip(got, want):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

  @jax.jit
  def gradient(hidden, unembed):
    def loss(hidden, unembed):
      stats = token_stats(hidden, unembed, targets, chunk=chunk)
      return jnp.mean(stats.logprobs + stats.entropy)
    return jax.grad(loss, (0, 1))(hidden, unembed)

  # Float32 parameters keep a float32 gradient, to what bfloat16 resolves.
  grads = gradient(hidden, jnp.float32(unembed))
  exact = gradient(jnp.float32(hidden), jnp.float32(unembed))
  assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32]
  # XLA may drop a rounding that the program asks for, hence the program's own
  # words: bfloat16 in, float32 out, in the backward pass too.
  text = gradient.lower(hidden, jnp.float32(unembed)).as_text()
  dots = re.findall(
      r'dot_general.*<.*x(\w+)>, tensor<.*x(\w+)>.*<.*x(\w+)>', text)
  assert len(dots) >= 3 and set(dots) == {('bf16', 'bf16', 'f32')}
  for a, b in zip(grads, exact):
    error = jnp.linalg.norm(jnp.float32(a) - b) / jnp.linalg.norm(b)
    assert error < 5e-3


def test_any_leading_shape_and_what_is_not_asked_for():
  hidden, unembed, targets, ids = _inputs()
  full = jax.jit(lambda h, t, i: token_stats(
      h, unembed, t, ids=i, top_k=K, chunk=5))
  flat = full(hidden, targets, ids)
  cube = lambda x: jnp.asarray(x)[:12].reshape(2, 3, 2, *x.shape[1:])
  got = full(cube(hidden), cube(targets), cube(ids))
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, cube(b), rtol=1e-5), got, flat)
  bare = token_stats(hidden, unembed, targets, entropy=False)
  assert bare[1:] == (None,) * 4
  scalar = token_stats(hidden[3], unembed, targets[3])
  np.testing.assert_allclose(scalar.logprobs, flat.logprobs[3], rtol=1e-5)


def test_extreme_logits_stay_finite():
  hidden, unembed, targets, _ = _inputs(scale=1e4)
  f = lambda h: token_stats(h, unembed, targets)
  stats, vjp = jax.vjp(jax.jit(f), hidden)
  grad, = vjp(jax.tree.map(jnp.ones_like, stats))
  for x in (stats.logprobs, stats.entropy, grad):
    assert np.all(np.isfinite(x))
  assert np.all(np.asarray(stats.entropy) >= 0)


def _temporary_bytes(f, rows=4, tokens=2048, width=64, vocab=151_936):
  """Peak of value and gradient, from shapes alone: nothing runs."""
  shape = jax.ShapeDtypeStruct
  return jax.jit(jax.value_and_grad(f, (0, 1))).lower(
      shape((rows, tokens, width), jnp.float32),
      shape((vocab, width), jnp.float32),
      shape((rows, tokens), jnp.int32),
  ).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_a_fifth_of_materialised_logits():
  def chunked(hidden, unembed, targets):
    stats = token_stats(hidden, unembed, targets)
    return jnp.sum(stats.logprobs) + jnp.sum(stats.entropy)

  def dense(hidden, unembed, targets):
    logprobs = jax.nn.log_softmax(hidden @ unembed.T)
    chosen = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)
    return jnp.sum(chosen)  # without the entropy, to its favour

  assert 5 * _temporary_bytes(chunked) < _temporary_bytes(dense)


def sharded_rows_and_vocabulary():
  """Largest collective, in numbers, and difference from one device."""
  rows, tokens, vocab = 16, 64, 4096
  mesh = jax.make_mesh(
      (2, 2, 2), ('data', 'fsdp', 'tensor'), (jax.sharding.AxisType.Auto,) * 3)
  spec = jax.sharding.PartitionSpec
  put = lambda x, *axes: jax.device_put(
      x, jax.sharding.NamedSharding(mesh, spec(*axes)))
  keys = jax.random.split(jax.random.key(0), 4)
  hidden = jax.random.normal(keys[0], (rows, tokens, D))
  unembed = jax.random.normal(keys[1], (vocab, D))
  targets = jax.random.randint(keys[2], (rows, tokens), 0, vocab)
  ids = jax.random.randint(keys[3], (rows, tokens, M), 0, vocab)

  def loss(hidden, unembed, targets, ids):
    stats = token_stats(hidden, unembed, targets, ids=ids, chunk=256)
    return jnp.mean(stats.logprobs + stats.entropy
                    + jnp.sum(stats.id_logprobs, -1)), stats

  f = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
  alone = f(hidden, unembed, targets, ids)
  batch = ('data', 'fsdp')
  split = (put(hidden, batch), put(unembed, 'tensor'), put(targets, batch),
           put(ids, batch))
  text = f.lower(*split).compile().as_text()
  results = re.findall(
      r'= (.*?) (?:all-|reduce-scatter|collective-permute)', text)
  shapes = [re.findall(r'\[([\d,]*)\]', x) for x in results]
  sizes = [int(np.prod([int(n) for n in shape.split(',') if n]))
           for found in shapes for shape in found]
  error = jax.tree.map(
      lambda a, b: float(jnp.max(jnp.abs(a - jax.device_get(b)))), alone,
      f(*split))
  return max(sizes), max(jax.tree.leaves(error))


def test_sharded_rows_and_vocabulary():
  largest, error = devices.run(sharded_rows_and_vocabulary)
  # A device holds 64 of a chunk's tokens and 2048 of the vocabulary; what
  # crosses is its share of unembed's gradient at most, never logits.
  assert largest <= 2048 * D < 64 * 2048
  assert error < 2e-4
