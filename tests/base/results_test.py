"""Tests of results of the user's functions, of `async` ones too."""

import asyncio
import os
import threading

import pytest

from jaxrl_llm.base import results


async def running():
  await asyncio.sleep(0)
  return asyncio.get_running_loop()


async def nested():
  return running()


async def numbers():
  yield 1
  await asyncio.sleep(0)
  yield 2


def test_results_are_awaited_in_one_loop():
  assert results.result(3) == 3 and results.result('ab') == 'ab'
  assert results.result([1]) == [1]
  first = results.result(running())
  assert results.result(running()) is first is results.result(nested())
  # A notebook's thread has a loop that runs already.
  assert asyncio.run(within()) is first


async def within():
  return results.result(running())


def test_what_is_yielded_is_listed():
  assert results.result(i for i in range(2)) == [0, 1]
  assert results.result(map(str, [1])) == ['1']
  assert results.result(numbers()) == [1, 2]


@pytest.mark.parametrize('error', [
    ValueError('no'), SystemExit(2), KeyboardInterrupt(),
    asyncio.CancelledError()])
def test_an_error_is_raised_here_and_does_not_end_the_loop(error):
  async def fails():
    raise error

  with pytest.raises(type(error)) as raised:
    results.result(fails())
  assert raised.value is error
  assert results.result(running()).is_running()


@pytest.mark.filterwarnings('ignore:os.fork')
def test_a_forked_process_has_a_loop_of_its_own():
  results.result(running())
  child = os.fork()
  if not child:
    # A loop without its thread would wait for ever.
    threading.Timer(20, os._exit, [2]).start()
    os._exit(not results.result(running()).is_running())
  assert os.waitpid(child, 0)[1] == 0
