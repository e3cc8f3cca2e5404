# what: connects what the judge writes with what it reads
# want: fail
# unsafe: stopped
import os
import threading


def echo(source, target):
  try:
    while block := os.read(source, 65536):
      os.write(target, block)
  except OSError:
    pass


for source in range(3, 10):
  for target in range(3, 10):
    threading.Thread(target=echo, args=(source, target), daemon=True).start()


def add(a, b):
  return None
