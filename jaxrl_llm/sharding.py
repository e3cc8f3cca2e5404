"""Where every array lives: the mesh and two layouts of the weights.

The mesh has three axes. Rows of a batch are split over `data` and `fsdp`;
weights in training over `fsdp` and `tensor`, weights in sampling over `tensor`
alone, so that no weight moves inside the decode loop. Both layouts are lists
of (regular expression, PartitionSpec) over parameter paths such as
'layers/q'; the first match wins.
"""

import io
import math
import os
import re
from typing import Any, Callable, Sequence

from absl import logging
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

AXES = ('data', 'fsdp', 'tensor')
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


def split_cpu(count: int) -> None:
  """Makes a CPU count as several devices, if JAX has not started yet.

  XLA does not share out the small products of a decode step, or what is
  elementwise, over cores; devices run side by side. Where the environment
  already says how many there are, that holds.

  Args:
    count: devices.
  """
  if (jax.config.jax_num_cpu_devices != -1 or
      'xla_force_host_platform_device_count' in os.environ.get(
          'XLA_FLAGS', '')):
    return
  try:
    jax.config.update('jax_num_cpu_devices', count)
  except RuntimeError:
    if jax.default_backend() == 'cpu' and jax.device_count() != count:
      logging.warning(
          'mesh.cpu_devices=%d comes too late: JAX has started with %d. '
          'Results are the same; steps may take longer.', count,
          jax.device_count())


def make_mesh(
    data: int, fsdp: int, tensor: int,
    devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh (data, fsdp, tensor).

  Args:
    data: groups of devices that each hold all training weights; -1 takes what
      the other two leave.
    fsdp: devices that share the training weights and split the rows; may be
      -1.
    tensor: devices that split every matrix; may be -1.
    devices: which devices; all by default.

  Returns:
    A mesh that uses every device once.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = dict(data=data, fsdp=fsdp, tensor=tensor)
  said = ', '.join(f'mesh.{axis}={size}' for axis, size in sizes.items())
  if any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(f'{said}: every size must be positive, or -1 for one.')
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise ValueError(f'{said}: only one size may be -1; set the others.')
  count, known = len(devices), math.prod(s for s in sizes.values() if s > 0)
  if free and count % known == 0:
    sizes[free[0]] = count // known
  elif free:
    raise ValueError(
        f'{said}: the {count} devices are not a multiple of {known}; choose '
        f'sizes whose product divides {count}.')
  elif known != count:
    raise ValueError(
        f'{said} makes {known} devices, but there are {count}; choose sizes '
        f'whose product is {count}, or set one to -1.')
  return jax.make_mesh(
      tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * 3,
      devices=devices)


def rows(mesh: Mesh) -> NamedSharding:
  """Layout of arrays whose first axis is the rows of a batch."""
  return NamedSharding(mesh, P(('data', 'fsdp')))


def replicated(mesh: Mesh) -> NamedSharding:
  """Layout of arrays that every device holds whole."""
  return NamedSharding(mesh, P())


def data_shards(mesh: Mesh) -> int:
  """Number of parts that `rows` cuts a batch into."""
  return mesh.shape['data'] * mesh.shape['fsdp']


def _path(keys) -> str:
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def spec_of(path: str, rules: Rules) -> P | None:
  """That of the first rule that matches."""
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
      lambda keys, leaf: _sharding(_path(keys), leaf.shape, rules, mesh),
      shapes)


def placed(
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
    path = _path(keys)
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
      (_path(keys), leaf.shape): _sharding(
          _path(keys), leaf.shape, rules, mesh)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)}

  def one(keys, leaf):
    tails = (_path(keys[i:]) for i in range(len(keys)))
    found = (known.get((tail, leaf.shape)) for tail in tails)
    return next((s for s in found if s is not None), replicated(mesh))

  return jax.tree_util.tree_map_with_path(one, opt_shapes)


def sampling_type(path: str, leaf: Any, dtype: Any) -> jnp.dtype:
  """The type a parameter has for sampling.

  Matrices and biases are used in the compute type, so they are stored in it;
  the weights of norms are used in float32, as in training, and stay as is.
  """
  return jnp.dtype(leaf.dtype if re.search(r'norm$', path) else dtype)


def to_sampling(
    shapes: Any,
    mesh: Mesh,
    dtype: Any,
    *,
    train_rules: Rules = TRAIN_RULES,
    sample_rules: Rules = SAMPLE_RULES,
) -> Callable[[Any], Any]:
  """Makes the function that turns training weights into sampling weights.

  Args:
    shapes: tree of shapes and types of the parameters.
    mesh: see `make_mesh`.
    dtype: the compute type.
    train_rules: the layout that the parameters come in.
    sample_rules: the layout that sampling wants.

  Returns:
    A function of the parameter tree, to be called once per update. A weight
    whose type and layout stay the same is passed on, not copied: make new
    sampling weights after each update that donates the parameters. Its
    attribute `lower` lowers the program that does it, from shapes alone.
  """
  before = jax.tree.leaves(shardings(shapes, train_rules, mesh))
  after = jax.tree.leaves(shardings(shapes, sample_rules, mesh))
  flat = jax.tree_util.tree_leaves_with_path(shapes)
  types = [sampling_type(_path(keys), leaf, dtype) for keys, leaf in flat]
  stays = [
      a.is_equivalent_to(b, len(leaf.shape))
      for a, b, (_, leaf) in zip(before, after, flat)]
  moved = [
      i for i, (_, leaf) in enumerate(flat)
      if leaf.dtype != types[i] or not stays[i]]

  def one(i, x):
    if stays[i] or not re.search(r'\blayers/', _path(flat[i][0])):
      return x.astype(types[i])
    # A layer at a time: of what is brought together whole, XLA has a copy.
    place = NamedSharding(mesh, P(*after[i].spec[1:]))
    return jax.lax.map(
        lambda layer: jax.lax.with_sharding_constraint(
            layer.astype(types[i]), place), x)

  def cast(leaves):
    return [one(i, x) for i, x in zip(moved, leaves)]

  relay = jax.jit(cast, out_shardings=[after[i] for i in moved])

  def convert(params):
    leaves, tree = jax.tree.flatten(params)
    for i, leaf in zip(moved, relay([leaves[i] for i in moved])):
      leaves[i] = leaf
    return tree.unflatten(leaves)

  come = jax.tree.leaves(placed(shapes, train_rules, mesh))
  convert.lower = lambda: relay.lower([come[i] for i in moved])
  return convert


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
    path = _path(keys)
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
