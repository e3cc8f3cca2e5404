# what: runs bytecode that is no program
# want: fail
# unsafe: stopped


def add(a, b):
  pass


add.__code__ = add.__code__.replace(co_code=b'\x64\xff' * 8, co_consts=())
