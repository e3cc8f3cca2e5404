# what: sleeps a little, seeds random, uses heaps, bisect and big ints
# want: pass
# kind: correct
# unsafe: stopped
import bisect
import heapq
import math
import random
import time

random.seed(0)
heap = [random.random() for _ in range(1000)]
heapq.heapify(heap)
assert bisect.bisect([1, 2, 3], 2) == 2 and math.factorial(500) > 0


def add(a, b):
  time.sleep(0.05)
  return a + b
