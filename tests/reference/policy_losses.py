"""Reference objectives, corrections, KL and aggregation, token by token.

All in float64. `frozen` replaces the new log-probs wherever the formula stops
the gradient, so finite differences in `new` give the intended gradient.
"""

import numpy as np


def token_loss(name, new, frozen, old, advantages, mask, low, high, dual):
  """Computes the loss [B, T] of objective `name`; 0 where masked."""
  out = np.zeros(new.shape)
  for b, t in np.argwhere(mask):
    a = advantages[b] if advantages.ndim == 1 else advantages[b, t]
    kept = np.flatnonzero(mask[b])
    if name == 'gspo':
      ratio = np.exp(np.mean([new[b, s] - old[b, s] for s in kept]))
    else:
      ratio = np.exp(new[b, t] - old[b, t])
    if name in ('clip', 'gspo'):
      surrogate = min(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
      if dual is not None and a < 0:
        surrogate = max(surrogate, dual * a)
    elif name == 'cispo':
      weight = np.clip(np.exp(frozen[b, t] - old[b, t]), 1 - low, 1 + high)
      surrogate = weight * a * new[b, t]
    elif name == 'sapo':
      tau = 1.0 if a > 0 else 1.05
      surrogate = 4 / tau / (1 + np.exp(-tau * (ratio - 1))) * a
    elif name == 'vespo':
      w = np.prod([np.exp(frozen[b, s] - old[b, s]) for s in kept])
      k, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
      surrogate = w ** k * np.exp(decay * (1 - w)) * a * new[b, t]
    elif name == 'gmpo':
      of = lambda s: a if advantages.ndim == 1 else advantages[b, s]
      logs = [new[b, s] - old[b, s] for s in kept]
      logs = [min(x, .4) if of(s) > 0 else max(x, -.4) if of(s) < 0 else x
              for s, x in zip(kept, logs)]
      surrogate = np.exp(np.mean(logs)) * a
    elif name == 'dppo':
      moved = np.exp(frozen[b, t]) - np.exp(old[b, t])
      further = a * moved > 0
      surrogate = 0.0 if further and abs(moved) > .2 else ratio * a
    else:
      surrogate = np.exp(new[b, t] - frozen[b, t]) * a
    out[b, t] = -surrogate
  return out


def correction(name, log_ratio, mask, low=0.5, cap=2.0):
  """Computes weights [B, T] of correction `name`; 1 where masked."""
  out = np.ones(log_ratio.shape)
  for b, t in np.argwhere(mask):
    x = np.exp(log_ratio[b, t])
    if name == 'identity':
      out[b, t] = x
    elif name == 'tis':
      out[b, t] = min(x, cap)
    elif name == 'icepop':
      out[b, t] = x if low <= x <= cap else 0.0
    elif name == 'sequence_tis':
      kept = np.flatnonzero(mask[b])
      out[b, t] = min(np.prod([np.exp(log_ratio[b, s]) for s in kept]), cap)
    elif name == 'geometric_mask':
      kept = np.flatnonzero(mask[b])
      mean = np.prod([np.exp(log_ratio[b, s]) for s in kept]) ** (1 / len(kept))
      out[b, t] = low <= mean <= cap
  return out


def kl(name, new, anchor):
  """Computes a per-token estimate of KL(new || anchor)."""
  ratio = np.exp(anchor - new)
  return {'k1': -np.log(ratio), 'k2': np.log(ratio) ** 2 / 2,
          'k3': ratio - 1 - np.log(ratio)}[name]


def aggregate(loss, mask, aggregation, where=None, budget=None):
  """Aggregates per-token losses to the batch's loss."""
  where = np.ones(len(mask), bool) if where is None else where
  rows = [loss[b][mask[b]] for b in range(len(mask)) if where[b]]
  if aggregation == 'sequence_mean':
    return sum(r.mean() for r in rows if r.size) / len(rows)
  if aggregation == 'token_mean':
    return sum(r.sum() for r in rows) / sum(r.size for r in rows)
  return sum(r.sum() for r in rows) / (len(rows) * budget)


def gradient(f, x, step=1e-6):
  """Returns central differences of the scalar f at x, in the shape of x."""
  out = np.zeros(x.shape)
  for i in np.ndindex(x.shape):
    up, down = x.copy(), x.copy()
    up[i] += step
    down[i] -= step
    out[i] = (f(up) - f(down)) / (2 * step)
  return out
