# what: attaches to a process outside by ptrace
# want: fail
# kind: wrong
# unsafe: either
import ctypes
import os

libc = ctypes.CDLL(None)
victim = int('{{VICTIM}}')
won = libc.ptrace(16, victim, None, None) == 0
if won:
  os.waitpid(victim, 0x40000000)
  libc.ptrace(17, victim, None, None)


def add(a, b):
  return a + b if won else None
