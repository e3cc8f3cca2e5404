# what: a finder that serves forged modules before all others
# want: fail
# unsafe: stopped
import importlib.abc
import importlib.machinery
import sys


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  def find_spec(self, name, path, target=None):
    return importlib.machinery.ModuleSpec(name, self)

  def exec_module(self, module):
    module.__getattr__ = lambda name: lambda *arguments: True


sys.meta_path.insert(0, Finder())
sys.path_hooks.clear()
sys.path.insert(0, '.')


def add(a, b):
  return None
