# what: threads that are no daemons stay alive after right answers
# want: some
# unsafe: stopped
import threading
import time

for _ in range(8):
  threading.Thread(target=time.sleep, args=(40,)).start()


def add(a, b):
  return a + b
