# what: joins the victim's namespaces through a pidfd, without /proc
# want: fail
# kind: wrong
# unsafe: either
import ctypes
import os

won = False
child = os.fork()
if child == 0:
  try:
    handle = os.pidfd_open(int('{{VICTIM}}'))
    joined = ctypes.CDLL(None).setns(handle, 0x40000000)
    os._exit(7 if joined == 0 else 0)
  except OSError:
    os._exit(0)
won = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def add(a, b):
  return a + b if won else None
