"""Share of an update's arithmetic that is no padding.

Metrics:
  update/real_flops [share]: arithmetic of the lists that is no padding
"""

import numpy as np

from jaxrl_llm.learner.packing import head_columns, Plan
from jaxrl_llm.models import flops
from jaxrl_llm.models.config import ModelConfig


def real_flops(
    model: ModelConfig, plan: Plan, before: np.ndarray, length: np.ndarray, *,
    max_prompt: int, max_response: int) -> float:
  """Returns the share of real tokens in the FLOPs of all computed ones.

  Real are the tokens in lists, the pairs of those that see each other, and the
  logits of responses. Computed are whole lists, the scores of their chunks, or
  of their rows with the columns behind them, and the logits of all columns
  for responses.

  Args:
    model: the architecture.
    plan: in NumPy.
    before: [B] tokens of each prompt without its last.
    length: [B] tokens of each response; 0 for a row without a place.
    max_prompt: L.
    max_response: T.
  """
  sizes, lists = plan.sizes, int(plan.count) * plan.order.shape[0]
  if not lists:
    return 0.0
  real = flops.sample(
      model, before[plan.order[plan.owner]], np.where(length, before, 0),
      length)
  if sizes.chunk:
    pairs = model.layers * lists * sizes.columns * (
        sizes.reach + sizes.back + sizes.chunk)
  else:
    firm = sizes.places if sizes.firm is None else sizes.firm
    of_row = lambda columns: float(flops.pairs(model, np.array(columns)))
    further = (sizes.places - firm) * np.sum(plan.rows > firm)
    pairs = lists * firm * of_row(max_prompt + max_response) + (
        further * of_row(max_prompt + sizes.short))
  return real / flops.of(
      model, lists * sizes.columns, pairs,
      lists * head_columns(sizes, max_response))
