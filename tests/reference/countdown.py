"""Reference solver of Countdown by brute force."""

import itertools


def chains(numbers, target):
  """Returns all chains of the numbers, left to right, with the target value.

  Values stay at 0 or more, because the format has no negative numbers.
  """
  found = set()
  for order in itertools.permutations(numbers):
    for ops in itertools.product('+-*', repeat=len(order) - 1):
      value, text = order[0], str(order[0])
      for op, number in zip(ops, order[1:]):
        value = eval(f'{value}{op}{number}')  # Our own digits, nothing else.
        if value < 0:
          break
        text += f'{op}{number}={value}'
      else:
        if value == target:
          found.add(text)
  return found
