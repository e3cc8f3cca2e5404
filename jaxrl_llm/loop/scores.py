"""Scores of rows: log-probs of their tokens under policies."""

from typing import Any, Collection, Mapping, Sequence

import numpy as np

from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.learner.update import TrainState
from jaxrl_llm.loop import flops, lag
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.monitoring import timing
from jaxrl_llm.types import RolloutTokens, Table


def to_score(
    table: Table, groups: Sequence[np.ndarray], unscored: int, *, size: int,
    drop_zero_advantage: bool) -> np.ndarray:
  """Finds the rows without scores whose log-probs may be needed later.

  Args:
    table: C rows.
    groups: [G, n] rows of the groups that are trained on or held, -1 for none.
    unscored: R, rows at the table's end that have no scores.
    size: length of the result, at least R.
    drop_zero_advantage: leave out rows that are never trained on.

  Returns:
    [size] numbers of these rows among the R, each at its own place; -1 for the
    others and filler.
  """
  needed = np.zeros(len(table.group), bool)
  for rows in groups:
    needed[rows[rows >= 0]] = True
  if drop_zero_advantage:
    needed &= ~table.without_advantage
  if table.carried is not None:
    needed &= table.carried < table.length
  return masked_indices(needed[len(needed) - unscored:], size)


def masked_indices(which: np.ndarray, size: int) -> np.ndarray:
  """Returns [size] the numbers of rows that `which` marks, -1 elsewhere."""
  rows = np.where(which, np.arange(len(which)), -1)
  return np.pad(rows, (0, size - len(rows)), constant_values=-1)


def scoring(
    columns: Collection[str], learners: Mapping[str, Any],
    anchors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns the parameters that each call of `score` takes.

  Args:
    columns: names of columns, among them the scores that are needed.
    learners: name of each player to its TrainState.
    anchors: name of each column of a frozen player to its parameters.

  Returns:
    Column of each call's `Scores.logprobs`, to the name of each player in the
    call to its parameters.
  """
  there = {name: column for name, column in RolloutTokens.declared.items()
           if column.player and name in columns}
  # The actor's pass costs as much as it is large: only where it is asked for.
  asked = {column.player for column in there.values() if not column.frozen}
  now = {name: learners[name].params for name in asked & learners.keys()}
  return {name: {column.player: anchors.get(name)} if column.frozen else now
          for name, column in there.items()
          if column.frozen or column.player == POLICY}


def with_scores(
    parts: Parts, fixed: Fixed, table: Table, tokens: RolloutTokens,
    rows: np.ndarray, learners: dict[str, TrainState],
    timer: timing.Timer) -> RolloutTokens:
  """Computes the log-probs of other policies for rows of a wave.

  Args:
    parts, fixed: programs, and the loss, which has the temperature of all
      policies if the table has none.
    table: R rows.
    tokens: the same rows. Of their scores, the arrays that are there are
      filled, but for tokens that an earlier policy wrote.
    rows: [B] which rollouts to score; -1 for filler.
    learners: states of the players, at the step of these rows.
    timer: gets the FLOPs of these passes.

  Returns:
    The rollouts with the scores of these rows, each at the home of its row. The
    likeliest tokens are left out if the normalisers were all that they are for.
  """
  processes = parts.processes
  plain = tokens.replace(top_ids=None, top_logprobs=None)
  models = scoring(tokens.columns, learners, fixed.anchors)
  scored = plain if tokens.z is not None else tokens
  if not models or (rows < 0).all():
    return scored
  # The shards have as many places as rows, so that no row leaves its home.
  placed = processes.place(rows, table.shard)
  mine = placed[processes.positions(len(rows))]
  real, t = mine >= 0, np.arange(tokens.response.shape[1])
  planned = rows_lib.plan(parts, table, placed, placed >= 0)
  which = rows[rows >= 0]
  timer.note('score', flops.of_scores([
      parts.programs.players[name].model for params in models.values()
      for name in params], table.prompt_length[which], table.length[which]))
  for name, params in models.items():
    # Only this call needs top-k lists, the largest arrays of a batch.
    needs_top = name == 'old_logprobs' and tokens.z is not None
    kept = parts.stages.needs.scored if needs_top else ('experts',)
    batch = processes.shard_rows(rows_lib.learner_batch(
        tokens.only(kept), mine, np.zeros(len(mine)),
        np.ones(len(mine), bool),
        temperature=table.at(mine).temperature), len(rows))
    scores = processes.fetch_rows(parts.programs.learner.score(
        params, batch, planned, fixed.loss, fixed.frozen[POLICY]))
    # Behind the log-probs of the pass are scores of the players that learn.
    fields = name, *scores._fields[1:] * (name == 'old_logprobs')
    for field, values in zip(fields, scores):
      if values is not None and field in tokens.columns:
        column = getattr(scored, field).copy()
        column[mine[real]] = values[real] if table.carried is None else (
            np.where(t >= table.carried[mine[real], None], values[real],
                     column[mine[real]]))
        scored = scored.replace(**{field: column})
  return scored


def of_wave(
    wave: rows_lib.Wave, in_flight: Sequence[lag.InFlight],
    tokens: RolloutTokens) -> rows_lib.Wave:
  """Returns a step's wave with the old log-probs that were computed.

  Where responses are carried over, the table has other rows, and it is as it
  was.

  Args:
    wave: of the step.
    in_flight: after it. With a lag, it is the last one of these.
    tokens: of the table's rows. Without a lag, it is the end of these.
  """
  if wave.carried:
    return wave
  count = len(wave.rows.table.group)
  old = (in_flight[-1].rows.tokens if in_flight else tokens).old_logprobs
  if old is not None:
    old = old[:count] if in_flight else old[len(old) - count:]
  return wave._replace(rows=wave.rows._replace(
      tokens=wave.rows.tokens.replace(old_logprobs=old)))
