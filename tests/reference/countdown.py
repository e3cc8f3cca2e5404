"""Countdown by brute force: every order of the numbers, every operator."""

import itertools


def chains(numbers, target):
  """All chains through the numbers, left to right, that end at the target.

  Values stay at 0 or more, as the format has no negative numbers.
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
