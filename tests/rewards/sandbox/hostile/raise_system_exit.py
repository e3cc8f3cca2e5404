# what: raises SystemExit with odd codes
# want: fail
# unsafe: stopped


def add(a, b):
  raise SystemExit({'verdict': 'correct'} if a == 1 else None)
