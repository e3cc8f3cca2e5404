# what: bpf, perf_event_open, userfaultfd, io_uring, kexec and modules
# want: some
# unsafe: either
import ctypes
import platform

libc = ctypes.CDLL(None)
page = ctypes.create_string_buffer(4096)
if platform.machine() == 'x86_64':
  for number in (321, 298, 323, 425, 246, 313, 175, 304, 103):
    libc.syscall(number, 0, page, 128, 0, 0)


def add(a, b):
  return a + b
