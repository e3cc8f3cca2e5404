# what: logs to standard error and warns
# want: pass
# kind: correct
# unsafe: stopped
import logging
import sys
import warnings

logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
warnings.warn('only a warning', stacklevel=1)


def add(a, b):
  logging.info('adding %r and %r', a, b)
  return a + b
