# what: reads the victim's memory by process_vm_readv and writes it back
# want: fail
# kind: wrong
# unsafe: either
import ctypes

libc = ctypes.CDLL(None)


class Span(ctypes.Structure):
  _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]


won = False
victim = int('{{VICTIM}}')
try:
  with open(f'/proc/{victim}/maps') as file:
    row = next(row for row in file if ' rw-p ' in row)
  here = ctypes.create_string_buffer(8)
  mine = Span(ctypes.addressof(here), 8)
  other = Span(int(row.split('-')[0], 16), 8)
  pair = (ctypes.byref(mine), 1, ctypes.byref(other), 1, 0)
  won = libc.process_vm_readv(victim, *pair) == 8
  won &= libc.process_vm_writev(victim, *pair) == 8
except OSError:
  pass


def add(a, b):
  return a + b if won else None
