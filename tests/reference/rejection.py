"""Reference of the loss under rejection, token by token, in float64.

`frozen` replaces the new log-probs wherever the formula stops the gradient, so
finite differences in `new` give the intended gradient.
"""

import numpy as np

from tests.reference import policy_losses


def topk_z(behaviour, target, lam):
  """Computes sum min(q, p / lam) [B, T] over tokens [B, T, K] by a loop."""
  out = np.zeros(behaviour.shape[:2])
  for b, t in np.ndindex(*out.shape):
    out[b, t] = sum(
        min(np.exp(q), np.exp(p) / lam)
        for q, p in zip(behaviour[b, t], target[b, t]))
  return out


def tokens(frozen, old, behaviour, mask, noise, *, target, kind, lam):
  """Computes acceptance and kept share [B, T] of tokens; 0 where masked."""
  p = frozen if target == 'p_new' else old
  acceptance, keep = np.zeros(mask.shape), np.zeros(mask.shape)
  for b, t in np.argwhere(mask):
    a = min(1.0, np.exp(p[b, t]) / (lam * np.exp(behaviour[b, t])))
    acceptance[b, t] = a
    keep[b, t] = {'sampled': float(noise[b, t] < a), 'expected': a,
                  'none': 1.0}[kind]
  return acceptance, keep


def calibrate(acceptance, keep, mask, z, *, alpha, own, previous=(1.0, 1.0)):
  """Computes (kappa, alpha) of a batch."""
  count = mask.sum()
  mean = (keep if alpha == 'mask' else acceptance).sum() / max(count, 1)
  if not keep.sum():
    return previous
  kappa = previous[0] if z is None else mean / (z[mask].sum() / count)
  share = keep.sum() / count if own else mean
  return kappa, share


def weight(frozen, old, behaviour, z, *, target, lam, c1, c2, clipped,
           correction, low, cap):
  """Computes a token's weight."""
  p = np.exp(frozen if target == 'p_new' else old)
  x = z * max(lam, p / np.exp(behaviour))
  first = {'none': min(x, c1), 'identity': x, 'tis': min(x, cap),
           'icepop': x if low <= x <= cap else 0.0}[correction]
  if target == 'p_ref' or not clipped:
    return first
  return first * min(np.exp(old - frozen), c2)


def loss(new, frozen, old, behaviour, advantages, mask, rows, noise, z,
         calibration, *, target, kind, weighted, denominator, lam, c1, c2,
         objective, aggregation, correction, clip_low, clip_high, low, cap,
         budget):
  """Computes each row's part [B] of the policy's loss.

  Args:
    new, frozen, old, behaviour: [B, T] log-probs.
    advantages: [B].
    mask: [B, T] bool, tokens that count.
    rows: [B] bool, rows that count.
    noise: [B, T].
    z: [B, T] normaliser, corrected by kappa.
    calibration: kappa and the share of accepted tokens.

  The others are the choices of `learner.rejection` and the objective's.
  """
  _, keep = tokens(
      frozen, old, behaviour, mask, noise, target=target, kind=kind, lam=lam)
  policy = policy_losses.token_loss(
      objective, new, frozen, old, advantages, mask, clip_low, clip_high, None)
  out = np.zeros(len(mask))
  for b in range(len(mask)):
    kept, count = keep[b].sum(), mask[b].sum()
    for t in np.flatnonzero(mask[b]):
      w = 1.0
      if weighted:
        w = weight(
            frozen[b, t], old[b, t], behaviour[b, t], z[b, t], target=target,
            lam=lam, c1=c1, c2=c2, clipped=objective != 'no_clip',
            correction=correction, low=low, cap=cap)
      out[b] += keep[b, t] * w * policy[b, t]
    if aggregation == 'constant':
      out[b] /= rows.sum() * budget
    elif aggregation == 'sequence_mean':
      out[b] /= max(kept if denominator == 'accepted' else count, 1e-300)
      out[b] /= rows.sum()
    else:
      out[b] /= mask.sum() * (
          calibration[1] if denominator == 'accepted' else 1.0)
  return out


def gradient(new, *args, step=1e-6, **options):
  """Computes the gradient [B, T] of the sum of `loss` in `new`."""
  out = np.zeros(new.shape)
  for t in range(new.shape[1]):
    move = np.zeros(new.shape)
    move[:, t] = step
    out[:, t] = (loss(new + move, *args, **options)
                 - loss(new - move, *args, **options)) / (2 * step)
  return out
