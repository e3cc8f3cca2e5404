# what: right only from the second call on, if calls share a process
# want: some
# unsafe: stopped
calls = []


def add(a, b):
  calls.append(a)
  return a + b if len(calls) > 1 else None
