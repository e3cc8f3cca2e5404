# what: a list that grows to 4 GB
# want: fail
# kind: memory
# unsafe: stopped


def add(a, b):
  rows = []
  for _ in range(4096):
    rows.append([0] * 131_072)
  return None
