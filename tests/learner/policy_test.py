"""Tests of LoRA against the plain model with merged weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding, train
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import policy
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.models import flops, lora, transformer
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, choices
from jaxrl_llm.types import LearnerBatch
from tests.helpers import devices, learners, tiny
from tests.helpers.tolerance import decoder, rounding, typical

# Plain descent: parameters move by minus this many gradients.
RATE = 1e4
SGD = optimizer_lib.Optimizer(optax.sgd(RATE), optax.constant_schedule(RATE))
FIELDS = dict(
    model__layers=2, model__qkv_bias=True, lora__rank=3, lora__alpha=4.5)
SCALE = 4.5 / 3


def noise(tree, seed, scale=0.3):
  """Returns normal random numbers in the shapes of a tree."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda x: (scale * rng.normal(size=x.shape)).astype(np.float32), tree)


def make(**fields):
  """Returns config, model config and policy, with LoRA on all matrices."""
  config = tiny.load(**{**FIELDS, **fields})
  model = config_lib.model_config(config)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return config, model, policy.make_policy(
      model, mesh, choices.adapters(config))


def by_hand(adapters, frozen):
  """Computes W + alpha / rank * A B for every matrix with NumPy."""
  layers = dict(frozen['layers'])
  for name in ('q', 'k', 'v', 'o', 'gate', 'up', 'down'):
    if f'{name}_lora_a' in adapters['layers']:
      a, b = (np.asarray(adapters['layers'][f'{name}_lora_{x}'], np.float64)
              for x in 'ab')
      layers[name] = np.float32(
          np.asarray(layers[name], np.float64) + SCALE * (a @ b))
  return {**frozen, 'layers': layers}


@functools.partial(jax.jit, static_argnums=2)
def logits(params, tokens, model):
  hidden, _ = transformer.forward(params, tokens, cfg=model)
  return transformer.logits(params, hidden, model)


def close(got, want, *counts):
  """Compares results of sums of so many terms, of the size of the largest."""
  np.testing.assert_allclose(
      got, want, rtol=0,
      atol=rounding(*counts, magnitude=np.abs(want).max()))


def test_it_computes_what_merged_weights_do():
  _, model, made = make()
  frozen = noise(made.shapes, 0)
  tokens = np.random.default_rng(2).integers(0, 24, (3, 9), np.int32)
  start, _ = made.split(frozen, jax.random.key(0))
  plain = logits(frozen, tokens, model)
  # B is 0: nothing has changed yet, to the bit.
  np.testing.assert_array_equal(
      logits(made.compose(start, frozen), tokens, model), plain)
  adapters = noise(made.trained, 1)
  assert len(adapters['layers']) == 14
  want = logits(by_hand(adapters, frozen), tokens, model)
  joined = made.compose(adapters, frozen)
  got = logits(joined, tokens, model)
  close(got, want, decoder(model, 9))
  assert np.abs(want - plain).max() > 0.1
  merged = lora.merge(joined)
  # A sum over the rank of 3, scaled and added.
  jax.tree.map(
      lambda a, b: close(a, b, 3, 2), merged, by_hand(adapters, frozen))


def test_every_matrix_counts_by_itself():
  _, model, made = make()
  frozen, adapters = noise(made.shapes, 0), noise(made.trained, 1)
  tokens = np.random.default_rng(2).integers(0, 24, (2, 9), np.int32)
  plain = logits(frozen, tokens, model)
  for name in ('q', 'k', 'v', 'o', 'gate', 'up', 'down'):
    only = {'layers': {n: x for n, x in adapters['layers'].items()
                       if n.startswith(f'{name}_')}}
    want = logits(by_hand(only, frozen), tokens, model)
    close(logits(made.compose(only, frozen), tokens, model), want,
          decoder(model, 9))
    assert np.abs(want - plain).max() > 1e-3, name


def test_the_first_matrices():
  """A uniform within the bound that fan-in sets, B zero; one key each."""
  _, _, made = make(model__width=64, model__mlp_width=200)
  first, frozen = made.split(None, jax.random.key(0))
  assert frozen is None
  seen = []
  for name, x in first['layers'].items():
    if name.endswith('_b'):
      assert not np.any(x), name
      continue
    bound = made.shapes['layers'][name[:-7]].shape[1] ** -0.5
    assert .9 * bound < np.abs(x).max() <= bound, name
    assert abs(float(x.std()) / (bound / 3 ** .5) - 1) < .15, name
    seen.append(np.asarray(x).ravel()[:5].tobytes())
  assert len(set(seen)) == len(seen) == 7


