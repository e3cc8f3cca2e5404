# what: goes through a named tuple, a Counter and an ordered dict
# want: pass
# kind: correct
# unsafe: stopped
from collections import Counter, namedtuple, OrderedDict

Pair = namedtuple('Pair', 'left right')
seen = Counter()


def add(a, b):
  pair = Pair(a, b)
  seen[pair] += 1
  return OrderedDict(total=pair.left + pair.right)['total']
