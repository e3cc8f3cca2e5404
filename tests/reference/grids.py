"""Slow, obvious twins of rewards/grids.py and of tasks/arc_mini.py.

They index cells one by one, with NumPy arrays where a library has the rule.
"""

import numpy as np


def score(text, answer):
  """Returns verdict and share of right cells of a response that is one grid."""
  rows = [line.split() if ' ' in line.strip() else list(line.strip())
          for line in text.strip('\n').split('\n')]
  if rows == [[]]:
    return 'no_grid', 0.0
  for row in rows:
    for cell in row:
      if cell not in list('0123456789'):
        return 'wrong_colour', 0.0
  for row in rows:
    if len(row) != len(rows[0]):
      return 'ragged', 0.0
  if len(rows) != len(answer) or len(rows[0]) != len(answer[0]):
    return 'wrong_shape', 0.0
  right = 0
  for y in range(len(answer)):
    for x in range(len(answer[0])):
      if int(rows[y][x]) == answer[y][x]:
        right += 1
  share = right / (len(answer) * len(answer[0]))
  return ('correct' if share == 1 else 'wrong'), share


def fits(kind, before, after):
  """Returns whether a rule of a family turns one grid into the other."""
  a, b = np.array(before), np.array(after)
  h, w = a.shape
  if kind == 'count':
    coloured = np.sort(a[a > 0])
    return np.array_equal(b, [coloured] if len(coloured) else [[0]])
  if kind == 'rotate':
    return np.array_equal(b, np.rot90(a, -1))
  if kind == 'transpose':
    return np.array_equal(b, a.T)
  if b.shape != a.shape:
    return False
  if kind in ('half_turn', 'flip', 'flop'):
    twin = {'half_turn': np.rot90(a, 2), 'flip': np.fliplr(a),
            'flop': np.flipud(a)}[kind]
    return np.array_equal(b, twin)
  if kind == 'exchange':
    changed = {(int(x), int(y)) for x, y in zip(a.flat, b.flat) if x != y}
    kept = {int(x) for x, y in zip(a.flat, b.flat) if x == y}
    colours = {c for pair in changed for c in pair}
    return 0 not in colours and len(colours) <= 2 and not kept & colours
  if kind == 'fill':
    new = {int(c) for c in b[a == 0]}
    return np.array_equal(a[a > 0], b[a > 0]) and len(new) <= 1 and 0 not in new
  if kind == 'gravity':
    for x in range(w):
      coloured = [c for c in a[:, x] if c]
      if [*b[:, x]] != [0] * (h - len(coloured)) + coloured:
        return False
    return True
  if kind == 'border':
    ring = np.ones((h, w), bool)
    ring[1:-1, 1:-1] = False
    return len({*b[ring].tolist()}) == 1 and b[0, 0] > 0 and np.array_equal(
        a[~ring], b[~ring])
  if kind == 'mirror':
    half = (w + 1) // 2
    return np.array_equal(b, np.fliplr(b)) and np.array_equal(
        a[:, :half], b[:, :half])
  if kind == 'outline':
    near = np.zeros((h, w), bool)
    for y in range(h):
      for x in range(w):
        for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0)):
          if 0 <= y + dy < h and 0 <= x + dx < w and a[y + dy, x + dx]:
            near[y, x] = True
    near &= a == 0
    new = {int(c) for c in b[near]}
    return np.array_equal(a[~near], b[~near]) and len(new) <= 1 and (
        0 not in new)
  raise ValueError(kind)
