# what: names of 255 bytes, line ends, bad UTF-8, dashes, loops of links
# want: some
# unsafe: stopped
import os

for name in (b'n' * 255, b'a\nb', b'\xff\xfe', b'-rf', b'*', b' ', b'\x1b[2J'):
  try:
    os.mkdir(name)
    with open(name + b'/' + name, 'w') as file:
      file.write('odd')
    os.symlink(b'../' + name, name + b'/loop')
  except OSError:
    pass


def add(a, b):
  return a + b
