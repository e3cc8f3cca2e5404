# what: takes inotify, eventfd, epoll, timers and message queues in plenty
# want: some
# unsafe: stopped
import ctypes
import select

libc = ctypes.CDLL(None)
held = []
for number in range(3000):
  libc.inotify_init1(0)
  libc.eventfd(0, 0)
  libc.timerfd_create(0, 0)
  libc.semget(number + 1, 1, 0o1600)
  libc.msgget(number + 1, 0o1600)
  try:
    held.append(select.epoll())
  except OSError:
    pass


def add(a, b):
  return a + b
