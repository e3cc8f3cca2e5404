# what: defines add by __getattr__ of the module alone
# want: some
# unsafe: stopped


def __getattr__(name):
  return lambda a, b: a + b
