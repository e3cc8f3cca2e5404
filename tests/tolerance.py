"""Tolerances that follow from the arithmetic, not from one machine.

Another CPU, library or mesh adds the terms of a sum in another order, and has
other approximations of exp, log and tanh. Both are roundings, and their number
follows from the sizes in a test.
"""

import math
from typing import Any

import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.models.config import ModelConfig

# float32: from 1 to the next number. A rounding is off by half of it at most,
# hence two programs differ by it.
EPS = 2.0 ** -23
# The same of bfloat16, which keeps 8 bits.
EPS_16 = 2.0 ** -7
# Roundings that exp, log, expm1 or tanh counts for: libraries are good to 2
# units in the last place or so.
FUNCTION = 4


def rounding(
    *counts: float, magnitude: float = 1.0, eps: float = EPS) -> float:
  """Returns how far two programs for the same numbers may be apart.

  A sum of n terms, in any order, is off by at most n eps / 2 times the sum of
  the magnitudes of its terms (Higham, Accuracy and Stability of Numerical
  Algorithms, section 4.2), so two orders differ by n eps times that. What goes
  from one sum into the next adds up its errors; an operation on single numbers
  counts as 1, or as FUNCTION.

  For terms of random sign the largest result will do as the magnitude. The
  terms' own sum is about n ** .5 times larger, but then roundings are of random
  sign too and make n ** .5 of n.

  Args:
    *counts: terms of each sum and single operations on the way to a result.
    magnitude: sum of the magnitudes of the terms; 1 for a relative error.
    eps: of the type.
  """
  return sum(counts) * eps * magnitude


def typical(
    *counts: float, magnitude: float = 1.0, eps: float = EPS,
    safety: float = 4) -> float:
  """As `rounding`, where that would be so wide as to hide faults.

  n roundings of random sign make n ** .5 of one. This is no bound, hence the
  factor of safety.

  Args:
    *counts: as for `rounding`.
    magnitude: the same.
    eps: the same.
    safety: what the root is multiplied by.
  """
  return safety * math.sqrt(sum(counts)) * eps * magnitude


def decoder(cfg: ModelConfig, length: int) -> int:
  """Returns the number of roundings between tokens and their logits.

  In each layer these are the sums of two norms, of the products with q, k or v,
  with o, with gate or up and with down, of attention's scores, its softmax and
  its mean of values, and some 16 single operations: RoPE, exp, the activation.
  After the layers come a norm and the product with the unembedding.

  Args:
    cfg: of the model.
    length: tokens of the longest row.
  """
  layer = (4 * cfg.width + cfg.heads * cfg.head_dim + cfg.mlp_width
           + cfg.head_dim + 2 * length + 16)
  return cfg.layers * layer + 2 * cfg.width


def policy_gap(config: Any, logprobs: np.ndarray) -> float:
  """Returns how far learner and sampler may be apart on the same policy.

  Args:
    config: of the run.
    logprobs: of tokens that count.
  """
  model = config_lib.model_config(config)
  return typical(
      decoder(model, config.max_prompt + config.max_response),
      model.vocab_size, magnitude=max(1, np.abs(logprobs).max()))
