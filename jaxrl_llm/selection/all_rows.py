"""The default selection: every valid row of the batch, once."""

import numpy as np

from jaxrl_llm.types import RunSizes, Selection


def create(sizes: RunSizes) -> Selection:
  """Makes the selection; rows keep their places in the batch."""
  return Selection(
      init=lambda key: (),
      feedback=lambda state, probe: state,
      select=lambda state, table, rows, key: (state, rows.reshape(-1)),
      holds=lambda state, table: np.zeros(len(table.group), bool),
      capacity=0, rows=sizes.batch * sizes.samples, stale=False)
