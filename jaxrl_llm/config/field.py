"""Form of a field in the tables of fields."""

from typing import Any, NamedTuple

# Values of `Field.affects`.
WEIGHTS = 'weights'  # What RL learns: fixed for as long as a run goes on.
SFT = 'sft'  # What supervised fine-tuning learns.
ROUNDING = 'rounding'  # The last bits of that, by the order of sums.
EVALUATION = 'evaluation'  # Responses of an evaluation, and their verdicts.
AFFECTS = (WEIGHTS, SFT, ROUNDING, EVALUATION)


class Field(NamedTuple):
  """One field.

  Attributes:
    name: dotted, as on the command line after `--config.`.
    default: the value in `config.base()`.
    meaning: one line, with the unit.
    range: interval that numbers (or each number of a tuple) must lie in, such
      as '(0, 1]'; '' for any.
    kind: type of the value, where the default does not tell: `float | None`
      or `tuple[int, ...]`.
    choices: the known values; () for any. A field of kind `own_code.Name` also
      takes a module of the user's.
    affects: what another value changes, of AFFECTS; () is nothing that lasts:
      where the run writes, how often, on which devices.
    chosen_by: field that chooses the plug of which this is a hyperparameter, or
      ''.
  """
  name: str
  default: Any
  meaning: str
  range: str = ''
  kind: Any = None
  choices: tuple[str, ...] = ()
  affects: tuple[str, ...] = (WEIGHTS,)
  chosen_by: str = ''


# Ranges of whole numbers.
SOME, ANY = '[1, inf)', '[0, inf)'
