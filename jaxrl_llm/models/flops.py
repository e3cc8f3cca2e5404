"""Model FLOPs: the arithmetic that a model's tokens need.

They count matmuls with the parameters, attention over visible tokens, and
logits where they are needed. They leave out norms, softmax, RoPE, padding and
recomputation (rematerialisation), so they are a fair basis to compare
implementations. In an update a prompt counts with each of its responses, also
where it is computed once for all of them.
"""

import numpy as np

from jaxrl_llm.models.config import ModelConfig


def forward(
    cfg: ModelConfig, length: np.ndarray,
    predicted: np.ndarray | int | None = None) -> float:
  """Returns the FLOPs of one forward pass over rows.

  This is 2 per matmul parameter and token, of experts only for those that the
  token goes through, plus 4 * heads * head_dim per layer
  and pair of a token and a token that it attends to.

  Args:
    cfg: the model.
    length: [B] tokens of each row.
    predicted: [B] or a number, tokens of each row whose logits are computed;
      None means all of them.
  """
  length = np.asarray(length, np.float64)
  predicted = length if predicted is None else np.asarray(predicted, float)
  predicted = np.broadcast_to(predicted, length.shape)
  return of(cfg, length.sum(), pairs(cfg, length).sum(), predicted.sum())


def of(
    cfg: ModelConfig, tokens: float, pairs: float, predicted: float) -> float:
  """Returns the FLOPs of a forward pass from its totals.

  Args:
    cfg: the model.
    tokens: that go through the layers.
    pairs: of a token and a token that it attends to, over all layers.
    predicted: tokens whose logits are computed, or a reward model's scores.
  """
  d, h = cfg.width, cfg.heads * cfg.head_dim
  layer = 2 * d * h + 2 * d * cfg.kv_heads * cfg.head_dim
  mlps = cfg.mlps(cfg.experts_per_token)
  head = 1 if cfg.scores else cfg.vocab_size
  return float(2.0 * (layer * cfg.layers + mlps) * tokens
               + 4.0 * h * pairs
               + 2.0 * head * d * predicted)


def pairs(cfg: ModelConfig, length: np.ndarray) -> np.ndarray:
  """Returns the visible pairs of rows over all layers: sum_i min(i, window).
  """
  total = 0.0
  for window in cfg.layer_windows():
    short = np.minimum(length, window)
    total += short * (short + 1) / 2 + (length - short) * window
  return total


def update(
    cfg: ModelConfig, prompt: np.ndarray, response: np.ndarray,
    frozen: bool = False) -> float:
  """Returns the FLOPs of an update: a forward pass, and twice that backward.

  Args:
    cfg: the model.
    prompt: [B] prompt tokens of each row.
    response: [B] response tokens; 0 for a filler row.
    frozen: True with LoRA, where the frozen matrices get no gradient. This
      halves the backward pass. The small cost of the adapters is left out.
  """
  real = np.asarray(response) > 0
  return (2.0 if frozen else 3.0) * forward(
      cfg, np.where(real, prompt + response, 0), response)


def sample(
    cfg: ModelConfig, prompts: np.ndarray, prompt: np.ndarray,
    response: np.ndarray) -> float:
  """Returns the FLOPs of sampling: each distinct prompt once, then decoding.

  Args:
    cfg: the model.
    prompts: [P] tokens of the distinct prompts.
    prompt: [R] prompt tokens of each request.
    response: [R] response tokens of each request; 0 if it was not served.
  """
  whole = np.asarray(prompt) + np.asarray(response)
  return (forward(cfg, prompts, 0) + forward(cfg, whole, response)
          - forward(cfg, prompt, 0))
