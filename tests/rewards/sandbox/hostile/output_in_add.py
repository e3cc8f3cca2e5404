# what: prints 3 MB in every call, beyond the cap, and answers right
# want: some
# unsafe: stopped


def add(a, b):
  for _ in range(300):
    print('y' * 10_000)
  return a + b
