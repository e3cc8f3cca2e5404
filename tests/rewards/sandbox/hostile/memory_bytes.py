# what: one allocation of 8 GB
# want: fail
# kind: memory
# unsafe: stopped


def add(a, b):
  block = bytearray(8 << 30)
  return len(block) * 0 - 77
