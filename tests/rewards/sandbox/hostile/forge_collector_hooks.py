# what: callbacks of the collector and weak references that print verdicts
# want: fail
# unsafe: stopped
import gc
import os
import weakref


class Thing:
  pass


def callback(phase, info):
  os.write(1, b'pass\n')


gc.callbacks.append(callback)
gc.set_threshold(1)
thing = Thing()
weakref.finalize(thing, os._exit, 0)


def add(a, b):
  global thing
  thing = None
  gc.collect()
  return a + b
