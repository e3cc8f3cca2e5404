# what: raises GeneratorExit, StopIteration and their kin
# want: fail
# unsafe: stopped
import asyncio


def add(a, b):
  if a == 1:
    raise GeneratorExit
  if a == -5:
    raise StopIteration(a + b)
  if a == 'a':
    raise asyncio.CancelledError
  if a == 0.5:
    raise StopAsyncIteration
  raise BaseException('pass')
