"""Data of accelerators for the cost estimate: names, rates, memory, links.

Sources: bfloat16 FLOP/s, HBM size and bandwidth are from the specification
pages of https://cloud.google.com/tpu/docs (v5e, v5p, v6e). The bandwidth of a
link in one direction, the latency of a hop, and the rule for dimensions of a
torus that wrap around are from "How to Scale Your Model",
https://jax-ml.github.io/scaling-book/tpus. The bandwidth between slices is a
chip's share of its host's network cards, from the same pages. The HBM available
to programs is from the compiler's message for a program that does not fit.
"""

import collections
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple, Sequence

import jax
import numpy as np

from jaxrl_llm import sharding

HOP_SECONDS = 1e-6
GIB = 1 << 30


class Chip(NamedTuple):
  """One device.

  Attributes:
    name: family, as in topology names.
    flops: bfloat16 FLOP/s of the matrix units.
    bandwidth: bytes/s of the HBM.
    memory: bytes of HBM that programs may use.
    link: bytes/s of one link in one direction.
    network: bytes/s from and to other slices.
    ring: a dimension of the torus wraps around if its size is a multiple of
      this; in a torus of three dimensions, all sizes must be multiples.
    pod: sizes of the largest slice, one per dimension.
  """
  name: str
  flops: float
  bandwidth: float
  memory: int
  link: float
  network: float
  ring: int
  pod: tuple[int, ...]


CHIPS = {
    'v5e': Chip(
        'v5e', 197e12, 819e9, int(15.75 * GIB), 45e9, 3.125e9, 16, (16, 16)),
    'v5p': Chip(
        'v5p', 459e12, 2765e9, int(95.74 * GIB), 90e9, 6.25e9, 4,
        (16, 16, 24)),
    'v6e': Chip(
        'v6e', 918e12, 1640e9, int(31.25 * GIB), 90e9, 12.5e9, 16, (16, 16)),
}

# Shapes offered by Google Cloud, by number of chips. Names of v5p slices count
# two cores per chip.
_FLAT = {1: '1x1', 4: '2x2', 8: '2x4', 16: '4x4', 32: '4x8', 64: '8x8',
         128: '16x8', 256: '16x16'}
_CUBES = {4: '2x2x1', 8: '2x2x2', 16: '2x2x4', 32: '2x4x4', 64: '4x4x4',
          128: '4x4x8', 256: '4x8x8', 512: '8x8x8', 1024: '8x8x16'}
TOPOLOGIES = {
    **{f'v5litepod-{n}': f'v5e:{shape}' for n, shape in _FLAT.items()},
    **{f'v5p-{2 * n}': f'v5p:{shape}' for n, shape in _CUBES.items()},
    **{f'v6e-{n}': f'v6e:{shape}' for n, shape in _FLAT.items()},
}


def count(kind: str) -> int | None:
  """Returns the chips of an accelerator type; None for an unknown family.

  Raises:
    ValueError: the family has no slice of this size.
  """
  if kind in TOPOLOGIES:
    return math.prod(map(int, TOPOLOGIES[kind].partition(':')[2].split('x')))
  family = kind.partition('-')[0]
  known = [name for name in TOPOLOGIES if name.partition('-')[0] == family]
  if known:
    raise ValueError(f'--type={kind} is none of {", ".join(known)}.')
  return None


class Topology(NamedTuple):
  """A slice of chips, or several that a network connects.

  Attributes:
    name: name such as v5e:16x8 or 2xv5e:16x8.
    chip: type of the chips; None for CPUs, which have no cost estimate.
    devices: jax devices; they need not exist.
  """
  name: str
  chip: Chip | None
  devices: Sequence[Any]


def topology(name: str) -> Topology:
  """Describes a slice; it need not exist on this machine.

  Args:
    name: 'v5e:16x8', an alias such as 'v5litepod-128', or '2xv5e:16x8' for two
      such slices; or 'cpu:8' for emulated CPU devices, which must be requested
      before JAX starts.

  Returns:
    The slice.

  Raises:
    ValueError: the slice is unknown, or the TPU compiler is not installed.
  """
  count, one = re.fullmatch(r'(?:(\d+)x(?=v))?(.*)', name).groups()
  full, slices = TOPOLOGIES.get(one, one), int(count or 1)
  family, _, shape = full.partition(':')
  if family == 'cpu' and shape.isdigit() and int(shape):
    jax.config.update('jax_platforms', 'cpu')
    sharding.split_cpu(int(shape))
    return Topology(full, None, jax.devices())
  if (family not in CHIPS or not _exists(CHIPS[family], shape)
      or not slices):
    raise ValueError(_unknown(name))
  if importlib.util.find_spec('libtpu') is None:
    raise ValueError(
        "The TPU compiler is not installed: pip install 'jaxrl_llm[aot]' "
        'installs the libtpu version that fits this jax (only for Linux on '
        'x86-64).')
  # Makes libtpu work while another program holds its lock.
  os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'
  # Avoids its warnings on a host without a TPU, or where another user owns the
  # folder of its logs.
  for variable, value in (
      ('TPU_SKIP_MDS_QUERY', '1'), ('TPU_LOG_DIR', 'disabled'),
      ('TPU_ACCELERATOR_TYPE', 'v5litepod-1'), ('TPU_WORKER_ID', '0'),
      ('TPU_WORKER_HOSTNAMES', 'localhost')):
    os.environ.setdefault(variable, value)
  from jax.experimental import topologies
  options = {'chips_per_host_bounds': [1, 1, 1]} if shape == '1x1' else {}
  if slices > 1:
    options['num_slices'] = slices
  try:
    devices = topologies.get_topology_desc(
        platform='tpu', topology_name=full, **options).devices
  except jax.errors.JaxRuntimeError as error:
    raise ValueError(f'{_unknown(name)} ({error})') from None
  return Topology(
      full if slices == 1 else f'{slices}x{full}', CHIPS[family], devices)