@pytest.mark.parametrize('pattern, names', [
    ('q|v', 'qv'), ('[qk]', 'qk'), ('up|down', ['up', 'down'])])
def test_targets(pattern, names):
  _, _, made = make(lora__targets=pattern)
  assert sorted(made.trained['layers']) == sorted(
      f'{name}_lora_{x}' for name in names for x in 'ab')


@pytest.mark.parametrize('pattern, words', [
    ('q_proj', ['q_proj', 'matches none of', 'gate']),
    ('attn_norm', ['attn_norm', 'matches none of']),
    ('q|(', ['q|(', 'regular expression'])])
def test_targets_that_are_none(pattern, words):
  with pytest.raises(ValueError) as error:
    make(lora__targets=pattern)
  for word in words:
    assert word in str(error.value)


def batch():
  rng = np.random.default_rng(3)
  response = rng.integers(1, 11, 16).astype(np.int32)
  return LearnerBatch(
      tokens=rng.integers(0, 24, (16, 19), np.int32),
      prompt_length=rng.integers(1, 10, 16).astype(np.int32),
      response_length=response, mask=np.arange(10) < response[:, None],
      behaviour_logprobs=np.full((16, 10), -3, np.float32),
      advantages=rng.normal(size=16).astype(np.float32))


def of_lora(config, model, made):
  """Makes a learner of LoRA's matrices and one of all parameters."""
  cfg = choices.learner_config(config, objective='no_clip')
  return (
      learners.make(model, cfg, SGD, trained=made.trained,
                       compose=made.compose),
      learners.make(model, cfg, SGD))


def test_its_gradient_is_that_of_the_merged_weights_by_the_chain_rule():
  config, model, made = make()
  small, full = of_lora(config, model, made)
  frozen, adapters = noise(made.shapes, 0, .2), noise(made.trained, 1, .2)
  loss = choices.loss_params(config).replace(objective={})
  merged = by_hand(adapters, frozen)
  after, told = learners.update(
      full, full.init(jax.device_put(merged)), batch(), loss, None)
  d_w = jax.tree.map(
      lambda a, b: (a - np.asarray(b)) / RATE, merged, after.params)
  state, metrics_ = learners.update(
      small, small.init(jax.device_put(adapters)), batch(), loss, frozen)
  # Forward, back to states and to weights; sums over the response tokens.
  counts = 3 * decoder(model, 19), 16 * 10
  assert float(metrics_['loss']) == pytest.approx(
      float(told['loss']), abs=typical(*counts))
  for name in ('q', 'k', 'v', 'o', 'gate', 'up', 'down'):
    a, b = (adapters['layers'][f'{name}_lora_{x}'] for x in 'ab')
    g = d_w['layers'][name]
    want = dict(a=SCALE * g @ b.swapaxes(1, 2), b=SCALE * a.swapaxes(1, 2) @ g)
    for part, value in want.items():
      key = f'{name}_lora_{part}'
      moved = adapters['layers'][key] - np.asarray(state.params['layers'][key])
      got = moved / RATE
      close(got, value, *counts)
  close(learners.score(small, adapters, batch(), loss, frozen).logprobs,
        learners.score(full, merged, batch(), loss).logprobs,
        decoder(model, 19), 24)


def test_frozen_weights_cost_no_gradient():
  """By XLA's count of the operations, and by ours."""
  config, model, made = make(
      model__width=96, model__mlp_width=256, model__heads=4,
      model__head_dim=24, lora__rank=1)
  small, full = of_lora(config, model, made)
  loss = choices.loss_params(config).replace(objective={})

  def cost(learner, frozen):
    return learner.lower(
        'update', learner.state, batch(), learners.plan(learner, batch()), loss,
        frozen).compile().cost_analysis()['flops']

  assert cost(small, made.shapes) < .8 * cost(full, None)
  rows = np.array([5, 6]), np.array([7, 0])
  assert flops.update(model, *rows, frozen=True) == pytest.approx(
      2 / 3 * flops.update(model, *rows))


