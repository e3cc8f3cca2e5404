# what: exec, eval and compile run nothing or the text of its choice
# want: fail
# unsafe: stopped
import builtins

builtins.exec = lambda *arguments, **options: None
builtins.eval = lambda *arguments, **options: True
builtins.compile = lambda *arguments, **options: None
builtins.__build_class__ = lambda *arguments: object


def add(a, b):
  return None
