"""Processes of a run: the rows that each holds, and the values they exchange.

Every process runs the same program. It samples, decodes and verifies the rows
of its own data shards; rows are numbered alike everywhere, but their tokens are
only at the processes that hold the row's shard: their home. Facts about rows
are gathered, so that every process takes the same decisions. Data shards are
those of the sampler's mesh: one of them is some whole ones of the learner's.
"""

from typing import Any, NamedTuple, Sequence

import jax
from jax.sharding import Mesh, NamedSharding
import numpy as np

from jaxrl_llm.sharding import channel as channel_lib
from jaxrl_llm.sharding import mesh as mesh_lib
from jaxrl_llm.sharding.channel import Channel


class Homes(NamedTuple):
  """Processes by the data shards that they hold.

  Attributes:
    of_shard: [shards] number of the home of each data shard.
    leads: for each home, its process that speaks for all of its processes.
  """
  of_shard: np.ndarray
  leads: tuple[int, ...]


class Processes(NamedTuple):
  """The processes of a run on a mesh.

  Attributes:
    channel: exchange of small values.
    homes: who holds which rows.
    home: number of this process's home.
    mesh: the sampler's, from `make_mesh`.
    learner_mesh: of the batches, from `learner_mesh`.
  """
  channel: Channel
  homes: Homes
  home: int
  mesh: Mesh
  learner_mesh: Mesh

  @property
  def leads(self) -> bool:
    """Whether this process speaks for its home."""
    return self.homes.leads[self.home] == self.channel.index

  def home_of(self, shard: np.ndarray) -> np.ndarray:
    """Returns the home of rows by their data shard, which may be of another
    mesh.
    """
    return self.homes.of_shard[shard % len(self.homes.of_shard)]

  def here(self, shard: np.ndarray) -> np.ndarray:
    """Returns which rows are at home in this process, by their data shard."""
    return self.home_of(shard) == self.home

  def gather_rows(
      self, shard: np.ndarray, mine: Sequence[Any], extra: Any = None,
  ) -> tuple[list[Any], list[Any]]:
    """Gathers values of rows, each from its home.

    Args:
      shard: [R] data shard of each row.
      mine: values, as for `Channel.gather`, of the rows at home in this
        process, in order.
      extra: another value of this process.

    Returns:
      R values, and the extra value of each home.
    """
    sent = self.channel.gather([[*mine], extra] if self.leads else None)
    of_homes = [sent[lead] for lead in self.homes.leads]
    each = [iter(rows) for rows, _ in of_homes]
    return ([next(each[home]) for home in self.home_of(shard)],
            [value for _, value in of_homes])

  def positions(self, rows: int) -> np.ndarray:
    """Returns which rows of a batch the devices of this home hold."""
    return np.flatnonzero(self._home_at(rows) == self.home)

  def _home_at(self, rows: int) -> np.ndarray:
    """Returns the home of each row of a batch."""
    return np.repeat(
        self.homes.of_shard, rows // len(self.homes.of_shard))

  def place(self, rows: np.ndarray, shard: np.ndarray) -> np.ndarray:
    """Reorders the rows of a batch, so that most are used where they are.

    Rows come first to places of their home, in order. What remains, filler
    included, takes the places that are left.

    Args:
      rows: [B] numbers of rows, -1 for filler.
      shard: [C] data shard of each row.

    Returns:
      [B] the same rows in another order; in a single home, in the same.
    """
    if len(self.homes.leads) == 1:
      return rows
    at = self._home_at(len(rows))
    home = np.where(rows >= 0, self.home_of(shard[rows]), -1)
    taken = np.full(len(rows), -1)  # by each place, the index of its row
    for number in range(len(self.homes.leads)):
      ours, places = np.flatnonzero(home == number), np.flatnonzero(
          at == number)
      count = min(len(ours), len(places))
      taken[places[:count]] = ours[:count]
    taken[taken < 0] = np.setdiff1d(np.arange(len(rows)), taken)
    return rows[taken]

  def surplus(self, placed: np.ndarray, shard: np.ndarray) -> np.ndarray:
    """Returns the rows of a placed batch that are used away from their home."""
    away = self.home_of(shard[placed]) != self._home_at(len(placed))
    return np.unique(placed[(placed >= 0) & away])

  def exchange(
      self, rows: np.ndarray, shard: np.ndarray, tree: Any) -> None:
    """Writes rows into the arrays of processes in which they are not at home.

    Args:
      rows: [K] their numbers, the same in every process.
      shard: [C] data shard of each row.
      tree: arrays [C, ...], changed in place.
    """
    if self.channel.count == 1 or not len(rows):
      return
    leaves, home = jax.tree.leaves(tree), self.home_of(shard[rows])
    mine = rows[home == self.home]
    sent = self.channel.gather(
        [leaf[mine] for leaf in leaves] if self.leads else None)
    for number, lead in enumerate(self.homes.leads):
      if number != self.home:
        theirs = rows[home == number]
        for leaf, values in zip(leaves, sent[lead]):
          leaf[theirs] = values

  def shard_rows(self, batch: Any, rows: int) -> Any:
    """Puts a batch on the learner's devices, its rows split over them.

    Args:
      batch: tree of NumPy arrays: the rows of `positions(rows)`.
      rows: of the whole batch.
    """
    layout, mine = mesh_lib.rows(self.learner_mesh), self.positions(rows)
    if self.channel.count == 1:
      return jax.device_put(batch, layout)

    def placed(local):
      def piece(index):
        start, stop, _ = index[0].indices(rows)
        return local[np.searchsorted(mine, start):np.searchsorted(mine, stop)]

      return _array((rows, *local.shape[1:]), layout, piece)

    return jax.tree.map(placed, batch)

  def fetch_rows(self, batch: Any) -> Any:
    """Returns arrays split over the data shards, with the rows at home here.

    All processes must call it.

    Args:
      batch: tree of [B, ...] on the devices.

    Returns:
      Tree of [M, ...] NumPy arrays, the rows of `positions(B)`.
    """
    if self.channel.count == 1:
      return jax.device_get(batch)
    if self.learner_mesh is not self.mesh:
      # Each process of a home may train on any of its rows.
      batch = channel_lib.mover(mesh_lib.rows(self.mesh))(batch)

    def joined(x):
      pieces = {s.index[0].start or 0: s.data for s in x.addressable_shards}
      return np.concatenate(
          jax.device_get([pieces[start] for start in sorted(pieces)]))

    return jax.tree.map(joined, batch)


def make_processes(mesh: Mesh, learner_mesh: Mesh | None = None) -> Processes:
  """Makes the processes of a run.

  Args:
    mesh: the sampler's, from `make_mesh`.
    learner_mesh: of the batches; None for `mesh`.

  Raises:
    ValueError: two processes share some data shards, but not all.
  """
  channel = Channel()
  devices = mesh.devices.reshape(-1, mesh.shape['tensor'])
  holders = [
      tuple(sorted({d.process_index for d in row})) for row in devices]
  leads = tuple(dict.fromkeys(min(some) for some in sorted(holders)))
  for a in holders:
    for b in holders:
      if a != b and {*a} & {*b}:
        raise ValueError(
            f'mesh.tensor={mesh.shape["tensor"]} splits some data shards over '
            f'processes {a} and others over {b}: choose a mesh.tensor that '
            'divides the devices of a process, or is a multiple of them.')
  homes = Homes(np.array([leads.index(min(some)) for some in holders]), leads)
  mine = [i for i, some in enumerate(holders) if channel.index in some]
  return Processes(channel, homes, int(homes.of_shard[mine[0]]), mesh,
      mesh if learner_mesh is None else learner_mesh)


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Puts a tree of host values on every device, whole."""
  return put(tree, mesh_lib.replicated(mesh))


def key(seed: int, mesh: Mesh) -> jax.Array:
  """Makes a PRNG key on every device."""
  return jax.jit(
      lambda: jax.random.key(seed), out_shardings=mesh_lib.replicated(mesh))()


def put(tree: Any, layout: Any) -> Any:
  """Puts host values, the same in every process, on the devices.

  Args:
    tree: of NumPy arrays and numbers, or of arrays on all devices.
    layout: a sharding, or a tree of them.
  """
  if jax.process_count() == 1:
    return jax.device_put(tree, layout)
  if isinstance(layout, NamedSharding):
    layout = jax.tree.map(lambda _: layout, tree)

  def placed(x, place):
    if isinstance(x, jax.Array):  # it is there already
      return jax.device_put(x, place)
    x = np.asarray(x)
    return _array(x.shape, place, lambda index: x[index])

  return jax.tree.map(placed, tree, layout)


def _array(shape, layout, piece) -> jax.Array:
  """Makes an array; a guard against accidental transfers lets it pass."""
  with jax.transfer_guard('allow'):
    return jax.make_array_from_callback(shape, layout, piece)


def whole(tree: Any) -> Any:
  """Returns arrays that are split over processes as NumPy arrays.

  All processes must call it. Devices hold one gathered array at a time.
  """
  def on_host(x):
    if not isinstance(x, jax.Array) or (
        x.is_fully_addressable or x.is_fully_replicated):
      return jax.device_get(x)
    return np.asarray(
        channel_lib.mover(mesh_lib.replicated(x.sharding.mesh))(x))

  return jax.tree.map(on_host, tree)
