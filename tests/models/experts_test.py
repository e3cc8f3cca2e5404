"""Tests of routed experts against loops, transformers' model and other meshes.
"""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
import torch
import transformers

from jaxrl_llm import sharding
from jaxrl_llm.models import experts, flops, hf_config, lora, transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.models.gguf import metadata
from jaxrl_llm.ops import quantise
from tests.helpers import devices, families
from tests.helpers.tolerance import decoder, rounding, typical
from tests.reference import transformers_params

N, D, F, E, K = 11, 8, 12, 8, 3
_QUICK = {'xla_backend_optimization_level': 0}


def _units(gate, up):
  return jax.nn.silu(gate) * up


_apply = functools.partial(
    experts.apply, count=K, normalise=True, units=_units)


@functools.cache
def _layer():
  rng = np.random.default_rng(0)
  shapes = dict(router=(D, E), experts_gate=(E, D, F), experts_up=(E, D, F),
                experts_down=(E, F, D))
  scale = lambda shape: np.float32(shape[-2] ** -0.5)
  return {name: scale(shape) * rng.standard_normal(shape, np.float32)
          for name, shape in shapes.items()}


def _tokens(seed=1):
  return np.random.default_rng(seed).standard_normal((N, D), np.float32)


def _by_hand(x, layer, normalise=True, chosen=None):
  """Computes the outputs and the experts [N, K] token by token, in float64."""
  layer = {name: value.astype(float) for name, value in layer.items()}
  out, found = np.zeros(x.shape), []
  for i, token in enumerate(x.astype(float)):
    p = np.exp(token @ layer['router'])
    p /= p.sum()
    best = np.argsort(-p)[:K] if chosen is None else chosen[i]
    for e in best:
      gate, up = (token @ layer[f'experts_{name}'][e] for name in (
          'gate', 'up'))
      weight = p[e] / p[best].sum() if normalise else p[e]
      out[i] += weight * (
          gate / (1 + np.exp(-gate)) * up @ layer['experts_down'][e])
    found.append(best)
  return out, np.array(found)


def _close(got, want, *counts):
  np.testing.assert_allclose(got, want, rtol=0, atol=typical(
      *counts, magnitude=np.abs(want).max()))


@pytest.mark.parametrize('normalise', (True, False))
def test_equals_a_loop_over_tokens_and_experts(normalise):
  x, layer = _tokens(), _layer()
  out, chosen = _apply(x, layer, normalise=normalise)
  want, best = _by_hand(x, layer, normalise)
  np.testing.assert_array_equal(chosen, best)
  _close(out, want, 2 * D, F, K)


def test_given_experts_are_used_with_this_router_s_weights():
  x, layer = _tokens(), _layer()
  given = np.argsort(np.random.default_rng(2).random((N, E)))[:, :K]
  out, chosen = _apply(x, layer, chosen=given)
  np.testing.assert_array_equal(chosen, given)
  _close(out, _by_hand(x, layer, chosen=given)[0], 2 * D, F, K)
  own = _apply(x, layer)
  again = _apply(x, layer, chosen=own[1])
  np.testing.assert_array_equal(again[0], own[0])


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_a_token_s_result_depends_on_no_other_token(dtype):
  """Bit for bit: in another order, and in other company."""
  run = jax.jit(_apply, compiler_options=devices.AS_USERS)
  x, layer = jnp.asarray(_tokens(), dtype), _layer()
  want = run(x, layer)[0]
  order = np.random.default_rng(3).permutation(N)
  np.testing.assert_array_equal(run(x[order], layer)[0], want[order])
  other = jnp.asarray(_tokens(4), dtype).at[2].set(x[5])
  np.testing.assert_array_equal(run(other, layer)[0][2], want[5])


def test_quantised_experts_are_those_of_the_dequantised_matrices():
  layer, exact = dict(_layer()), dict(_layer())
  for name in experts.MATRICES:
    values, scale = quantise.quantise(
        jnp.asarray(layer[name]), quantise.TYPES['int8'], -2)
    layer.update({name: values, f'{name}_scale': scale})
    exact[name] = np.asarray(quantise.dequantise(values, scale, -2))
  _close(_apply(_tokens(), layer)[0], _by_hand(_tokens(), exact)[0],
         2 * D, F, K)


