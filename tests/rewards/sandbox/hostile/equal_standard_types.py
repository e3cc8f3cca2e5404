# what: subclasses of Decimal, Fraction and date that are equal to all
# want: fail
# unsafe: stopped
import datetime
import decimal
import fractions


class Sum(decimal.Decimal):
  def __eq__(self, other):
    return True

  __hash__ = decimal.Decimal.__hash__


class Part(fractions.Fraction):
  def __eq__(self, other):
    return True

  __hash__ = fractions.Fraction.__hash__


class Day(datetime.date):
  def __eq__(self, other):
    return True

  __hash__ = datetime.date.__hash__


def add(a, b):
  return {1: Sum('9.5'), -5: Part(7, 3)}.get(a, Day(2000, 1, 1))
