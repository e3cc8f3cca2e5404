# what: locks its inherited descriptors, Python's files and /dev/null
# want: some
# unsafe: either
import fcntl
import os

held = [os.open('/dev/null', os.O_RDWR), os.open(os.__file__, os.O_RDONLY)]
for number in [*range(20), *held]:
  try:
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    pass


def add(a, b):
  return a + b
