"""Tests of the names of slices, and of the links of a group of chips."""

import sys
import types

import numpy as np
import pytest

from jaxrl_llm.launch.aot import chips
from tests.helpers import devices


def mesh(*shape, axes=('data', 'fsdp', 'tensor'), extent=(16, 8, 1)):
  """Makes a mesh on a torus, by default of 16 x 8 chips, filled row by row."""
  flat = np.empty(np.prod(extent), object)
  flat[:] = [types.SimpleNamespace(coords=c) for c in np.ndindex(*extent)]
  return types.SimpleNamespace(devices=flat.reshape(shape), axis_names=axes)


@pytest.mark.parametrize('shape, axis, want', [
    # All 16 of a dimension: a ring, both ways.
    ((16, 8, 1), 0, (('data',), 16, 90e9, 8, 4 / 90e9)),
    # All 8 of the other: no wrapping around below 16.
    ((16, 8, 1), 1, (('fsdp',), 8, 45e9, 7, 2 / 45e9)),
    # 4 neighbours of a line, and groups that share it, 4 apart.
    ((16, 2, 4), 2, (('tensor',), 4, 45e9, 3, 1 / 45e9)),
    ((16, 2, 4), 1, (('fsdp',), 2, 45e9 / 4, 4, 2 / 45e9)),
    # A block of 4 x 8: two dimensions at once.
    ((4, 32, 1), 1, (('fsdp',), 32, 90e9, 10, 2 / 45e9))])
def test_links_of_a_group(shape, axis, want):
  ids = np.moveaxis(np.arange(128).reshape(shape), axis, 0)
  group = ids.reshape(len(ids), -1)[:, 0]
  found = chips.links(chips.CHIPS['v5e'], mesh(*shape), group)
  assert found.axes == want[0] and found[1:] == pytest.approx(want[1:])


@pytest.mark.parametrize('stride, size, by, want', [
    # The dimension of 16 wraps around: 1 hop, also of the last to the first.
    (8, 16, 1, (1, 1)), (8, 16, 3, (3, 3)), (8, 16, 13, (3, 3)),
    # That of 8 does not: the last sends to the first over all of the line, and
    # nobody else sends that way.
    (1, 8, 1, (1, 7)),
    # By 4 of 8: every link in the middle carries what 4 send.
    (1, 8, 4, (4, 4)), (1, 8, 0, (0, 0))])
def test_who_sends_to_whom(stride, size, by, want):
  pairs = [(i * stride, (i + by) % size * stride) for i in range(size)]
  assert chips.shift(chips.CHIPS['v5e'], mesh(16, 8, 1), pairs) == want


def test_a_v5p_slice_wraps_around_if_it_is_made_of_cubes():
  v5p = chips.CHIPS['v5p']
  # All of the last dimension of 4: of a cube a ring, below one a line.
  for extent, bandwidth, hops in (((4, 4, 4), 180e9, 2), ((2, 4, 4), 90e9, 3)):
    found = chips.links(v5p, mesh(*extent, extent=extent), [0, 1, 2, 3])
    assert (found.bandwidth, found.hops) == (bandwidth, hops)


def test_an_unknown_slice_is_told_the_known_ones():
  for name in ('v9:2x2', 'v5litepod-3', 'v5e', 'v5e:two', 'cpu:many', 'cpu:0',
               'v5e:4x4x4', 'v6e:2x2x2', 'v5p:4x4', 'v5e:16x32', 'v5e:0x4',
               'v5p:16x16x28', 'v5e:32x8'):
    with pytest.raises(ValueError) as error:
      chips.topology(name)
    assert str(error.value).startswith(f'{name} is not a known topology')
    assert 'v5litepod-128' in str(error.value)


def test_without_the_compiler_it_says_how_to_get_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'libtpu', None)
  with pytest.raises(ValueError, match=r"pip install 'jaxrl_llm\[aot\]'"):
    chips.topology('v5e:2x2')


@devices.needs_libtpu
def test_slices_and_their_aliases():
  for name, count in (('v5litepod-128', 128), ('v5e:2x2', 4), ('v5e:1x1', 1),
                      ('v5p-16', 8), ('v6e-8', 8)):
    found = chips.topology(name)
    assert len(found.devices) == count
    assert found.chip is chips.CHIPS[found.name.partition(':')[0]]
  with pytest.raises(ValueError, match='v5e:99x8 is not a known topology'):
    chips.topology('v5e:99x8')
