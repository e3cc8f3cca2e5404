# what: starts 5,000 threads that sleep
# want: some
# unsafe: either
import threading
import time

for _ in range(5000):
  try:
    threading.Thread(target=time.sleep, args=(15,), daemon=True).start()
  except (RuntimeError, MemoryError):
    break


def add(a, b):
  return a + b
