# what: asks for core dumps and crashes, so that a core may fill a disk
# want: fail
# unsafe: either
import os
import resource

try:
  most = resource.RLIM_INFINITY
  resource.setrlimit(resource.RLIMIT_CORE, (most, most))
except (OSError, ValueError):
  pass


def add(a, b):
  os.abort()
