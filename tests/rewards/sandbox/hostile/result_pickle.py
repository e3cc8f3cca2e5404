# what: results whose __reduce__ and __getstate__ run code where loaded
# want: fail
# unsafe: stopped
import os


class Bomb:
  def __reduce__(self):
    return os.system, ('echo x > {{DROP}}/result_pickle',)

  def __getstate__(self):
    return {'verdict': 'correct'}


def add(a, b):
  return [Bomb(), {'key': Bomb()}]
