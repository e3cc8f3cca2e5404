"""Dynamic sampling: train only on groups whose rewards differ.

A group whose rewards are all equal has no signal under an advantage relative to
the group. DAPO (Yu et al., 2025, arXiv:2503.14476, section 3.2, Eq. 11) drops
it and samples other prompts until the batch is full. Here the next waves are
the refill: a wave that does not complete a batch makes no update, and surplus
groups wait for the next batch, unless `max_rounds` drops them, as DAPO does.
Those that wait were written by an older policy, so their old log-probs are
kept.
"""

from typing import Annotated

import numpy as np

from jaxrl_llm.curriculum import groups
from jaxrl_llm.types import Curriculum, RunSizes, Table


def differ(table: Table, rows: np.ndarray) -> np.ndarray:
  """Returns [P] bool, whether the rewards in rows [P, n] differ; -1 is none."""
  rewards = table.reward[rows]
  least = np.min(rewards, 1, where=rows >= 0, initial=np.inf)
  most = np.max(rewards, 1, where=rows >= 0, initial=-np.inf)
  return most > least


def create(
    sizes: RunSizes, *,
    max_rounds: Annotated[int | None, '[1, inf)'] = None) -> Curriculum:
  """Makes the curriculum; rewards are without penalties.

  Args:
    sizes: numbers of problems, groups and samples, and lengths.
    max_rounds: most batches trained on in a step; the groups beyond them are
      dropped, as in DAPO (none: all that are full, and the rest waits).
  """
  return groups.make(sizes, differ, always=False, max_rounds=max_rounds)
