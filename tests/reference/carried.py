"""Waves that end early, one response at a time: the twin of loop/carry."""

import dataclasses


@dataclasses.dataclass
class Response:
  """A response; `wrote` has the policy's step of each of its tokens."""
  group: int
  sample: int
  shard: int
  wrote: list = dataclasses.field(default_factory=list)
  first: int = -1  # wave of the first token
  finished: bool = False


class Waves:
  """Entries in the order in which they were begun, each with its responses."""

  def __init__(self, shards, prompts, most_entries, most_rows, of_wave):
    self.shards, self.prompts = shards, prompts
    self.most, self.of_wave = (most_entries, most_rows), of_wave
    self.entries = []

  def rows(self):
    return [row for entry in self.entries for row in entry]

  def has_room(self):
    held = len(self.entries), len(self.rows())
    return all(a + b <= most for a, b, most in zip(
        held, self.of_wave, self.most))

  def begin(self, asked):
    """Begins (group, samples) pairs; the least busy shard takes the next."""
    load = [0] * self.shards
    for row in self.rows():
      load[row.shard] += not row.finished
    counts = [0] * self.shards
    for _ in [sample for _, samples in asked for sample in samples]:
      shard = min(range(self.shards), key=lambda s: load[s] + counts[s])
      counts[shard] += 1
    shards = [s for s, count in enumerate(counts) for _ in range(count)]
    for group, samples in asked:
      self.entries.append(
          [Response(group, sample, shards.pop(0)) for sample in samples])

  def unfinished(self):
    return [row for row in self.rows() if not row.finished]

  def birth(self, row):
    return row.group // self.prompts

  def add(self, wave, policy, progress):
    """Adds (tokens, finished) to each unfinished response."""
    for row, (tokens, finished) in zip(self.unfinished(), progress):
      if tokens and not row.wrote:
        row.first = wave
      row.wrote += [policy] * tokens
      row.finished = finished

  def leave(self):
    """Takes out the entries before the first with an unfinished response."""
    gone = []
    while self.entries and all(row.finished for row in self.entries[0]):
      gone.append(self.entries.pop(0))
    return gone
