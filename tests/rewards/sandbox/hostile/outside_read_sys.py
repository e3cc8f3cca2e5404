# what: reads network cards, disks and limits of groups from /sys
# want: fail
# kind: wrong
# unsafe: open
import os

won = False
for folder in ('/sys/class/net', '/sys/block', '/sys/fs/cgroup', '/sys/kernel'):
  try:
    won |= bool(os.listdir(folder))
  except OSError:
    pass


def add(a, b):
  return a + b if won else None
