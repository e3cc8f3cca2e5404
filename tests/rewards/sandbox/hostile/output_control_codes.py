# what: terminal escapes, bidi marks and bad UTF-8 in output and errors
# want: fail
# kind: exception
# unsafe: stopped
import os

os.write(1, b'\x1b]0;pwned\x07\x1b[2J\xff\xfe\x00\r\n\x9b31m')
os.write(2, b'\xe2\x80\xae\x1b[?1049h\x00\xff')


def add(a, b):
  raise ValueError('\x1b[2J\ud800\u202e\x00pass')
