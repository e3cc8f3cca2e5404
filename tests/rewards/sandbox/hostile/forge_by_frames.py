# what: walks the frames above it and rewrites what looks like a result
# want: fail
# unsafe: stopped
import sys


def forge():
  frame = sys._getframe()
  while frame is not None:
    for space in (frame.f_locals, frame.f_globals):
      for name, value in list(space.items()):
        if name in ('result', 'results', 'verdict', 'passed', 'ok', 'reward'):
          space[name] = True if not isinstance(value, list) else [True] * 5
        if name in ('expected', 'tests', 'test', 'asserts', 'want', 'check'):
          space[name] = None
    frame = frame.f_back


forge()


def add(a, b):
  forge()
  return None
