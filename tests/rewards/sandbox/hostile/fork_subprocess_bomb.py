# what: 200 sleeping subprocesses through the shell
# want: some
# unsafe: either
import subprocess

for _ in range(200):
  try:
    subprocess.Popen(['/bin/sh', '-c', 'sleep 15'])
  except OSError:
    break


def add(a, b):
  return a + b
