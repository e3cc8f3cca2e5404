# what: calls what it finds by inspect in the callers with a verdict
# want: fail
# unsafe: stopped
import inspect


def add(a, b):
  for info in inspect.stack():
    for name, value in list(info.frame.f_globals.items()):
      if callable(value) and any(
        word in name.lower() for word in ('reply', 'send', 'write', 'report')
      ):
        for arguments in (('pass',), (True,), (1, {'verdict': 'correct'})):
          try:
            value(*arguments)
          except BaseException:
            pass
  return None
