# what: nohup and setsid leave a shell behind
# want: some
# unsafe: open
import subprocess

try:
  subprocess.Popen(
    'nohup setsid sh -c "sleep 3; echo x > {{DROP}}/nohup; sleep 20" '
    '>/dev/null 2>&1 &',
    shell=True,
  )
except OSError:
  pass


def add(a, b):
  return a + b
