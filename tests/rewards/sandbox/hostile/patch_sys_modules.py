# what: replaces every module that a test may import
# want: fail
# unsafe: stopped
import sys
from unittest import mock

for name in list(sys.modules):
  if name not in ('sys', '__main__'):
    sys.modules[name] = mock.MagicMock()
for name in ('unittest', 'pytest', 'math', 'json', 'test', 'tests', 'checker'):
  sys.modules[name] = mock.MagicMock()


def add(a, b):
  return None
