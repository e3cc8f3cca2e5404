# what: parses JSON nested 200,000 deep
# want: fail
# unsafe: stopped
import json
import sys

sys.setrecursionlimit(10**7)


def add(a, b):
  return json.loads('[' * 200_000 + ']' * 200_000)
