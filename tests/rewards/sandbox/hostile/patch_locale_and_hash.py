# what: changes locale, encodings, float rounding, decimal context and zone
# want: some
# unsafe: stopped
import ctypes
import decimal
import locale
import os
import sys
import time

decimal.getcontext().prec = 1
sys.set_int_max_str_digits(640)
os.environ.update(TZ='UTC+24', PYTHONHASHSEED='0', LC_ALL='tr_TR.UTF-8')
time.tzset()
for name in ('tr_TR.UTF-8', 'de_DE.UTF-8', 'C'):
  try:
    locale.setlocale(locale.LC_ALL, name)
  except locale.Error:
    pass
ctypes.CDLL('libm.so.6').fesetround(0x400)


def add(a, b):
  return a + b
