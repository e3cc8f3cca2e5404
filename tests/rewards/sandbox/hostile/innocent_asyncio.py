# what: runs a loop of asyncio
# want: pass
# kind: correct
# unsafe: stopped
import asyncio


async def slowly(a, b):
  await asyncio.sleep(0.01)
  return a + b


def add(a, b):
  return asyncio.run(slowly(a, b))
