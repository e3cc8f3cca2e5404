# what: pickles a chain of 100,000 objects with a raised limit
# want: fail
# unsafe: stopped
import pickle
import sys

sys.setrecursionlimit(10**7)


def add(a, b):
  chain = None
  for _ in range(100_000):
    chain = [chain]
  return len(pickle.dumps(chain)) * 0 - 99
