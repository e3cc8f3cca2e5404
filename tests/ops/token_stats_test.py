"""Tests of the chunked pass over the vocabulary."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops.token_stats import Head, Split, token_stats, Wanted
from tests.helpers import devices
from tests.helpers.tolerance import FUNCTION, rounding, typical
from tests.reference import policy_losses as numeric
from tests.reference import token_stats as twin

N, D, V, K, M = 23, 5, 13, 4, 3


def _inputs(dtype=np.float32, scale=1.5):
  rng = np.random.default_rng(0)
  hidden = scale * rng.standard_normal((N, D))
  unembed = rng.standard_normal((V, D))
  return (jnp.asarray(hidden, dtype), jnp.asarray(unembed, dtype),
          rng.integers(0, V, N), rng.integers(0, V, (N, M)))


def _bound(hidden, unembed, temperature=1.0):
  """Returns a bound on the float32 errors of log-probs and entropy.

  A logit is a sum over D, and the normaliser a sum over V; tanh, exp and log
  add errors. The magnitude is that of the logits' terms.
  """
  terms = np.abs(hidden) @ np.abs(unembed).T / temperature
  return rounding(D, V, 3 * FUNCTION, magnitude=terms.max())


# One chunk; chunks that divide N, that don't, and of one token.
@pytest.mark.parametrize('chunk', [None, 23, 12, 7, 1])
@pytest.mark.parametrize('temperature, softcap', [
    (1.0, None), (0.7, 3.0), (np.linspace(.5, 1.5, N), None),
    (np.linspace(.5, 1.5, N), 3.0)])
def test_equals_the_dense_twin(chunk, temperature, softcap):
  hidden, unembed, targets, ids = _inputs()
  got = jax.jit(
      lambda *args: token_stats(
          Head(*args[:2], softcap), args[2], temperature=args[4], chunk=chunk,
          wanted=Wanted(ids=args[3], top_k=K)))(
              hidden, unembed, targets, ids, temperature)
  want = twin.token_stats(
      hidden, unembed, targets, np.reshape(temperature, (-1, 1)), softcap, K,
      ids)
  for name, a, b in zip(got._fields, got, want):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=_bound(hidden, unembed, np.min(temperature)),
        err_msg=name)
  assert got.logprobs.dtype == got.entropy.dtype == jnp.float32


@pytest.mark.parametrize('chunk', [None, 7])
def test_gradients_equal_the_twins(chunk):
  hidden, unembed, targets, ids = _inputs()
  rng = np.random.default_rng(1)
  weights = rng.standard_normal((2, N))
  top_weights = rng.standard_normal((N, K))
  id_weights = rng.standard_normal((N, M))

  def combine(stats):
    logprobs, entropy, _, top_logprobs, id_logprobs = stats[:5]
    return ((weights[0] * logprobs).sum() + (weights[1] * entropy).sum()
            + (top_weights * top_logprobs).sum()
            + (id_weights * id_logprobs).sum())

  def ours(hidden, unembed):
    return combine(token_stats(
        Head(hidden, unembed, 3.0), targets, temperature=0.7, chunk=chunk,
        wanted=Wanted(ids=ids, top_k=K)))

  def theirs(hidden, unembed):
    return combine(twin.token_stats(
        hidden, unembed, targets, 0.7, 3.0, K, ids))

  got = jax.jit(jax.grad(ours, (0, 1)))(hidden, unembed)
  wide = [np.float64(x) for x in (hidden, unembed)]
  want = (numeric.gradient(lambda h: theirs(h, wide[1]), wide[0]),
          numeric.gradient(lambda w: theirs(wide[0], w), wide[1]))
  # As the values; then back through tanh, softmax and a sum over V or N.
  for a, b in zip(got, want):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=rounding(
            D, 2 * V, N, 6 * FUNCTION, magnitude=np.abs(b).max()))


@pytest.mark.parametrize('chunk', [None, 7])
def test_bfloat16_products_accumulate_in_float32(chunk):
  """The values are the twin's on the rounded inputs, as in float32."""
  rng = np.random.default_rng(2)
  hidden = jnp.asarray(rng.standard_normal((N, 512)), jnp.bfloat16)
  unembed = jnp.asarray(rng.standard_normal((V, 512)) / 8, jnp.bfloat16)
  targets, ids = rng.integers(0, V, N), rng.integers(0, V, (N, M))
  got = jax.jit(lambda h, w: token_stats(
      Head(h, w), targets, wanted=Wanted(ids=ids, top_k=K), chunk=chunk))(
          hidden, unembed)
  want = twin.token_stats(
      np.float32(hidden), np.float32(unembed), targets, 1.0, None, K, ids)
  # Products of 8-bit numbers are exact in float32: what is rounded are sums of
  # 512, less than 16. bfloat16 would round them by 2 ** -5.
  largest = np.abs(np.float32(hidden) @ np.float32(unembed).T).max()
  assert largest < 16
  for a, b in zip(got, want):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=typical(512, V, 2 * FUNCTION, magnitude=16))

  @jax.jit
  def gradient(hidden, unembed):
    def loss(hidden, unembed):
      stats = token_stats(Head(hidden, unembed), targets, chunk=chunk)
      return jnp.mean(stats.logprobs + stats.entropy)
    return jax.grad(loss, (0, 1))(hidden, unembed)

  # Float32 parameters keep a float32 gradient, to what bfloat16 resolves: the
  # logits' gradient is rounded, and the result for bfloat16 states.
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
    assert error < 2 * 2 ** -8


