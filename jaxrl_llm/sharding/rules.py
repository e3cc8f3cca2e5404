"""Layouts of the weights: regular expressions over parameter paths.

There are two. Training splits weights over `fsdp` and `tensor`; sampling over
`tensor` alone, so that no weight moves inside the decode loop. Both are lists
of (regular expression, PartitionSpec) over paths such as 'layers/q'; the first
match wins.
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

# Layer parameters are stacked on a leading axis, which stays whole. What makes
# heads or hidden units is split by them, what consumes them likewise, so that
# a layer needs two all-reduces over `tensor`. The vocabulary is split over both
# axes, and hidden states travel instead of it. `tensor` is the major one: what
# a device has for sampling is then the parts of its neighbours in order.
TRAIN_RULES: Rules = (
    (r'norm$', P()),
    (r'layers/(q|k|v)_bias$', P(None, 'tensor')),
    (r'layers/(q|k|v|gate|up)$', P(None, 'fsdp', 'tensor')),
    (r'layers/(o|down)$', P(None, ('tensor', 'fsdp'), None)),
    (r'layers/(q|k|v|gate|up)_lora_a$', P(None, 'fsdp')),
    (r'layers/(q|k|v|gate|up)_lora_b$', P(None, None, 'tensor')),
    (r'layers/(o|down)_lora_a$', P(None, ('tensor', 'fsdp'))),
    (r'layers/(o|down)_lora_b$', P(None, None, None)),
    (r'(^|/)(un)?embed$', P(('tensor', 'fsdp'))),
)


def axis_names(axis: Any) -> tuple[str, ...]:
  """The mesh axes that an entry of a PartitionSpec names."""
  return axis if isinstance(axis, tuple) else (axis,) if axis else ()


def without(spec: P, name: str) -> P:
  """A spec that does not split over the mesh axis `name`."""
  kept = (tuple(n for n in axis_names(axis) if n != name) for axis in spec)
  return P(*(axis[0] if len(axis) == 1 else axis or None for axis in kept))


SAMPLE_RULES: Rules = tuple(
    (pattern, without(spec, 'fsdp')) for pattern, spec in TRAIN_RULES)


def path_of(keys: Any) -> str:
  """Returns a leaf's path in the tree, such as 'layers/q'."""
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def spec_of(path: str, rules: Rules) -> P | None:
  """Returns the spec of the first rule that matches, or None."""
  return next((s for pattern, s in rules if re.search(pattern, path)), None)


def _sharding(path: str, shape: Sequence[int], rules: Rules, mesh: Mesh):
  """The sharding of one parameter by the first rule that matches."""
  spec = spec_of(path, rules)
  if spec is None:
    raise ValueError(
        f'No sharding rule matches parameter {path} of shape {tuple(shape)}; '
        'add a (regular expression, PartitionSpec) pair for it.')
  if len(spec) > len(shape):
    raise ValueError(
        f'Parameter {path} of shape {tuple(shape)} has fewer axes than its '
        f'rule {spec}; put a rule that fits before it.')
  for axis, names in enumerate(map(axis_names, spec)):
    sizes = [mesh.shape[name] for name in names]
    if shape[axis] % math.prod(sizes):
      fix = (
          f'choose a divisor, such as {math.gcd(shape[axis], *sizes)}'
          if len(names) == 1 else
          'choose sizes whose product divides it, and leave other devices to '
          'mesh.data')
      raise ValueError(
          f'Parameter {path} of shape {tuple(shape)} cannot be split: its axis '
          f'{axis} ({shape[axis]}) does not divide over '
          f'{" x ".join(f"mesh.{name}" for name in names)} = '
          f'{" x ".join(map(str, sizes))}; {fix}.')
  return NamedSharding(mesh, spec)


def shardings(shapes: Any, rules: Rules, mesh: Mesh) -> Any:
  """The layout of a parameter tree.

  Args:
    shapes: tree of anything with a shape (arrays or jax.ShapeDtypeStruct).
    rules: (regular expression, PartitionSpec) pairs; first match wins.
    mesh: see `make_mesh`.

  Returns:
    Tree of NamedSharding, like `shapes`.

  Raises:
    ValueError: no rule matches a parameter, or one does not divide.
  """
  return jax.tree_util.tree_map_with_path(
      lambda keys, leaf: _sharding(path_of(keys), leaf.shape, rules, mesh),
      shapes)


def abstract_params(
    shapes: Any, rules: Rules, mesh: Mesh, dtype: Any = None) -> Any:
  """Shapes with their layouts.

  Args:
    shapes: as for `shardings`.
    rules: as for `shardings`.
    mesh: see `make_mesh`.
    dtype: compute type, for the sampling layout; None keeps each leaf's own.

  Returns:
    Tree of jax.ShapeDtypeStruct with a sharding.
  """
  def one(keys, leaf):
    path = path_of(keys)
    kind = leaf.dtype if dtype is None else sampling_type(path, leaf, dtype)
    return jax.ShapeDtypeStruct(
        leaf.shape, kind, sharding=_sharding(path, leaf.shape, rules, mesh))

  return jax.tree_util.tree_map_with_path(one, shapes)


def optimizer_shardings(
    opt_shapes: Any, shapes: Any, rules: Rules, mesh: Mesh) -> Any:
  """The layout of an optax state.

  A leaf whose path ends in a parameter's path and that has its shape (the
  moments mu and nu, a trace, an average) lies as the parameter does; every
  other leaf is replicated.

  Args:
    opt_shapes: tree of shapes of the optimiser's state.
    shapes: tree of shapes of the parameters.
    rules: as for `shardings`.
    mesh: see `make_mesh`.

  Returns:
    Tree of NamedSharding, like `opt_shapes`.
  """
  known = {
      (path_of(keys), leaf.shape): _sharding(
          path_of(keys), leaf.shape, rules, mesh)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)}

  def one(keys, leaf):
    tails = (path_of(keys[i:]) for i in range(len(keys)))
    found = (known.get((tail, leaf.shape)) for tail in tails)
    return next((s for s in found if s is not None), replicated(mesh))

  return jax.tree_util.tree_map_with_path(one, opt_shapes)


def sampling_type(path: str, leaf: Any, dtype: Any) -> jnp.dtype:
  """The type a parameter has for sampling.

  Matrices and biases are used in the compute type, so they are stored in it;
  the weights of norms are used in float32, as in training, and stay as is.
  """
  return jnp.dtype(leaf.dtype if re.search(r'norm$', path) else dtype)


def table(
    shapes: Any, rules: Rules, mesh: Mesh, dtype: Any = None) -> str:
  """A printable table of a layout.

  Args:
    shapes: tree of arrays or jax.ShapeDtypeStruct.
    rules: as for `shardings`.
    mesh: see `make_mesh`.
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
