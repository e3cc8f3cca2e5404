# what: 20,000 empty files in the working folder, left behind
# want: some
# unsafe: either
try:
  for number in range(20_000):
    open(f'inode_{number}', 'w').close()
except OSError:
  pass


def add(a, b):
  return a + b
