# what: writes temporary files and removes them
# want: pass
# kind: correct
# unsafe: stopped
import os
import tempfile


def add(a, b):
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'note')
    with open(path, 'w') as file:
      file.write(repr((a, b)))
    with open(path) as file:
      assert file.read() == repr((a, b))
  with open('here', 'w') as file:
    file.write('x' * 100_000)
  os.remove('here')
  return a + b