def _gradients(x, layer):
  """Returns what experts compute, and the gradients of a sum of it."""
  def loss(x, layer):
    out, chosen = _apply(x, layer)
    return jnp.sum(jnp.sin(out)), (out, chosen)

  (_, found), grads = jax.value_and_grad(
      loss, argnums=(0, 1), has_aux=True)(x, layer)
  return jax.tree.leaves((found, grads))


def _on_mesh(sizes):
  """Returns the same of tokens and experts that are split over a mesh."""
  mesh = sharding.make_mesh(*sizes, jax.devices()[:np.prod(sizes)])
  layer = jax.device_put(_layer(), {
      name: NamedSharding(mesh, P('tensor' if name != 'router' else None))
      for name in _layer()})
  x = np.concatenate([_tokens(), _tokens(4)[:5]]).reshape(4, 4, D)
  x = jax.device_put(x, NamedSharding(mesh, P('fsdp')))
  # As in the learner, with `data` alone in the program's hands.
  run = jax.jit(jax.shard_map(
      _gradients, mesh=mesh, axis_names={'data'}, check_vma=False,
      in_specs=P(), out_specs=P()))
  return [np.asarray(leaf, np.float32).tolist() for dtype in (
      'float32', 'bfloat16') for leaf in run(x.astype(dtype), layer)]


def test_experts_split_over_devices():
  one, *others = devices.run(
      _meshes, [[1, 1, 1], [1, 2, 4], [1, 1, 8], [1, 4, 2]])
  for other in others:
    half = len(one) // 2
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
      a, b = np.array(a), np.array(b)
      if i < half:
        _close(b, a, 3 * 2 * D, 2 * F, K, 16)
      else:  # of bfloat16, in which one of 128 steps is a rounding
        np.testing.assert_allclose(b, a, rtol=0, atol=np.abs(a).max() / 64)


def _meshes(shapes):
  return [_on_mesh(shape) for shape in shapes]


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_the_kernel_for_tpus_sums_the_rows_of_each_expert(dtype):
  rng = np.random.default_rng(0)
  x, grad = (jnp.asarray(rng.standard_normal((600, width)), dtype)
             for width in (20, 12))
  sizes = jnp.array([5, 0, 550, 7])  # more than a tile; rows of no expert
  got = experts._of_weights_tpu(x, grad, sizes, interpret=True)
  want = experts._of_weights(x, grad, sizes)
  assert got.shape == (4, 20, 12) and got.dtype == want.dtype == jnp.float32
  _close(got, want, 550)


def _shares_on_a_tpu():
  """Returns the FLOPs of a product and its gradients, relative to one product.
  """
  from jax.experimental import topologies
  device = topologies.get_topology_desc(
      platform='tpu', topology_name='v5e:2x2').devices[0]
  place = jax.sharding.SingleDeviceSharding(device)
  rows, width, hidden, number = 1024, 256, 128, 64
  array = lambda dtype, *shape: jax.ShapeDtypeStruct(
      shape, dtype, sharding=place)

  def run(x, w, sizes, grad):
    out, back = jax.vjp(lambda x, w: experts._product(x, w, sizes), x, w)
    return out, back(grad)

  compiled = jax.jit(run).lower(
      array(jnp.bfloat16, rows, width),
      array(jnp.float32, number, width, hidden), array(jnp.int32, number),
      array(jnp.bfloat16, rows, hidden)).compile()
  return compiled.cost_analysis()['flops'] / (2 * rows * width * hidden)


@devices.needs_libtpu
def test_a_tpu_computes_the_pairs_of_experts_alone():
  """XLA may not count its own kernels, but counts what replaces one: 64."""
  assert devices.run(_shares_on_a_tpu, devices=2) < 4


