# what: a thread keeps the interpreter in a long C call, answers stay out
# want: some
# unsafe: stopped
import re
import sys
import threading

sys.setswitchinterval(1000)


def hog():
  re.match(r'(a+)+$', 'a' * 33 + 'b')


threading.Thread(target=hog, daemon=True).start()


def add(a, b):
  return a + b
