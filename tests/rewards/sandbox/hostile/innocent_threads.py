# what: adds in a pool of threads
# want: pass
# kind: correct
# unsafe: stopped
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(4)


def add(a, b):
  with ThreadPoolExecutor(4) as inner:
    return list(inner.map(lambda pair: pair[0] + pair[1], [(a, b)] * 8))[3]
