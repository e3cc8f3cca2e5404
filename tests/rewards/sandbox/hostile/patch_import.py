# what: builtins.__import__ gives a module that says yes to all
# want: fail
# unsafe: stopped
import builtins
from unittest import mock

builtins.__import__ = lambda *arguments, **options: mock.MagicMock()


def add(a, b):
  return None
