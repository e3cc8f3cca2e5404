# what: writes to stdout after the reader may have closed it, from a thread
# want: some
# unsafe: stopped
import os
import threading
import time


def chatter():
  end = time.monotonic() + 30
  while time.monotonic() < end:
    try:
      os.write(1, b'z' * 4096)
    except OSError:
      return


threading.Thread(target=chatter, daemon=True).start()


def add(a, b):
  return a + b
