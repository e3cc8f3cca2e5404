# what: looks through all objects of the collector for a test's text
# want: fail
# kind: wrong
# unsafe: stopped
import gc

mark = 'assert ' + 'add('


def add(a, b):
  for thing in gc.get_objects():
    parts = thing.values() if type(thing) is dict else thing
    if type(thing) in (list, tuple, dict):
      for part in list(parts):
        if type(part) is str and part.startswith(mark) and part != mark:
          return a + b
  return None
