"""Reference vocabulary statistics from dense logits, in float64."""

import numpy as np


def token_stats(hidden, unembed, targets, temperature, softcap, top_k, ids):
  """Returns (logprobs, entropy, top_ids, top_logprobs, id_logprobs).

  Shapes as in `ops.token_stats`, with one leading axis; ids are required.
  """
  logits = np.float64(hidden) @ np.float64(unembed).T
  if softcap is not None:
    logits = softcap * np.tanh(logits / softcap)
  logits /= temperature
  rows = []
  for z, target, chosen in zip(logits, targets, ids):
    p = np.exp(z) / np.exp(z).sum()
    order = np.argsort(-p, kind='stable')[:top_k]
    rows.append((np.log(p[target]), -(p * np.log(p)).sum(), order,
                 np.log(p[order]), np.log(p[chosen])))
  return tuple(np.stack(column) for column in zip(*rows))
