# what: takes the next requests from every descriptor while in a call
# want: fail
# unsafe: stopped
import os
import select


def add(a, b):
  for number in range(64):
    try:
      if number > 2 and select.select([number], [], [], 0.01)[0]:
        os.read(number, 65536)
    except (OSError, ValueError):
      pass
  return None
