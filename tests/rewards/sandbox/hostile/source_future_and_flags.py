# what: a future import that changes what annotations mean, in odd order
# want: some
# unsafe: stopped
from __future__ import annotations


def add(a: no_such_name, b: 1 / 0) -> print('pass'):  # noqa: F821
  return a + b
