# what: Decimal, Fraction, complex, bool and enum equal to the right value
# want: some
# unsafe: stopped
import decimal
import enum
import fractions


class Text(enum.StrEnum if hasattr(enum, 'StrEnum') else str):
  pass


def add(a, b):
  if a == 1:
    return decimal.Decimal(3)
  if a == -5:
    return False
  if a == 0.5:
    return complex(0.75)
  return a + b if isinstance(a, str) else fractions.Fraction(a + b)
