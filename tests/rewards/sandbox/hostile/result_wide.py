# what: a list of 5 million numbers, and an exponential one of shared parts
# want: fail
# unsafe: stopped


def add(a, b):
  if a == 1:
    return list(range(5_000_000))
  shared = [a]
  for _ in range(40):
    shared = [shared, shared]
  return shared
