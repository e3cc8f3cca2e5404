# what: the result's __del__ spins when it is dropped
# want: fail
# unsafe: stopped
import time


class Result:
  def __del__(self, clock=time.monotonic):
    end = clock() + 60
    while clock() < end:
      pass


def add(a, b):
  return Result()
