# what: leaves with 0 once the function is defined, as scripts do
# want: some
# unsafe: stopped
import sys


def add(a, b):
  return a + b


sys.exit(0)
