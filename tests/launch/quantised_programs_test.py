"""Tests of 8-bit weights and caches on TPUs, from compiled programs."""

import jax
import jax.numpy as jnp

from jaxrl_llm.launch.aot import check, chips, cost, faults, memory
from jaxrl_llm.models import transformer
from tests.helpers import devices

# A stack of matrices that is too large for on-chip memory.
LAYERS, WIDTH, STEPS = 9, 4096, 5
FIELDS = {
    'sft.steps': 0, 'model.width': WIDTH, 'model.layers': LAYERS,
    'model.heads': 32, 'model.kv_heads': 8, 'model.head_dim': 128,
    'model.mlp_width': 8192, 'model.dtype': 'bfloat16', 'sampling.slots': 8,
    'max_prompt': 100, 'max_response': 60, 'sampling.chunk': 32,
    'sampling.weights': 'int8', 'sampling.kv': 'float8'}


def products():
  """Compiles products with a stack of matrices, as in a decode loop.

  Returns:
    For int8 and bfloat16 matrices, the faults, looked for as if they had to be
    quantised, and the estimated bytes.
  """
  topology, found = chips.topology('v5e:2x2'), []
  made = check.build(check.load('configs/countdown.py', FIELDS), topology)
  place = jax.sharding.SingleDeviceSharding(topology.devices[0])

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

  def steps(x, layers, count):
    def layer(i, x):
      return transformer._dense(
          x, {name: w[i] for name, w in layers.items()}, 'q')

    with jax.named_scope('decode'):
      return jax.lax.fori_loop(
          0, count, lambda _, x: jax.lax.fori_loop(0, LAYERS, layer, x), x)

  for dtype in jnp.int8, jnp.bfloat16:
    layers = {'q': array(dtype, LAYERS, WIDTH, WIDTH)}
    if dtype == jnp.int8:
      layers['q_scale'] = array(jnp.float32, LAYERS, WIDTH)
    text = jax.jit(steps).lower(
        array(jnp.bfloat16, 8, WIDTH), layers,
        array(jnp.int32)).compile().as_text()
    cost_ = cost.estimate(
        text, cost.Machine(topology.chip, made.mesh), {'decode': STEPS}, {})
    found.append([faults.find(text, made), cost_.bytes])
  return found


@devices.needs_libtpu
def test_a_weight_is_converted_inside_of_its_product():
  (none, small), (planted, large) = devices.run(products, devices=1)
  assert none == []
  assert 'of a quantised weight, converted as a whole' in planted[0]
  read = STEPS * LAYERS * WIDTH ** 2
  # Beside the weights there are scales, hidden states and counters.
  assert read <= small < 1.01 * read
  assert 2 * read <= large < 1.01 * 2 * read


def test_a_cache_has_a_scale_for_each_column():
  config = check.load('configs/countdown.py', FIELDS)
  made = check.build(config, chips.topology('cpu:1'))
  # 8 slots; prompt and response in chunks of 32; keys and values of 8 heads.
  assert memory.caches(made)['decode cache'] == (
      8 * (128 + 64) * LAYERS * 2 * 8 * (128 + 4))
  assert made.sampler.sampler.kv is None  # that of evaluations
