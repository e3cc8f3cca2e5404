# what: turns on tracemalloc, faulthandler dumps and debug hooks
# want: some
# unsafe: stopped
import faulthandler
import gc
import sys
import tracemalloc

faulthandler.dump_traceback_later(0.01, repeat=True, file=sys.__stderr__)
gc.set_debug(gc.DEBUG_STATS)
tracemalloc.start(50)


def add(a, b):
  return a + b
