"""Estimate of a compiled program's cost on a chip, from the program's text.

The time of an operation is the maximum of its arithmetic on the matrix units
and its HBM traffic. Operations run one after another. Asynchronous copies and
collectives overlap with the operations of the same computation; synchronous
collectives do not. Vector units, launch overheads and congestion are left out.
The estimate is not calibrated, since no such chip was available.
"""

import dataclasses
import math
import re
from typing import Any, Mapping, NamedTuple

import numpy as np

from jaxrl_llm.launch.aot import chips, hlo, operations

COLLECTIVES = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all',
    'collective-permute')

class Collective(NamedTuple):
  """A collective.

  Attributes:
    kind: opcode, such as 'all-gather'.
    axes: axes of the mesh that it runs over.
    bytes: the larger of input and output on a device.
    times: number of runs.
    seconds: seconds of all runs.
    scope: path of name scopes under which it was traced.
    waited: True if it is synchronous, so that nothing overlaps with it.
  """
  kind: str
  axes: tuple[str, ...]
  bytes: int
  times: float
  seconds: float
  scope: str
  waited: bool


@dataclasses.dataclass
class Cost:
  """Cost of a computation, with all iterations of its loops.

  Attributes:
    flops: FLOPs of matrix products, two per multiply-add.
    bytes: bytes read from and written to HBM.
    compute: seconds of the matrix products alone.
    memory: seconds of the HBM traffic alone.
    interconnect: seconds of the collectives alone.
    seconds: total seconds, with overlap.
    collectives: all collectives.
    unknown: scopes of loops with unknown iterations, which count once.
  """
  flops: float = 0.0
  bytes: float = 0.0
  compute: float = 0.0
  memory: float = 0.0
  interconnect: float = 0.0
  seconds: float = 0.0
  collectives: list[Collective] = dataclasses.field(default_factory=list)
  unknown: list[str] = dataclasses.field(default_factory=list)

  def add(self, other: 'Cost', times: float = 1.0) -> None:
    """Adds `times` runs of another cost; with 0, not even its collectives."""
    if not times:
      return
    for name in (
        'flops', 'bytes', 'compute', 'memory', 'interconnect', 'seconds'):
      setattr(self, name, getattr(self, name) + times * getattr(other, name))
    self.collectives += [
        c._replace(times=c.times * times, seconds=c.seconds * times)
        for c in other.collectives]
    self.unknown += other.unknown

  @property
  def bound(self) -> str:
    """Resource with the longest time: compute, HBM or interconnect."""
    parts = dict(compute=self.compute, HBM=self.memory,
                 interconnect=self.interconnect)
    return max(parts, key=parts.get)


class Machine(NamedTuple):
  """Machine that a program runs on.

  Attributes:
    chip: type of the chips.
    mesh: the devices, in the order of their partition ids.
  """
  chip: chips.Chip
  mesh: Any


def estimate(
    text: str, machine: Machine, turns: Mapping[str, float],
    chances: Mapping[str, float | tuple[float, ...]]) -> Cost:
  """Estimates the cost of one run of a compiled program on each device.

  Args:
    text: `compiled.as_text()`.
    machine: the machine that it was compiled for.
    turns: iterations of data-dependent loops, by the name of the scope
      (`jax.named_scope`) that the loop was traced in.
    chances: share of runs in which a conditional takes its most expensive
      branch (else the cheapest), by the name of a scope around it, the
      innermost one that is known. Or a tuple of the shares of all branches,
      from the cheapest on, by the name of the scope directly around it. The
      default is 1.

  Returns:
    The cost per device.
  """
  module = hlo.parse(text)
  return _Estimator(module, machine, turns, chances).cost(module.entry)


