"""Layouts of the weights: regular expressions over parameter paths.

There are two layouts. Training splits weights over `fsdp` and `tensor`.
Sampling splits them over `tensor` only, so that no weight moves between devices
inside the decode loop. Each layout is a list of (regular expression,
PartitionSpec) pairs for paths such as 'layers/q'; the first match wins.
"""

import io
import math
import re
from typing import Any, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

from jaxrl_llm.sharding.mesh import replicated

Rules = Sequence[tuple[str, P]]

# Layer parameters are stacked on a leading axis, which is not split. Matrices
# that produce or consume heads or hidden units are split along these over
# `tensor`, so a layer needs two all-reduces over `tensor`. The vocabulary is
# split over both axes, so that hidden states move between devices, not the
# embeddings. `tensor` is the major axis: a device's sampling weights are then
# the training weights of its fsdp neighbours in order. Experts stay whole.
# Routers are small, and used in float32, in which nothing is gathered.
TRAIN_RULES: Rules = (
    (r'norm$|^score$', P()),
    (r'layers/(q|k|v)_bias$', P(None, 'tensor')),
    (r'layers/(q|k|v|gate|up)$', P(None, 'fsdp', 'tensor')),
    (r'layers/(o|down)$', P(None, ('tensor', 'fsdp'), None)),
    (r'layers/experts_(gate|up|down)$', P(None, ('tensor', 'fsdp'))),
    (r'layers/router$', P()),
    (r'layers/(q|k|v|gate|up)_lora_a$', P(None, 'fsdp')),
    (r'layers/(q|k|v|gate|up)_lora_b$', P(None, None, 'tensor')),
    (r'layers/(o|down)_lora_a$', P(None, ('tensor', 'fsdp'))),
    (r'layers/(o|down)_lora_b$', P(None, None, None)),
    (r'(^|/)(un)?embed$', P(('tensor', 'fsdp'))),
)


def axis_names(axis: Any) -> tuple[str, ...]:
  """Returns the mesh axes named by an entry of a PartitionSpec."""
  return axis if isinstance(axis, tuple) else (axis,) if axis else ()


def without(spec: P, name: str) -> P:
  """Returns the spec without the mesh axis `name`."""
  kept = (tuple(n for n in axis_names(axis) if n != name) for axis in spec)
  return P(*(axis[0] if len(axis) == 1 else axis or None for axis in kept))


# Scales of quantised weights, see `reshard.py`, are split like the outputs.
SAMPLE_RULES: Rules = (
    *((pattern, without(spec, 'fsdp')) for pattern, spec in TRAIN_RULES),
    (r'layers/(q|k|v|gate|up)_scale$', P(None, 'tensor')),
    (r'layers/(o|down)_scale$', P()),
    (r'layers/experts_(gate|up|down)_scale$', P(None, 'tensor')),
    (r'(^|/)(un)?embed_scale$', P('tensor')))


def path_of(keys: Any) -> str:
  """Returns a leaf's path in the tree, such as 'layers/q'."""
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def spec_of(path: str, rules: Rules) -> P | None:
  """Returns the spec of the first matching rule, or None."""
  return next((s for pattern, s in rules if re.search(pattern, path)), None)


def _sharding(path: str, shape: Sequence[int], rules: Rules, mesh: Mesh):
  """Returns the sharding of one parameter by the first matching rule."""
  spec = spec_of(path, rules)
  if spec is None:
    raise ValueError(
        f'No sharding rule matches parameter {path} of shape {tuple(shape)}; '
        'add a (regular expression, PartitionSpec) pair for it.')
  if len(spec) > len(shape):
    raise ValueError(
        f'Parameter {path} of shape {tuple(shape)} has fewer axes than its '
        f'rule {spec}; add a rule that fits before this one.')
  for axis, names in enumerate(map(axis_names, spec)):
    sizes = [mesh.shape[name] for name in names]
    if shape[axis] % math.prod(sizes):
      fix = (
          f'choose a divisor, such as {math.gcd(shape[axis], *sizes)}'
          if len(names) == 1 else
          'choose sizes whose product divides it, and use mesh.data for the '
          'other devices')
      raise ValueError(
          f'Parameter {path} of shape {tuple(shape)} cannot be split: its axis '
          f'{axis} ({shape[axis]}) does not divide over '
          f'{" x ".join(f"mesh.{name}" for name in names)} = '
          f'{" x ".join(map(str, sizes))}; {fix}.')
  return NamedSharding(mesh, spec)


