"""Tolerances derived from the arithmetic of a test, not from one machine.

Another CPU, library or mesh adds the terms of a sum in another order, and uses
other approximations of exp, log and tanh. Both cause rounding errors, and their
number follows from the sizes in a test.
"""

import math
from typing import Any

import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.models.config import ModelConfig

# float32: distance from 1 to the next number. The error of a rounding is at
# most half of it, so two programs differ by at most EPS.
EPS = 2.0 ** -23
# The same for bfloat16, which keeps 8 bits.
EPS_16 = 2.0 ** -7
# Number of roundings that exp, log, expm1 or tanh counts as: the error of
# libraries is about 2 units in the last place.
FUNCTION = 4


def rounding(
    *counts: float, magnitude: float = 1.0, eps: float = EPS) -> float:
  """Returns a bound on the difference between two programs for one result.

  The error of a sum of n terms, in any order, is at most n eps / 2 times the
  sum of the terms' magnitudes (Higham, Accuracy and Stability of Numerical
  Algorithms, section 4.2). So two orders differ by at most n eps times this
  sum. Errors of successive sums add up; an operation on single numbers counts
  as 1, or as FUNCTION.

  If the terms have random signs, the largest result can serve as the magnitude.
  The sum of the terms' magnitudes is about n ** .5 times larger, but then the
  roundings have random signs too, and n of them add up to only n ** .5.

  Args:
    *counts: number of terms of each sum, and of single operations, that a
      result depends on.
    magnitude: sum of the magnitudes of the terms; 1 for a relative error.
    eps: precision of the dtype.
  """
  return sum(counts) * eps * magnitude


def typical(
    *counts: float, magnitude: float = 1.0, eps: float = EPS,
    safety: float = 4) -> float:
  """Returns a tighter tolerance, where `rounding` is too wide to find faults.

  n roundings of random sign add up to about n ** .5 of one. This is not a
  bound, so it is multiplied by a safety factor.

  Args:
    *counts: see `rounding`.
    magnitude: see `rounding`.
    eps: see `rounding`.
    safety: the safety factor.
  """
  return safety * math.sqrt(sum(counts)) * eps * magnitude


def decoder(cfg: ModelConfig, length: int) -> int:
  """Returns the number of roundings between tokens and their logits.

  Each layer has the sums of two norms; of the products with q, k or v, with o,
  with gate or up, and with down; of the attention scores, the softmax and the
  mean of values; and about 16 single operations: RoPE, exp, the activation.
  After the layers there are a norm and the product with the unembedding.

  Args:
    cfg: the model.
    length: tokens of the longest row.
  """
  layer = (4 * cfg.width + cfg.heads * cfg.head_dim + cfg.mlp_width
           + cfg.head_dim + 2 * length + 16)
  return cfg.layers * layer + 2 * cfg.width


def policy_gap(config: Any, logprobs: np.ndarray) -> float:
  """Returns the tolerance between log-probs of learner and sampler.

  Args:
    config: config of the run.
    logprobs: log-probs of the tokens that count.
  """
  model = config_lib.model_config(config)
  return typical(
      decoder(model, config.max_prompt + config.max_response),
      model.vocab_size, magnitude=max(1, np.abs(logprobs).max()))
