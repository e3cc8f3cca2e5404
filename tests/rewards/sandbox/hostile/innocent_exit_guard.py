# what: catches SystemExit of its own argument parser
# want: pass
# kind: correct
# unsafe: stopped
import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--left', type=int, default=1)
options, rest = parser.parse_known_args()


def add(a, b):
  try:
    raise SystemExit(3)
  except SystemExit:
    return a + b
