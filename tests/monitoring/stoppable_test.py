"""Tests of the ends of a program: sentences, and a closed output."""

import io
import subprocess
import sys

import jax
import pytest

from jaxrl_llm.monitoring import exits
from tests.helpers import devices


@pytest.mark.parametrize('error, said', [
    (OSError(28, 'No space', '/a\n/\udc80'), 'The disk is full at /a /\ufffd'),
    (OSError(28, 'No space left'), 'The disk is full: make room'),
    (FileNotFoundError(2, 'No such file', 'a.txt'), 'a.txt: No such file.'),
    (TimeoutError(110, 'Timed out'), 'The system: Timed out.'),
    (OSError('said so'), 'said so'), (ValueError('a\nb'), 'a\nb'),
    (MemoryError(), 'The memory is full (of this machine): lower sampling'),
    (jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory\nx'),
     'The memory is full (RESOURCE_EXHAUSTED: Out of memory): lower')])
def test_sentences(error, said):
  assert exits.sentence(error).startswith(said)


def test_a_fault_keeps_its_traceback():
  for error in (KeyError('x'), jax.errors.JaxRuntimeError('INTERNAL: x')):
    with pytest.raises(type(error)), exits.program(''):
      raise error


def test_a_terminal_without_a_character_gets_another(monkeypatch):
  out = io.TextIOWrapper(io.BytesIO(), 'ascii')
  monkeypatch.setattr(sys, 'stdout', out)
  with exits.program(''):
    print('.1 ± .2 \ud800')
  assert out.detach().getvalue() == b'.1 ? .2 ?\n'


@pytest.mark.parametrize('write', ['print("x", flush=True)',
                                   'rich.print("x")'])
def test_a_closed_output_is_one_sentence(write):
  done = subprocess.run(
      [sys.executable, '-c', 'import os, rich\n'
       'from jaxrl_llm.monitoring import exits\n'
       'read, write = os.pipe()\nos.close(read)\nos.dup2(write, 1)\n'
       f'with exits.program(""):\n  {write}\n'], capture_output=True, text=True,
      cwd=devices.ROOT)
  assert done.returncode == 1
  assert done.stderr == (
      'The output was closed before its end; all files are written.\n')


@pytest.mark.parametrize('code', [0, 75])
def test_a_stop_is_saved_where_nothing_can_be_printed(tmp_path, code):
  """Ctrl-C in `... 2>&1 | tee log` ends tee first."""
  done = subprocess.run(
      [sys.executable, '-c', f"""
import os, signal, sys
from jaxrl_llm.monitoring import exits
from jaxrl_llm.types import Stopped
with exits.program('', {code}), exits.stoppable(60.0) as asked:
  read, write = os.pipe()
  os.close(read)
  os.dup2(write, 1)
  os.dup2(write, 2)
  os.kill(os.getpid(), signal.SIGINT)
  if asked.wait(30):
    open({str(tmp_path / 'saved')!r}, 'w').close()
    raise Stopped('Stopped.')
"""], cwd=devices.ROOT)
  assert (tmp_path / 'saved').exists() and done.returncode == code


def test_a_forked_process_has_the_handlers_from_before():
  """A pool in a reward function ends its processes by SIGTERM."""
  done = subprocess.run(
      [sys.executable, '-c', """
import multiprocessing, os, signal, time
from jaxrl_llm.monitoring import exits

def of_fork():
  child = os.fork()
  if not child:
    handlers = [*map(signal.getsignal, (signal.SIGTERM, signal.SIGINT))]
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os._exit(held == before and handlers == [
        signal.SIG_DFL, signal.default_int_handler])
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
with exits.stoppable(60.0) as asked:
  assert of_fork() == 1
  context = multiprocessing.get_context('fork')
  for _ in range(20):
    one = context.Process(target=time.sleep, args=(60,))
    one.start()
    one.terminate()
    one.join(10)
    assert one.exitcode == -signal.SIGTERM
  assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
  os.kill(os.getpid(), signal.SIGTERM)
  assert asked.wait(10) and of_fork() == 1
  signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the user's own
  assert of_fork() == 0
assert of_fork() == 1
print('done')
"""], cwd=devices.ROOT, capture_output=True, text=True)
  assert done.stdout == 'done\n'
  assert done.stderr.strip() == 'Stopping: the state is saved after this phase.'
