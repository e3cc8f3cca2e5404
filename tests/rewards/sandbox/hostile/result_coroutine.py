# what: add is an async function
# want: fail
# unsafe: stopped


async def add(a, b):
  return a + b
