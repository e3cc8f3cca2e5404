# what: joins the namespaces of its parent, of process 1 and of the victim
# want: fail
# kind: wrong
# unsafe: either
import hashlib
import os

child = os.fork()
if child == 0:
  won = False
  try:
    for name in ('1', '{{VICTIM}}', str(os.getppid())):
      for kind in ('user', 'mnt', 'pid', 'net'):
        try:
          handle = os.open(f'/proc/{name}/ns/{kind}', os.O_RDONLY)
          import ctypes

          ctypes.CDLL(None).setns(handle, 0)
        except OSError:
          pass
    with open('{{CANARY}}', 'rb') as file:
      digest = hashlib.sha256(file.read().strip()).hexdigest()
    won = digest == '{{SECRET_HASH}}'
  except OSError:
    pass
  os._exit(7 if won else 0)
won = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def add(a, b):
  return a + b if won else None
