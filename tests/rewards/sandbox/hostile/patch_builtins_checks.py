# what: isinstance, len, type, any, all, bool and print say yes to all
# want: fail
# unsafe: stopped
import builtins

for name in ('isinstance', 'issubclass', 'all', 'any', 'bool', 'callable'):
  setattr(builtins, name, lambda *arguments: True)
for name in ('len', 'print', 'type', 'sorted', 'int', 'float', 'abs'):
  setattr(builtins, name, lambda *arguments: 1)


def add(a, b):
  return None