class _Estimator:
  """Estimator of the costs of a module's computations."""

  def __init__(self, module, machine, turns, chances):
    self._module, self._machine = module, machine
    self._turns, self._chances = turns, chances
    self._loops = hlo.Loops(module)
    self._known = {}

  def cost(self, name: str) -> Cost:
    """Returns the cost of one run of a computation, with a cache."""
    if name not in self._known:
      self._known[name] = self._cost(self._module.computations[name])
    return self._known[name]

  def _cost(self, computation) -> Cost:
    total, beside = Cost(), Cost()
    busy = traffic = 0.0
    for x in computation.instructions.values():
      if x.op == 'while':
        body = self.cost(x.calls['body'])
        turns = self._loops.turns(computation, x)
        if turns is None:
          turns = self._turns.get(loop_name(x.scope))
        if turns is None:
          total.unknown.append(x.scope)
        total.add(body, 1.0 if turns is None else turns)
      elif x.op == 'conditional':
        for branch, often in self._branches(x):
          total.add(branch, often)
      elif x.op in ('call', 'async-start'):
        for called in x.calls.values():
          total.add(self.cost(called))
      elif x.op.removesuffix('-start') in COLLECTIVES:
        _note(self._collective(computation, x), total, beside)
      elif between_slices(x):
        _note(self._transfer(x), total, beside)
      elif x.op not in operations.FREE and not x.op.endswith('-done'):
        for collective in self._fused_collectives(x):
          _note(collective, total, beside)
        own = self._operation(computation, x)
        ahead = x.op.endswith('-start')
        (beside if ahead else total).add(own)
        traffic += own.memory
        busy += 0.0 if ahead else own.seconds
    # Asynchronous collectives overlap with the operations, and asynchronous
    # copies with the time in which the operations leave the HBM idle.
    total.seconds += max(
        0.0, traffic - busy, beside.interconnect - busy)
    beside.seconds = 0.0
    total.add(beside)
    return total

  def _fused_collectives(self, x) -> list[Collective]:
    """Returns the collectives inside a fusion.

    An asynchronous collective appears in three kinds of fusions: those that
    start it, pass it on, and wait for it. The compiler marks all of these, and
    no others, with a chain id; only the start counts. An all-reduce that
    returns only a part of its result is a reduce-scatter.
    """
    if x.op != 'fusion':
      return []
    inner, found = self._module.computations[x.calls['calls']], []
    starts = _starts(inner)
    for y in inner.instructions.values():
      if y.op in COLLECTIVES and (starts or 'chain_id="' not in y.text):
        kind = y.op
        if kind == 'all-reduce' and x.arrays[0].size < y.arrays[0].size:
          kind = 'reduce-scatter'
        found.append(self._collective(inner, y)._replace(waited=not starts))
        if kind != y.op:
          half = found[-1].seconds / 2
          found[-1] = found[-1]._replace(kind=kind, seconds=half)
    return found

  def _branches(self, x) -> list[tuple[Cost, float]]:
    """Returns the branches of a conditional that count, with their shares."""
    costs = sorted(
        (self.cost(name) for name in x.calls.values()),
        key=lambda c: (c.seconds, c.flops, c.bytes))
    direct = re.search(r'(\w+)\)*/cond$', x.scope)
    shares = self._chances.get(direct[1]) if direct else None
    if isinstance(shares, tuple):
      return list(zip(costs, shares, strict=True))
    chance = 1.0
    for name in re.findall(r'\w+', x.scope):
      found = self._chances.get(name, chance)
      if not isinstance(found, tuple):
        chance = found
    return [(costs[-1], chance), (costs[0], 1.0 - chance)]

  def _operation(self, computation, x) -> Cost:
    """Returns the cost of an operation other than control or a collective."""
    flops = operations.flops(self._module, computation, x)
    bytes_ = operations.traffic(self._module, computation, x)
    chip = self._machine.chip
    compute, memory = flops / chip.flops, bytes_ / chip.bandwidth
    return Cost(flops=flops, bytes=bytes_, compute=compute, memory=memory,
                seconds=max(compute, memory))

  def _collective(self, computation, x) -> Collective:
    kind = x.op.removesuffix('-start')
    operands = [
        a for i in range(len(x.operands))
        for a in computation.operand(x, i).arrays]
    sent = sum(a.bytes for a in operands)
    arrays = x.arrays
    if x.op.endswith('-start'):
      # (operands, results, context). An all-reduce-start has only results, so
      # this slice is empty; they are as large as its operands.
      arrays = arrays[len(operands):2 * len(operands)]
    got = sum(a.bytes for a in arrays)
    chip, mesh = self._machine
    links = chips.links(chip, mesh, group(x, chips.of_slice(mesh)))
    if kind == 'collective-permute':
      carried, hops = chips.shift(chip, mesh, _pairs(x))
      seconds = carried * sent / chip.link + hops * chips.HOP_SECONDS
    else:
      seconds = _seconds(kind, max(sent, got), links)
    return Collective(
        kind=kind, axes=links.axes, bytes=max(sent, got), times=1.0,
        seconds=seconds, scope=x.scope, waited=not x.op.endswith('-start'))


  def _transfer(self, x) -> Collective:
    """Returns the part of a collective that is between slices.

    The compiler makes a collective over several slices of one within each, and
    of messages to the chips at the same place in the others. The text is that
    of one slice.
    """
    chip, mesh = self._machine
    slices = mesh.devices.size // chips.of_slice(mesh)
    kind = between_slices(x)
    size = x.arrays[0].bytes
    share = {'all-reduce': 2 / slices, 'all-gather': 1.0}.get(kind, 1 / slices)
    return Collective(
        kind=kind, axes=('data',) if mesh.shape['data'] > 1 else ('fsdp',),
        bytes=size, times=1.0,
        seconds=(slices - 1) * share * size / chip.network, scope=x.scope,
        waited=False)


