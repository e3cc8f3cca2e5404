"""Rows that are due in a step: of the wave, or of waves before it."""


from jaxrl_llm.loop import carry, lag, scores
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop.parts import Fixed, Parts
from jaxrl_llm.loop.state import RunState
from jaxrl_llm.monitoring import timing


def exchange(
    parts: Parts, state: RunState, fixed: Fixed, wave: rows_lib.Wave,
    timer: timing.Timer,
) -> tuple[tuple[lag.InFlight, ...], carry.Begun | None, lag.Due]:
  """Returns the rows that are due: those of the wave, or of waves before it.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    wave: the new wave. With a lag it is scored.

  Returns:
    The waves in flight; the groups that are begun, if responses are carried
    over; and what is due.
  """
  rows = wave.rows
  if wave.carried:
    with timer('score'):
      return (), carry.score(
          parts, fixed, wave.carried.begun, state.learners, timer), lag.Due(
              wave.carried.ask, wave.carried.rows, wave.signal,
              len(wave.carried.rows.table.group), wave.carried.first_wave)
  if not parts.stages.settings.lag:
    return (), None, lag.Due(
        wave.ask, rows, wave.signal, len(rows.table.group))
  # The policy that wrote the rows is gone when they are due, and nothing says
  # yet which of them are needed: all are scored, before it learns.
  with timer('score'):
    rows = rows._replace(tokens=scores.with_scores(
        parts, fixed, *rows, scores.masked_indices(
            rows.table.valid, parts.programs.scored_rows), state.learners,
        timer))
  with timer('batch'):
    in_flight, ask, rows = lag.exchange(
        state.in_flight, wave.ask, rows, parts.stages)
    # Its signal is computed anew: when it was sampled, earlier rows of its
    # groups may have been in flight.
    return in_flight, None, lag.Due(ask, rows, rows_lib.signal(
        parts, state.buffer.table, rows.table, ask, state.step), unscored=0)
