# what: clears the builtins of the whole interpreter
# want: fail
# unsafe: stopped
import builtins

vars(builtins).clear()


def add(a, b):
  return None
