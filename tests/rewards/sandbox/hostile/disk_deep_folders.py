# what: 3,000 nested folders, deeper than a recursive clean-up goes
# want: some
# unsafe: either
import os

home = os.getcwd()
try:
  for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
except OSError:
  pass
os.chdir(home)


def add(a, b):
  return a + b