def test_any_leading_shape_and_what_is_not_asked_for():
  hidden, unembed, targets, ids = _inputs()
  full = jax.jit(lambda h, t, i: token_stats(
      Head(h, unembed), t, chunk=5, wanted=Wanted(
          ids=i, top_k=K, other=Head(h, unembed[::-1]))))
  flat = full(hidden, targets, ids)
  cube = lambda x: jnp.asarray(x)[:12].reshape(2, 3, 2, *x.shape[1:])
  got = full(cube(hidden), cube(targets), cube(ids))
  close = functools.partial(
      np.testing.assert_allclose, rtol=0, atol=_bound(hidden, unembed))
  jax.tree.map(lambda a, b: close(a, cube(b)), got, flat)
  bare = token_stats(
      Head(hidden, unembed), targets, wanted=Wanted(entropy=False))
  assert {*bare[1:]} == {None}
  scalar = token_stats(Head(hidden[3], unembed), targets[3])
  close(scalar.logprobs, flat.logprobs[3])


@pytest.mark.parametrize('chunk, softcap, lam', [
    (None, None, 1.0), (7, 3.0, .8), (1, None, 1.3)])
def test_the_overlap_with_another_model(chunk, softcap, lam):
  """sum_v min(q(v), p(v) / lam); it is no part of the gradient."""
  hidden, unembed, targets, _ = _inputs()
  rng = np.random.default_rng(3)
  other = [jnp.float32(x + .3 * rng.standard_normal(x.shape))
           for x in (hidden, unembed)]
  options = dict(temperature=.7, chunk=chunk)

  def ours(hidden, unembed, other):
    return token_stats(
        Head(hidden, unembed, softcap), targets, **options,
        wanted=Wanted(other=Head(*other, softcap), lam=lam))

  got = jax.jit(ours)(hidden, unembed, other)
  p, q = (
      np.exp(np.float64([
          twin.token_stats(h, w, np.full(N, v), .7, softcap, 1, targets)[0]
          for v in range(V)])) for h, w in ((hidden, unembed), other))
  want = np.minimum(q, p / lam).sum(0)
  # Probabilities below 1 with the relative error of a log-prob; a sum over V.
  np.testing.assert_allclose(
      got.overlap, want, rtol=2 * _bound(hidden, unembed, .7) + rounding(V))
  assert np.ptp(want) > .1
  bare = jax.jit(lambda *args: token_stats(
      Head(*args, softcap), targets, **options))(hidden, unembed)
  np.testing.assert_allclose(
      got.logprobs, bare.logprobs, rtol=0, atol=_bound(hidden, unembed, .7))
  gradient = jax.grad(
      lambda *args: ours(*args).overlap.sum(), (0, 1, 2))
  assert not any(np.any(x) for x in jax.tree.leaves(
      gradient(hidden, unembed, tuple(other))))


