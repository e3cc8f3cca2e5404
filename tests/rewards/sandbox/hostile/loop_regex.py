# what: a regular expression that backtracks for minutes in C
# want: fail
# kind: timeout
# unsafe: stopped
import re


def add(a, b):
  re.match(r'(a+)+$', 'a' * 33 + 'b')
  return a + b
