"""Results of the user's functions, those of `async` ones and generators too."""

import asyncio
import collections.abc
import functools
import inspect
import os
import threading
from typing import Any, AsyncIterator, Awaitable


def result(value: Any) -> Any:
  """Returns the result of a call.

  Args:
    value: as the call returned it.

  Returns:
    What an awaitable gives, and the list of what a generator or another
    iterator yields; any other value as it is.

  Raises:
    BaseException: what the function raises while it is awaited.
  """
  if inspect.isasyncgen(value):
    value = _listed(value)
  while inspect.isawaitable(value):
    value, error = asyncio.run_coroutine_threadsafe(
        _caught(value), _loop(os.getpid())).result()
    if error is not None:
      raise error
  return [*value] if isinstance(value, collections.abc.Iterator) else value


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
  """Returns the loop of a process, given by its id.

  There is one for all calls, since clients of a service belong to one. It runs
  in a thread, since a notebook's thread has a loop that runs already.
  """
  del process  # a forked one has no thread of its parent's
  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, daemon=True).start()
  return loop


async def _caught(
    waiting: Awaitable[Any]) -> tuple[Any, BaseException | None]:
  """Returns a result, or an error, which would end the thread of the loop."""
  try:
    return await waiting, None
  except BaseException as error:
    return None, error


async def _listed(values: AsyncIterator[Any]) -> list[Any]:
  return [value async for value in values]
