# what: turns warnings to errors and forbids all by an audit hook
# want: some
# unsafe: stopped
import sys
import warnings

warnings.simplefilter('error')
seen = []


def hook(event, arguments):
  if event in ('compile', 'exec', 'open', 'os.fork', 'import'):
    seen.append(event)
    raise RuntimeError('not now')


sys.addaudithook(hook)


def add(a, b):
  return a + b
