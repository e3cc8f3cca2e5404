# what: unittest.mock.ANY
# want: fail
# unsafe: stopped
from unittest.mock import ANY


def add(a, b):
  return ANY
