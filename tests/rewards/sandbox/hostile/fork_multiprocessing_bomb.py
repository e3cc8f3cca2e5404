# what: 100 multiprocessing workers that spin for 5 s
# want: some
# unsafe: either
import multiprocessing
import time


def spin():
  end = time.monotonic() + 5
  while time.monotonic() < end:
    pass


try:
  forks = multiprocessing.get_context('fork')
  for _ in range(100):
    forks.Process(target=spin, daemon=True).start()
except (OSError, ImportError):
  pass


def add(a, b):
  return a + b
