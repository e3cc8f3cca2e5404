"""The meshes of devices, and the layout of a batch's rows on them."""

import math
from typing import Mapping, Sequence

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = ('data', 'fsdp', 'tensor')


def _said(*sizes: int) -> str:
  """Returns the sizes of the axes as fields."""
  return ', '.join(
      f'mesh.{axis}={size}' for axis, size in zip(AXES, sizes))


def axis_sizes(data: int, fsdp: int, tensor: int, count: int) -> dict[str, int]:
  """Returns the sizes of a mesh's axes, without -1.

  Args:
    data, fsdp, tensor: as for `make_mesh`.
    count: number of devices.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  sizes, said = dict(zip(AXES, (data, fsdp, tensor))), _said(
      data, fsdp, tensor)
  if any(size < 1 and size != -1 for size in sizes.values()):
    raise ValueError(
        f'{said}: use positive sizes; one of them may be -1 instead.')
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise ValueError(f'{said}: only one size may be -1; set the others.')
  given = math.prod(s for s in sizes.values() if s > 0)
  if free and count % given == 0:
    sizes[free[0]] = count // given
  elif free:
    raise ValueError(
        f'{said}: the {count} devices are not a multiple of {given}; choose '
        f'sizes whose product divides {count}.')
  elif given != count:
    raise ValueError(
        f'{said} makes {given} devices, but there are {count}; choose sizes '
        f'whose product is {count}, or set one to -1.')
  return sizes


def make_mesh(
    data: int, fsdp: int, tensor: int,
    devices: Sequence[jax.Device] | None = None,
    learner_tensor: int | None = None) -> Mesh:
  """Makes the mesh (data, fsdp, tensor).

  Args:
    data: number of device groups that each hold all training weights; -1 for
      all devices divided by fsdp x tensor.
    fsdp: number of devices that split both the training weights and the rows;
      may be -1.
    tensor: number of devices that split every matrix; may be -1.
    devices: devices to use; None for all.
    learner_tensor: of `learner_mesh`, for which the devices are arranged: the
      neighbours in its large `fsdp` are neighbours in the slice too.

  Returns:
    A mesh that uses every device once. On several TPU slices only the axis
    `data` crosses from one to another, or `fsdp` if there is no other: the
    network between them is slow.

  Raises:
    ValueError: the sizes do not multiply to the number of devices, or the
      rows do not divide over the slices; or as `learner_mesh`.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = axis_sizes(data, fsdp, tensor, len(devices))
  slices, first = _slices(devices), _learner_sizes(sizes, learner_tensor)
  if slices > 1:
    across = 'data' if sizes['data'] > 1 else 'fsdp'
    if sizes[across] % slices:
      raise ValueError(
          f'{_said(data, fsdp, tensor)}: mesh.{across} must be a multiple of '
          f'the {slices} slices, so that no other axis crosses from one slice '
          'to another.')
    inside = {**first, across: first[across] // slices}
    between = {**dict.fromkeys(AXES, 1), across: slices}
    arranged = mesh_utils.create_hybrid_device_mesh(
        tuple(inside.values()), tuple(between.values()), devices,
        allow_split_physical_axes=True)
  else:
    arranged = jax.make_mesh(
        tuple(first.values()), AXES, devices=devices).devices
  return Mesh(arranged.reshape(*sizes.values()), AXES)


def learner_mesh(mesh: Mesh, tensor: int | None) -> Mesh:
  """Makes the learner's mesh: the same devices, in the same order.

  Decoding gains from splitting matrices over `tensor`, updates lose by it. A
  data shard of `mesh` is several neighbouring ones of the learner's mesh.

  Args:
    mesh: the sampler's mesh, from `make_mesh`.
    tensor: size of the axis `tensor` there; the rest of this axis joins `fsdp`.
      None keeps the mesh.

  Returns:
    A mesh with the same axes; `mesh` itself if the sizes are the same.

  Raises:
    ValueError: `tensor` does not divide that of `mesh`.
  """
  sizes = _learner_sizes(mesh.shape, tensor)
  if sizes == mesh.shape:
    return mesh
  return Mesh(mesh.devices.reshape(*sizes.values()), AXES)


def _learner_sizes(
    sizes: Mapping[str, int], tensor: int | None) -> Mapping[str, int]:
  """Returns the sizes of the learner's mesh, see `learner_mesh`."""
  whole = sizes['tensor']
  if tensor is None:
    return sizes
  if whole % tensor:
    raise ValueError(
        f'mesh.learner_tensor={tensor} does not divide mesh.tensor={whole}: '
        'use a divisor of it, such as 1, or none for the same mesh.')
  return {**sizes, 'fsdp': sizes['fsdp'] * whole // tensor, 'tensor': tensor}


def _slices(devices: Sequence[jax.Device]) -> int:
  """Returns the number of TPU slices of the devices; other devices have one."""
  if devices[0].platform != 'tpu':
    return 1
  return len({getattr(device, 'slice_index', 0) for device in devices})


def rows(mesh: Mesh) -> NamedSharding:
  """Returns the layout of arrays whose first axis is the rows of a batch."""
  return NamedSharding(mesh, P(('data', 'fsdp')))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the layout of arrays that are replicated on every device."""
  return NamedSharding(mesh, P())


def data_shards(mesh: Mesh) -> int:
  """Returns the number of parts into which `rows` splits a batch."""
  return mesh.shape['data'] * mesh.shape['fsdp']


def learner_shards(mesh: Mesh, learner: Mesh) -> str:
  """Describes the data shards of the learner's mesh, for an error."""
  if learner is mesh:
    return f"the mesh's {data_shards(mesh)} data shards (data x fsdp)"
  return (f"the learner's {data_shards(learner)} data shards (mesh.data x "
          'mesh.fsdp x mesh.tensor / mesh.learner_tensor)')