def _two_models():
  """Returns inputs of a policy, and of a student with another width."""
  hidden, unembed, targets, ids = _inputs()
  rng = np.random.default_rng(4)
  student = tuple(
      jnp.float32(rng.standard_normal((n, D + 2))) for n in (N, V))
  return (hidden, unembed), student, targets, ids


def _dense_logp(model, softcap):
  logits = model[0] @ model[1].T
  return jax.nn.log_softmax((softcap * jnp.tanh(logits / softcap)) / .7)


@pytest.mark.parametrize('chunk', [None, 14, 2])
def test_a_student_has_its_own_statistics_and_gradients(chunk):
  """KL(p || q) has none with respect to p."""
  policy, student, targets, _ = _two_models()
  rng = np.random.default_rng(5)
  weights = rng.standard_normal((2, N)), rng.standard_normal((N, K))

  def total(stats):
    (own, kl), top = weights
    return jnp.sum(own * stats[0]) + jnp.sum(kl * stats[1]) + jnp.sum(
        top * stats[2]), stats

  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def ours(policy, student):
    second = Head(*student, 2.0)
    return total(token_stats(
        Head(*policy, 3.0), targets, temperature=.7, chunk=chunk,
        wanted=Wanted(top_k=K, student=second, other=second)).student)

  @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
  def dense(policy, student):
    p, q = jax.lax.stop_gradient(_dense_logp(policy, 3.0)), _dense_logp(
        student, 2.0)
    top = jax.lax.top_k(p, K)[1]
    return total((q[jnp.arange(N), targets], jnp.sum(jnp.exp(p) * (p - q), -1),
                  jnp.take_along_axis(q, top, -1)))

  grads, stats = jax.jit(ours)(policy, student)
  want_grads, want = jax.jit(dense)(policy, student)
  error = _bound(*policy, .7) + _bound(*student, .7)
  for a, b in zip(stats, want):
    np.testing.assert_allclose(a, b, rtol=0, atol=error)
  assert (np.asarray(stats.kl) > .01).all()
  assert not any(np.any(x) for x in jax.tree.leaves(grads[0]))
  # Through a softmax, tanh and the products with states or unembedding.
  size = max(np.abs(x).max() for x in jax.tree.leaves(want_grads[1]))
  for a, b in zip(*map(jax.tree.leaves, (grads[1], want_grads[1]))):
    np.testing.assert_allclose(
        a, b, rtol=0, atol=size * rounding(V, N, D, 6 * FUNCTION))


@pytest.mark.parametrize('chunk, top_k, cool', [
    (None, 0, None), (7, 3, None), (1, 0, 1.5), (5, V - 1, .6),
    (4, None, None)])