def test_the_frozen_weights_are_held_once():
  """In the compute type, by training and sampling alike."""
  _, _, made = make(model__dtype='bfloat16')
  full = made.init(jax.random.key(0))
  assert full['layers']['q'].dtype == jnp.bfloat16
  assert full['norm'].dtype == jnp.float32
  adapters, frozen = made.split(full, jax.random.key(1))
  assert adapters['layers']['q_lora_a'].dtype == jnp.float32
  weights = made.to_sampling(adapters, frozen)
  assert weights['embed'] is frozen['embed'] is full['embed']
  assert weights['layers']['q'] is frozen['layers']['q']
  assert weights['layers']['q_lora_a'].dtype == jnp.bfloat16
  # Scaled in float32 before it is rounded, as it is in training.
  adapters = jax.device_put(noise(made.trained, 1))
  np.testing.assert_array_equal(
      made.to_sampling(adapters, frozen)['layers']['up_lora_b'],
      (SCALE * adapters['layers']['up_lora_b']).astype(jnp.bfloat16))


def test_the_small_matrices_lie_as_the_sides_of_the_large():
  _, _, made = make()
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  large, small = (
      sharding.shardings(shapes, sharding.TRAIN_RULES, mesh)['layers']
      for shapes in (made.shapes, made.trained))
  for name in ('q', 'k', 'v', 'o', 'gate', 'up', 'down'):
    _, rows, columns = large[name].spec
    assert tuple(small[f'{name}_lora_a'].spec) == (None, rows)
    assert tuple(small[f'{name}_lora_b'].spec) == (None, None, columns)


def steps(sizes, **fields):
  """Runs two steps with LoRA and an anchor on a mesh.

  Returns:
    Tokens and metrics of each step; the trained parameters; whether the frozen
    parameters are unchanged and in the sampling layout; the shape of a matrix's
    shard.
  """
  data, fsdp, tensor = sizes
  config = tiny.load(
      mesh__data=data, mesh__fsdp=fsdp, mesh__tensor=tensor,
      model__heads=4, model__kv_heads=2, model__head_dim=8, lora__rank=2,
      loss__kl_coef=0.1, loss__entropy_bonus=0.01, learner__updates=2,
      optimizer__learning_rate=3e-3, **fields)
  watched = tiny.watch(build.parts(config), tiny.by_length)
  parts = watched.parts
  start = train.start_weights.start(parts, lambda *_: None, resumed=False)
  before = jax.device_get(start.frozen)
  fixed = Fixed(
      parts.sampling(), parts.replicate(choices.loss_params(config)),
      start.anchors, {'policy': start.frozen})
  state = state_lib.init_state(parts, parts.programs.learner.init(
      {'policy': start.params}))
  rows = []
  for _ in range(2):
    with jax.transfer_guard('disallow'):
      state, outcome = train.take_step(
          parts, state, fixed, timing.Timer())
    rows.append({k: v for k, v in outcome.row.items()
                 if not k.startswith('sampler')})
  params = state.learner.params
  layout = sharding.shardings(
      parts.programs.policy.shapes, sharding.SAMPLE_RULES, parts.programs.mesh)
  return dict(
      tokens=[r.tokens.tolist() for r in watched.rollouts], rows=rows,
      same=tiny.same(before, start.frozen),
      lies=jax.tree.map(lambda x: x.sharding, start.frozen) == layout,
      part=params['layers']['up_lora_a'].sharding.shard_shape((1, 32, 2)),
      params=[np.asarray(x, np.float64).tolist()
              for x in jax.tree.leaves(params)])


@pytest.mark.slow  # test_neither_embeddings_nor_logits_move has LoRA
def test_a_step_is_the_same_on_eight_devices():
  one, eight = steps((1, 1, 1)), devices.run(steps, (2, 2, 2))
  assert one['tokens'] == eight['tokens']
  for result, size in ((one, 32), (eight, 16)):
    assert result['same'] and result['lies']
    assert list(result['part']) == [1, size, 2]
  # Log-probs and their mean are of the order of log 24 or 4.
  model = config_lib.model_config(tiny.load())
  error = typical(3 * decoder(model, 19), 24, 16 * 10)
  for row, want in zip(eight['rows'], one['rows'], strict=True):
    for name, value in learners.unpadded(want).items():
      assert row[name] == pytest.approx(
          value, abs=4 * error, rel=4 * error), name
  # AdamW divides each gradient by its own size; one that is a thousandth of the
  # largest has a thousand times the relative error, in each of 4 updates.
  for leaf, want in zip(eight['params'], one['params'], strict=True):
    np.testing.assert_allclose(
        leaf, want, rtol=0, atol=4 * 3e-3 * 1000 * error)
  # The anchor is the frozen model alone, from which the first update moves.
  assert one['rows'][0]['update/kl_anchor'] < one['rows'][1][
      'update/kl_anchor']
  assert one['rows'][1]['update/kl_anchor'] > 1e-7
