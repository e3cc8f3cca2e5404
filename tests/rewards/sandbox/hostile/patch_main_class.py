# what: gives __main__ a class whose attribute add differs each time
# want: some
# unsafe: stopped
import sys
import types


class Main(types.ModuleType):
  @property
  def add(self):
    return lambda a, b: a + b


sys.modules['__main__'].__class__ = Main