def test_a_teacher_pulls_the_policy_alone(chunk, top_k, cool):
  """Its KL over all tokens, or over its likeliest and the rest as one."""
  policy, teacher, targets, _ = _two_models()

  def ours(policy, teacher):
    stats = token_stats(
        Head(*policy, 3.0), targets, temperature=.7, chunk=chunk,
        wanted=Wanted(teacher=Head(*teacher, 2.0), teacher_top_k=top_k,
                      teacher_temperature=cool)).teacher
    total = stats.gap.sum() if stats.kl is None else (
        jnp.sum(stats.kl * jnp.arange(N)))
    return total, stats

  def dense(policy, teacher):
    logits = [cap * jnp.tanh(h @ w.T / cap) / (cool or .7)
              for (h, w), cap in ((policy, 3.0), (teacher, 2.0))]
    logp, logq = map(jax.nn.log_softmax, logits)
    logq = jax.lax.stop_gradient(logq)
    at = lambda x: x[jnp.arange(N), targets]
    gap = at(logp) - at(logq)
    if top_k is None:
      return 0.0 * gap.sum(), (None, gap)
    if top_k:
      order = jnp.argsort(-logq, axis=-1)
      logp, logq = (jnp.take_along_axis(x, order, -1) for x in (logp, logq))
      logp, logq = (jnp.concatenate([
          x[:, :top_k], jax.nn.logsumexp(x[:, top_k:], -1, keepdims=True)], -1)
                    for x in (logp, logq))
    kl = jnp.sum(jnp.exp(logp) * (logp - logq), -1)
    return jnp.sum(kl * jnp.arange(N)), (kl, gap)

  grads, stats = jax.jit(jax.grad(ours, (0, 1), has_aux=True))(policy, teacher)
  want, (kl, gap) = jax.jit(jax.grad(dense, (0, 1), has_aux=True))(
      policy, teacher)
  error = _bound(*policy, .6) + _bound(*teacher, .6)
  np.testing.assert_allclose(stats.gap, gap, rtol=0, atol=error)
  assert not any(np.any(x) for x in grads[1])
  if top_k is None:
    assert stats.kl is None and not any(np.any(x) for x in grads[0])
    return
  # A sum of probabilities times differences; what is left of 1 is rounded.
  np.testing.assert_allclose(stats.kl, kl, rtol=0, atol=V * error)
  assert np.all(np.asarray(kl) > 0)
  for mine, theirs in zip(grads[0], want[0]):
    np.testing.assert_allclose(
        mine, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_a_chunk_counts_the_tokens_of_all_models():
  policy, student, targets, _ = _two_models()
  student = Head(*student)
  for more, models in (
      (dict(), 1), (dict(student=student), 2), (dict(other=student), 2),
      (dict(student=student, other=student), 2),
      (dict(student=student, other=student._replace(
          hidden=student.hidden + 1)), 3)):
    text = str(jax.make_jaxpr(lambda hidden: token_stats(
        Head(hidden, policy[1]), targets, chunk=12,
        wanted=Wanted(**more)))(policy[0]))
    rows = {int(n) for n in re.findall(rf'f32\[(\d+),{V}\]', text)}
    assert max(rows) <= 12 // models, models
    assert max(rows) > 12 // (models + 1)


def test_extreme_logits_stay_finite():
  hidden, unembed, targets, _ = _inputs(scale=1e4)
  f = lambda h: token_stats(Head(h, unembed), targets)
  stats, vjp = jax.vjp(jax.jit(f), hidden)
  grad, = vjp(jax.tree.map(jnp.ones_like, stats))
  for x in (stats.logprobs, stats.entropy, grad):
    assert np.all(np.isfinite(x))
  assert np.all(np.asarray(stats.entropy) >= 0)


def _temporary_bytes(f, rows=4, tokens=2048, width=64, vocab=151_936):
  """Returns the peak memory of value and gradient, compiled from shapes."""
  shape = jax.ShapeDtypeStruct
  return jax.jit(jax.value_and_grad(f, (0, 1))).lower(
      shape((rows, tokens, width), jnp.float32),
      shape((vocab, width), jnp.float32),
      shape((rows, tokens), jnp.int32),
  ).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_a_fifth_of_materialised_logits():
  def chunked(hidden, unembed, targets):
    stats = token_stats(Head(hidden, unembed), targets)
    return jnp.sum(stats.logprobs) + jnp.sum(stats.entropy)

  def dense(hidden, unembed, targets):
    logprobs = jax.nn.log_softmax(hidden @ unembed.T)
    chosen = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)
    return jnp.sum(chosen)  # without the entropy, to its favour

  assert 5 * _temporary_bytes(chunked) < _temporary_bytes(dense)


