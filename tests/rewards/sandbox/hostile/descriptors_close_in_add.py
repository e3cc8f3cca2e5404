# what: closes every descriptor in the call and answers
# want: some
# unsafe: stopped
import os


def add(a, b):
  os.closerange(0, 4096)
  return a + b
