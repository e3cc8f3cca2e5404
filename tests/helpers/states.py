"""States to save, their bits, and what a checkpointer says of them."""

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_llm import checkpoint
from jaxrl_llm.checkpoint.tree import is_key


@struct.dataclass
class Learner:
  params: dict[str, jax.Array]
  opt_state: optax.OptState
  step: jax.Array


def make_state(seed, size=1000):
  """Returns a state with every kind of leaf, different for each seed."""
  rng = np.random.default_rng(seed)
  params = {
      'w': jnp.asarray(rng.standard_normal((size // 10, 10)), jnp.float32),
      'half': jnp.asarray(rng.standard_normal(7), jnp.bfloat16),
      'odd': jnp.asarray([jnp.nan, -0.0, jnp.inf, 1e-45], jnp.float32)}
  return dict(
      learner=Learner(
          params, optax.adam(1e-3).init(params), jnp.int32(seed)),
      key=jax.random.key(seed),
      keys=jax.random.split(jax.random.key(seed, impl='rbg'), 3),
      flags=jnp.asarray(rng.random(5) < 0.5),
      buffer=rng.integers(0, 99, (4, 3), dtype=np.int16),
      nothing=jnp.zeros((0, 3)), missing=None, position=seed, rate=seed / 7)


def bits(tree):
  """Returns a tree's structure, and type, dtype, shape and bytes of leaves."""
  def one(x):
    if is_key(x):
      return str(x.dtype), one(jax.random.key_data(x))
    kind = 'device' if isinstance(x, jax.Array) else type(x).__name__
    x = np.asarray(x)
    return kind, str(x.dtype), x.shape, x.tobytes()
  return jax.tree.structure(tree), [one(x) for x in jax.tree.leaves(tree)]


def abstract(tree):
  """Replaces the device arrays of a tree by shapes and shardings."""
  def one(x):
    return x if not isinstance(x, jax.Array) else jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=x.sharding)
  return jax.tree.map(one, tree)


def write(directory, steps, **options):
  """Saves `make_state(step)` for each step; a later step has a lower score."""
  saver = checkpoint.Checkpointer(directory, {'seed': 0}, **options)
  for step in steps:
    saver.save(step, make_state(step), {'step': step}, score=-step)
  saver.close()


def one_warning(caplog, *parts):
  """Asserts that the last warning is one line that contains these words."""
  line = caplog.records[-1].getMessage()
  assert '\n' not in line
  for part in parts:
    assert str(part) in line
  return line