def _exists(chip: Chip, shape: str) -> bool:
  """Returns whether a slice can have a shape.

  Needed because the compiler also accepts shapes that do not exist. In three
  dimensions, switches connect cubes, so one dimension may be long.
  """
  if not re.fullmatch(r'\d+(x\d+)*', shape):
    return False
  sizes = [int(n) for n in shape.split('x')]
  return (
      len(sizes) == len(chip.pod) and
      0 < math.prod(sizes) <= math.prod(chip.pod) and
      (len(sizes) == 3 or max(sizes) <= max(chip.pod)))


def _unknown(name: str) -> str:
  return (
      f'{name} is not a known topology: use one of {", ".join(TOPOLOGIES)}, '
      'the shape itself (v5e:16x8, v5p:4x4x8), several slices (2xv5e:16x8), or '
      'cpu:8 for emulated devices.')


def of_slice(mesh: jax.sharding.Mesh) -> int:
  """Returns the number of devices in each slice of a mesh."""
  return mesh.devices.size // len({
      getattr(device, 'slice_index', 0) for device in mesh.devices.flat})


class Links(NamedTuple):
  """Links between the devices of a group.

  Attributes:
    axes: axes of the mesh along which the members differ.
    size: number of members.
    bandwidth: bytes/s into each member while all members communicate.
    hops: hops between the two members that are farthest apart.
    across: seconds of an all-to-all per byte of a member's array.
  """
  axes: tuple[str, ...]
  size: int
  bandwidth: float
  hops: int
  across: float


def links(
    chip: Chip, mesh: jax.sharding.Mesh, group: Sequence[int]) -> Links:
  """Returns the links of a group, assuming that such groups fill the slice.

  Each dimension along which the members differ adds its bandwidth: both
  directions of a ring if the dimension wraps around and the group spans it,
  else one direction. Interleaved groups share the links.

  Args:
    chip: type of the devices.
    mesh: the devices, in the order of their partition ids.
    group: partition ids of the members.
  """
  flat = mesh.devices.reshape(-1)
  where = np.array(np.unravel_index(np.asarray(group), mesh.devices.shape))
  axes = tuple(
      name for name, index in zip(mesh.axis_names, where)
      if len(np.unique(index)) > 1)
  coords = np.array([flat[i].coords for i in group])
  extent, wraps = _torus(chip, flat)
  bandwidth, hops, across = 0.0, 0, 0.0
  for dim in range(coords.shape[1]):
    places = np.unique(coords[:, dim])
    if len(places) < 2:
      continue
    stride = int(np.diff(places).min())
    span = int(places[-1] - places[0]) + stride
    ring = span == extent[dim] and wraps[dim]
    own = chip.link * (2 if ring else 1) / stride
    bandwidth += own
    # All-to-all: cut the n places in the middle, with a and b places on the two
    # sides. Each of m members sends its array of s bytes evenly to all members,
    # so m * a/n * b/n * s bytes cross the cut in one direction, over m/n lines.
    # All dimensions work at the same time, so the slowest one counts.
    n = len(places)
    across = max(across, (n // 2) * (n - n // 2) / n / own)
    hops += span // 2 if ring else int(places[-1] - places[0])
  return Links(axes, len(group), bandwidth, hops, across)


def shift(
    chip: Chip, mesh: jax.sharding.Mesh,
    pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
  """Computes the link load of a collective permutation.

  Each message takes the shorter way around, one dimension after the other.

  Args:
    chip: type of the devices.
    mesh: the devices, in the order of their partition ids.
    pairs: partition ids of source and target.

  Returns:
    The number of messages on the busiest link, and the hops of the longest way.
  """
  flat = mesh.devices.reshape(-1)
  extent, wraps = _torus(chip, flat)
  carries, hops = collections.Counter(), 0
  for source, target in pairs:
    at, way = list(flat[source].coords), 0
    for dim, end in enumerate(flat[target].coords):
      distance = end - at[dim]
      if wraps[dim] and abs(distance) > extent[dim] // 2:
        distance -= int(np.sign(distance) * extent[dim])
      for _ in range(abs(distance)):
        carries[tuple(at), dim, distance > 0] += 1
        at[dim] = (at[dim] + (1 if distance > 0 else -1)) % int(extent[dim])
      way += abs(distance)
    hops = max(hops, way)
  return max(carries.values(), default=0), hops


def _torus(chip: Chip, devices: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
  """Returns the sizes of a slice's dimensions, and which of them wrap around.
  """
  extent = np.array([d.coords for d in devices]).max(0) + 1
  wraps = extent % chip.ring == 0
  if len(chip.pod) == 3:  # optical switches connect whole cubes to a torus
    wraps &= wraps.all()
  return extent, wraps
