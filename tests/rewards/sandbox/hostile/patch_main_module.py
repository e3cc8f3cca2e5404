# what: replaces __main__ by an object that has every name and says yes
# want: fail
# unsafe: stopped
import sys
from unittest import mock

sys.modules['__main__'] = mock.MagicMock(name='add')


def add(a, b):
  return None