def between_slices(x: hlo.Instruction) -> str | None:
  """Returns the kind of a collective whose part between slices this starts."""
  if x.op != 'send':
    return None
  found = re.search(r'_xla_megascale_transfer_type="(\w+)"', x.text)
  return found and found[1].lower().replace('_', '-')


def _note(collective: Collective, total: Cost, beside: Cost) -> None:
  """Adds a collective to `total`, or to `beside` if it is asynchronous."""
  into = total if collective.waited else beside
  into.collectives.append(collective)
  into.interconnect += collective.seconds
  into.seconds += collective.seconds if collective.waited else 0.0


def _starts(computation) -> bool:
  """Returns whether a fusion starts an asynchronous collective."""
  return any('"AsyncCollectiveStart"' in y.text
             for y in computation.instructions.values())


def _seconds(kind: str, size: int, links: chips.Links) -> float:
  """Returns the seconds of a collective other than a permutation.

  All-gather and reduce-scatter move (n-1)/n of the whole array to each member,
  and an all-reduce does both. An all-to-all is bound by the links in the middle
  of its slowest dimension.
  """
  n = links.size
  if n == 1 or not links.bandwidth:
    return 0.0
  rounds = 2 if kind == 'all-reduce' else 1
  moving = (size * links.across if kind == 'all-to-all' else
            rounds * (n - 1) / n * size / links.bandwidth)
  return moving + rounds * links.hops * chips.HOP_SECONDS


def loop_name(scope: str) -> str | None:
  """Returns the name of the scope that a loop was traced in, or None."""
  found = re.search(r'(\w+)\)*/while$', scope)
  return found and found[1]


def group(x: hlo.Instruction, devices: int | None = None) -> list[int]:
  """Returns the partition ids of one group of a collective.

  Args:
    x: the collective.
    devices: number of all devices; they form the group if the text lists none.

  Raises:
    ValueError: the text does not tell the group.
  """
  if x.attribute('source_target_pairs') is not None:
    follows = dict(_pairs(x))
    cycle = [next((a for a, b in follows.items() if a != b), 0)]
    while (new := follows.get(cycle[-1])) is not None and new not in cycle:
      cycle.append(new)
    return cycle
  iota = re.search(
      r'replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', x.text)
  if iota:
    ids = _iota(iota[3], iota[4])
    return ids.reshape(int(iota[1]), int(iota[2]))[0].tolist()
  named = re.search(
      r'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]'
      r'(?:T\(([\d,]+)\))?\))? *\{([^}]*)\}', x.text)
  if named:
    names = re.findall(r"'([^']*)'=", named[1])
    sizes = [int(n) for n in re.findall(r'=(\d+)', named[1])]
    ids = _iota(named[2] or ','.join(map(str, sizes)), named[3])
    axes = re.findall(r"'([^']*)'", named[4])
    index = tuple(slice(None) if n in axes else 0 for n in names)
    return ids.reshape(sizes)[index].reshape(-1).tolist()
  groups = re.search(r'replica_groups=\{\{([\d,]+)\}', x.text)
  if groups:
    return [int(n) for n in groups[1].split(',')]
  if devices is not None and 'replica_groups={}' in x.text:
    return list(range(devices))
  raise ValueError(
      f'The devices of {x.op} {x.name} cannot be read from {x.text[:200]!r}.')


def _pairs(x) -> list[tuple[int, int]]:
  """Returns (source, target) pairs of a permutation."""
  numbers = [int(n) for n in re.findall(
      r'\d+', x.attribute('source_target_pairs'))]
  return list(zip(numbers[::2], numbers[1::2]))


def _iota(dims: str, order: str | None) -> np.ndarray:
  """Returns ids 0, 1, ... in shape `dims`, with axes permuted by `order`."""
  sizes = [int(d) for d in dims.split(',')]
  ids = np.arange(math.prod(sizes)).reshape(sizes)
  return ids.transpose([int(d) for d in order.split(',')]) if order else ids