def split_vocabulary(sizes, axes, row_axis, chunk):
  """Returns the differences from one device, relative to the largest value.

  Args:
    sizes: sizes of the mesh ('rows', 'columns').
    axes: axes over which V is split.
    row_axis: axis over which the tokens are split.
    chunk: of `token_stats`.

  Returns:
    Name to difference.
  """
  tokens, vocab, count = 72, 48, 8
  mesh = jax.make_mesh(
      sizes, ('rows', 'columns'), (jax.sharding.AxisType.Auto,) * 2)
  keys = jax.random.split(jax.random.key(0), 9)
  hidden = jax.random.normal(keys[0], (tokens, D))
  unembed = jax.random.normal(keys[1], (vocab, D))
  # Equally likely tokens, near and far: the first of them comes first.
  unembed = unembed.at[jnp.array([7, 8, 26])].set(10 * unembed[20])
  targets = jax.random.randint(keys[2], (tokens,), 0, vocab)
  ids = jax.random.randint(keys[3], (tokens, M), 0, vocab)
  weights = [jax.random.normal(key, (tokens, n))
             for key, n in zip(keys[4:], (2, count, M))]
  other = (hidden + jax.random.normal(keys[7], hidden.shape) / 3,
           unembed + jax.random.normal(keys[8], unembed.shape) / 3)

  def value(split, hidden, unembed, other):
    def stats(hidden, unembed, targets, ids, other):
      second = Head(*other, 2.0)
      return token_stats(
          Head(hidden, unembed, 3.0), targets, temperature=0.7, chunk=chunk,
          wanted=Wanted(
              top_k=count, ids=ids, student=second, other=second, lam=0.9,
              teacher=second, teacher_top_k=5 if chunk else 0,
              teacher_temperature=1.1),
          split=Split(tuple(axes), row_axis) if split else Split())
    if split:
      rows, columns = (
          jax.sharding.PartitionSpec(axis) for axis in (row_axis, tuple(axes)))
      stats = jax.shard_map(
          stats, mesh=mesh, check_vma=False, out_specs=rows,
          in_specs=(rows, columns, rows, rows, (rows, columns)))
    out = stats(hidden, unembed, targets, ids, other)
    both, theirs = (jnp.stack(x, -1) for x in (
        (out.logprobs, out.entropy), (out.student.logprobs, out.student.kl)))
    return sum(jnp.sum(w * x) for w, x in zip(
        (*weights, weights[0], weights[1], weights[0][:, 0]),
        (both, out.top_logprobs, out.id_logprobs, theirs,
         out.student.top_logprobs, out.teacher.kl))), {
             **out._asdict(), **out.student._asdict(), 'p': out.logprobs,
             'teacher_kl': out.teacher.kl, 'gap': out.teacher.gap}

  run = jax.jit(jax.grad(value, (1, 2, 3), has_aux=True), static_argnums=0)
  with jax.default_matmul_precision('highest'):
    want, want_stats = run(False, hidden, unembed, other)
    got, got_stats = run(True, hidden, unembed, other)
  difference = lambda a, b: float(
      jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))
  return {
      'd_hidden': difference(got[0], want[0]),
      'd_unembed': difference(got[1], want[1]),
      'd_states': difference(got[2][0], want[2][0]),
      'd_student': difference(got[2][1], want[2][1]),
      **{name: difference(x, want_stats[name])
         for name, x in got_stats.items()
         if name not in ('student', 'teacher') and x is not None}}


# Tokens of one device and of a chunk that do not divide; a part of V that is
# smaller than top_k; V split in both orders of the axes; tokens not split.
@pytest.mark.long
@pytest.mark.parametrize('case', [
    ((4, 2), ('columns', 'rows'), 'rows', 32),
    ((2, 4), ('rows', 'columns'), 'rows', None),
    ((8, 1), ('columns', 'rows'), 'rows', 16),
    ((2, 4), ('columns',), None, 7),
])
def test_split_vocabulary(case):
  differences = devices.run(split_vocabulary, *case)
  assert differences.pop('top_ids') == 0
  # Sums over D, 48 of V and, of gradients, 72 tokens; tanh, exp and log; and as
  # much on the way back.
  assert max(differences.values()) < rounding(
      2 * D, 2 * 48, 72, 6 * FUNCTION), differences


@pytest.mark.parametrize('chunk', [4, 5, 6])
def test_temperatures_of_tokens_have_no_gradient_where_a_chunk_is_not_full(
    chunk):
  """Eleven tokens in chunks of 4, 5 and 6: the last one is padded."""
  rng = np.random.default_rng(0)
  hidden, unembed = (
      jnp.asarray(rng.normal(size=shape), jnp.float32)
      for shape in ((1, 11, 4), (10, 4)))
  targets = jnp.asarray(rng.integers(0, 10, (1, 11)))

  def total(unembed, heat, chunk):
    return token_stats(
        Head(hidden, unembed), targets, temperature=heat, chunk=chunk,
        needed=jnp.ones((1, 11), bool)).logprobs.sum()

  got = jax.grad(total)(unembed, jnp.full((1, 11), .7), chunk)
  want = jax.grad(total)(unembed, .7, None)
  # Sums of eleven float32 terms of order 1.
  np.testing.assert_allclose(got, want, atol=1e-5)
