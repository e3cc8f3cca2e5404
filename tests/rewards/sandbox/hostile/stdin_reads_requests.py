# what: reads all it can from inherited descriptors before the judge's calls
# want: fail
# unsafe: stopped
import os

for number in range(64):
  try:
    os.set_blocking(number, False)
    for _ in range(64):
      if not os.read(number, 65536):
        break
  except OSError:
    pass


def add(a, b):
  return None