def shardings(shapes: Any, rules: Rules, mesh: Mesh) -> Any:
  """Returns the layout of a parameter tree.

  Args:
    shapes: tree of anything with a shape (arrays or jax.ShapeDtypeStruct).
    rules: (regular expression, PartitionSpec) pairs; the first match wins.
    mesh: with axes data, fsdp and tensor.

  Returns:
    Tree of NamedSharding, like `shapes`.

  Raises:
    ValueError: no rule matches a parameter, or the mesh does not divide it.
  """
  return jax.tree_util.tree_map_with_path(
      lambda keys, leaf: _sharding(path_of(keys), leaf.shape, rules, mesh),
      shapes)


def abstract_params(
    shapes: Any, rules: Rules, mesh: Mesh, dtype: Any = None) -> Any:
  """Returns abstract parameters: shapes, types and layouts without data.

  Args:
    shapes: tree of anything with a shape and a type.
    rules: (regular expression, PartitionSpec) pairs; the first match wins.
    mesh: with axes data, fsdp and tensor.
    dtype: compute type, for the sampling layout; None keeps each leaf's own.

  Returns:
    Tree of jax.ShapeDtypeStruct with a sharding.
  """
  def abstract(keys, leaf):
    path = path_of(keys)
    kind = leaf.dtype if dtype is None else sampling_type(path, leaf, dtype)
    return jax.ShapeDtypeStruct(
        leaf.shape, kind, sharding=_sharding(path, leaf.shape, rules, mesh))

  return jax.tree_util.tree_map_with_path(abstract, shapes)


def optimizer_shardings(
    opt_shapes: Any, shapes: Any, rules: Rules, mesh: Mesh) -> Any:
  """Returns the layout of an optax state.

  A leaf that has a parameter's shape, and whose path ends in that parameter's
  path, has the parameter's layout: the moments mu and nu, a trace, an average.
  All other leaves are replicated.

  Args:
    opt_shapes: tree of shapes of the optimiser's state.
    shapes: tree of shapes of the parameters.
    rules: (regular expression, PartitionSpec) pairs; the first match wins.
    mesh: with axes data, fsdp and tensor.

  Returns:
    Tree of NamedSharding, like `opt_shapes`.
  """
  of_params = {
      (path_of(keys), leaf.shape): _sharding(
          path_of(keys), leaf.shape, rules, mesh)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)}

  def layout(keys, leaf):
    tails = (path_of(keys[i:]) for i in range(len(keys)))
    matches = (of_params.get((tail, leaf.shape)) for tail in tails)
    return next((s for s in matches if s is not None), replicated(mesh))

  return jax.tree_util.tree_map_with_path(layout, opt_shapes)


def sampling_type(path: str, leaf: Any, dtype: Any) -> jnp.dtype:
  """Returns the type of a parameter in the sampling weights.

  Matrices and biases are stored in the compute type, because they are used in
  it. The weights of norms and routers keep their type, because these use
  float32.
  """
  return jnp.dtype(leaf.dtype if re.search(r'(norm|router)$', path) else dtype)


def table(
    shapes: Any, rules: Rules, mesh: Mesh, dtype: Any = None) -> str:
  """Formats a layout as a table.

  Args:
    shapes: tree of arrays or jax.ShapeDtypeStruct.
    rules: (regular expression, PartitionSpec) pairs; the first match wins.
    mesh: with axes data, fsdp and tensor.
    dtype: compute type, for the sampling layout; None keeps each leaf's own.

  Returns:
    Text: path, shape, type, spec and bytes per device of each parameter, and
    their total.
  """
  sizes = ', '.join(f'{axis}={size}' for axis, size in mesh.shape.items())
  out = Table(title=f'mesh {sizes}', title_justify='left')
  for name in ('parameter', 'shape', 'type', 'spec'):
    out.add_column(name)
  out.add_column('bytes per device', justify='right')
  total = 0
  for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes):
    path = path_of(keys)
    place = _sharding(path, leaf.shape, rules, mesh)
    kind = leaf.dtype if dtype is None else sampling_type(path, leaf, dtype)
    size = math.prod(place.shard_shape(leaf.shape)) * jnp.dtype(kind).itemsize
    total += size
    spec = ', '.join(
        ' x '.join(axis_names(axis)) or '-' for axis in place.spec)
    spec = spec or 'replicated'
    out.add_row(path, str(tuple(leaf.shape)), str(kind), spec, f'{size:,}')
  out.add_section()
  out.add_row('total', '', '', '', f'{total:,}')
  text = io.StringIO()
  Console(file=text, width=100).print(out)
  return text.getvalue()
