# what: __del__ of a global spins while the interpreter shuts down
# want: some
# unsafe: stopped
import time


class Sticky:
  def __del__(self, clock=time.monotonic):
    end = clock() + 60
    while clock() < end:
      pass


sticky = Sticky()


def add(a, b):
  return a + b
