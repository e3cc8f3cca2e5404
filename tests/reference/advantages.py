"""Reference advantages, one sample at a time, in float64."""

import numpy as np


def _groups(rewards, where):
  """Yields (index of the group, its valid positions, their rewards)."""
  for group in np.ndindex(rewards.shape[:-1]):
    kept = np.flatnonzero(where[group])
    yield group, kept, np.float64(rewards[group][kept])


def advantages(name, rewards, where, ddof=1, eps=1e-6):
  """Computes advantage `name` of rewards [..., N]."""
  out = np.zeros(rewards.shape, np.float64)
  for group, kept, r in _groups(rewards, where):
    for i, position in enumerate(kept):
      others = np.delete(r, i)
      if name == 'reinforce':
        a = r[i]
      elif len(others) == 0:
        a = 0.0
      elif name == 'rloo':
        a = r[i] - others.mean()
      elif name in ('grpo', 'gdpo'):
        a = (r[i] - r.mean()) / (r.std(ddof=ddof) + eps)
      elif name == 'maxrl':
        a = (r[i] - r.mean()) / r.mean() if r.mean() > 0 else 0.0
      else:
        a = r[i] - r.mean()
      out[group][position] = a
  if name in ('reinforce_pp', 'gdpo'):
    out /= out[where].std(ddof=ddof) + eps
  return out