def test_load():
  # Two layers, four tokens of which three count, two experts each.
  chosen = np.array([
      [[[0, 1], [0, 1], [3, 2], [0, 2]]], [[[0, 1], [2, 3], [3, 1], [0, 2]]]])
  real = np.array([[True, True, False, True]])
  load = experts.load(jnp.asarray(chosen), jnp.asarray(real), 4)
  assert load.tolist() == [[3, 2, 1, 0], [2, 1, 2, 1]]
  # An even spread is 6 / 4 = 1.5 tokens.
  got = experts.load_metrics(load)
  assert {name: float(x) for name, x in got.items()} == pytest.approx(dict(
      experts_load_max=(2 + 4 / 3) / 2, experts_load_min=(0 + 2 / 3) / 2,
      experts_unused=1 / 8))


def _random(seed):
  """Returns (our config, transformers' model) of random sizes."""
  rng = np.random.default_rng(seed)
  pick = lambda *values: values[rng.integers(len(values))]
  layers, kv_heads, count = pick(1, 2, 3), pick(1, 2), pick(2, 3, 5, 8)
  normalise = pick(True, False)  # the weight of a single expert would be 1
  step = pick(1, 1, 2) if layers > 1 else 1
  sparse = [i for i in range(layers) if (i + 1) % step == 0]
  dense = tuple(i for i in sparse[1:] if rng.random() < 0.4)
  cfg = ModelConfig(
      vocab_size=29, width=pick(16, 24), layers=layers,
      heads=kv_heads * pick(1, 2), kv_heads=kv_heads, head_dim=pick(6, 8),
      mlp_width=20, qk_norm=True, rope_theta=pick(1e4, 1e6),
      tie_embeddings=pick(True, False), experts=count,
      experts_per_token=int(rng.integers(1 + normalise, min(count, 4) + 1)),
      expert_width=pick(4, 12), norm_topk=bool(normalise), sparse_step=step,
      dense_layers=dense)
  torch.manual_seed(seed)
  model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
      vocab_size=29, hidden_size=cfg.width, num_hidden_layers=layers,
      num_attention_heads=cfg.heads, num_key_value_heads=kv_heads,
      head_dim=cfg.head_dim, intermediate_size=20, rms_norm_eps=1e-6,
      tie_word_embeddings=cfg.tie_embeddings, num_experts=count,
      num_experts_per_tok=cfg.experts_per_token,
      moe_intermediate_size=cfg.expert_width, norm_topk_prob=cfg.norm_topk,
      decoder_sparse_step=step, mlp_only_layers=[*dense],
      attn_implementation='eager', experts_implementation='eager',
      rope_parameters=dict(rope_type='default', rope_theta=cfg.rope_theta)))
  with torch.no_grad():
    for parameter in model.parameters():
      std = 0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
      parameter.add_(std * torch.randn_like(parameter))
  return cfg, model.eval()


@pytest.mark.parametrize('seed', [
    pytest.param(seed, marks=() if seed < 3 else pytest.mark.slow)
    for seed in range(10)])
def test_logits_and_gradients_equal_transformers(seed):
  cfg, model = _random(seed)
  params = transformers_params.params(model, cfg)
  rows = np.random.default_rng(seed).integers(0, 29, (3, 7), np.int32)

  def loss(params):
    hidden, _ = transformer.forward(
        params, rows, cfg=cfg,
        execution=dataclasses.replace(transformer.PLAIN, unroll=cfg.layers))
    logits = transformer.logits(params, hidden, cfg)
    logp = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.mean(jnp.take_along_axis(
        logp, rows[:, 1:, None], -1)), logits

  (_, logits), grads = jax.jit(
      jax.value_and_grad(loss, has_aux=True), compiler_options=_QUICK)(params)
  tokens = torch.from_numpy(rows).long()
  theirs = model(tokens, labels=tokens, output_router_logits=False)
  theirs.loss.backward()
  want = theirs.logits.detach().numpy()
  np.testing.assert_allclose(logits, want, rtol=0, atol=rounding(
      decoder(cfg, 7), magnitude=np.abs(want).max()))
  of_weights = copy.deepcopy(model)
  with torch.no_grad():
    for ours, other in zip(of_weights.parameters(), model.parameters()):
      ours.copy_(torch.zeros_like(other) if other.grad is None else other.grad)
  want = transformers_params.params(of_weights, cfg)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(want))
  # Forward, back to states and to weights, whose gradients are sums over the
  # tokens.
  jax.tree.map(lambda a, b: _close(a, b, 3 * decoder(cfg, 7), rows.size),
               grads, want)


