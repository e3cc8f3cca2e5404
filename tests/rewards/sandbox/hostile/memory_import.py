# what: 4 GB at import, touched
# want: fail
# kind: memory
# unsafe: stopped
blocks = []
for _ in range(64):
  blocks.append(b'm' * (64 << 20))


def add(a, b):
  return None
