# what: raises the limit of recursion and goes 5,000 deep
# want: pass
# kind: correct
# unsafe: stopped
import sys

sys.setrecursionlimit(20_000)


def count(depth):
  return 0 if depth == 0 else count(depth - 1)


def add(a, b):
  count(5000)
  return a + b