def test_backward_chooses_no_experts_again():
  cfg, params, _ = families.pair('qwen3_moe')

  def choices(remat, chosen=None):
    def loss(params):
      hidden, _ = transformer.forward(
          params, families.tokens(length=4), cfg=cfg, chosen=chosen,
          execution=dataclasses.replace(transformer.PLAIN, remat=remat))
      return jnp.sum(hidden)

    return str(jax.make_jaxpr(jax.grad(loss))(params)).count('= top_k[')

  assert [choices(remat) for remat in transformer.REMAT] == [2] * 4
  given = jnp.zeros(
      (sum(cfg.sparse_layers()), 2, 4, cfg.experts_per_token), jnp.int32)
  assert not any(choices(remat, given) for remat in transformer.REMAT)


def test_runs_of_layers():
  cfg = ModelConfig(
      vocab_size=8, width=8, layers=6, heads=2, kv_heads=1, head_dim=4,
      mlp_width=8, experts=4, experts_per_token=2, expert_width=4,
      dense_layers=(0, 3))
  found = [(list(run.layers), run.sparse) for run in transformer.runs(cfg)]
  assert found == [([0], False), ([1, 2], True), ([3], False), ([4, 5], True)]
  places = {name: [run.places(name) for run in transformer.runs(cfg)]
            for name in ('q', 'gate_scale', 'experts_up')}
  assert places == {
      'q': [range(1), range(1, 3), range(3, 4), range(4, 6)],
      'gate_scale': [range(1), None, range(1, 2), None],
      'experts_up': [None, range(2), None, range(2, 4)]}


def test_flops_are_those_of_active_experts():
  cfg = ModelConfig(
      vocab_size=8, width=8, layers=3, heads=2, kv_heads=1, head_dim=4,
      mlp_width=10, experts=5, experts_per_token=2, expert_width=6,
      dense_layers=(1,))
  # One token that sees itself: q and o 2 x 8 x 8, k and v 2 x 8 x 4, scores and
  # values; a dense MLP, two routers, and two experts in two layers.
  layer = 2 * 64 + 2 * 32
  mlps = 3 * 80 + 2 * (8 * 5 + 2 * 3 * 8 * 6)
  assert flops.forward(cfg, np.array([1]), 0) == (
      2 * (3 * layer + mlps) + 3 * 4 * 8)


def test_no_file_of_llama_cpp_is_written():
  raw = hf_config.to_hf(families.family('qwen3_moe')[0])
  with pytest.raises(ValueError, match='GGUF file of a qwen3_moe model is not'):
    metadata.fields(raw)


def test_lora_leaves_experts_out(caplog):
  """And says so once, where the pattern names their matrices."""
  lora._warn_of_experts.cache_clear()
  cfg = families.family('qwen3_moe')[0]
  shapes = jax.eval_shape(
      lambda: transformer.init(jax.random.key(0), cfg))
  assert {*lora.targets(shapes, '.*')} == {*transformer.MATRICES}
  with pytest.raises(ValueError, match='=experts_up matches none of down, '):
    lora.targets(shapes, 'experts_up')
  lora.targets(shapes, 'q|k|v|o')
  lora.targets(shapes, '.*')
  told, = [r.getMessage() for r in caplog.records]
  assert 'Experts get no LoRA: lora.targets=.* names their gate, up' in told
  sparse = {'layers': {name: shape for name, shape in shapes['layers'].items()
                       if name not in ('gate', 'up', 'down')}}
  default = 'q|k|v|o|gate|up|down'
  assert {*lora.targets(sparse, default)} == {*'qkvo'}
  assert f'targets={default}' in caplog.records[-1].getMessage()
  with pytest.raises(ValueError, match='and experts get no LoRA'):
    lora.targets(sparse, 'gate|up|down')
  caplog.clear()
  lora.targets({'layers': {name: 0 for name in transformer.MATRICES}}, '.*')
  assert not caplog.records
