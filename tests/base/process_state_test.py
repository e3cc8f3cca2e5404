"""Tests of the process of a run beside the user's code."""

import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from jaxrl_llm.base import own_code, process_state
from tests.helpers import devices

# Calls functions that fork in every place where the user's code is called.
FORKS = '''
import atexit, os, sys, types
from jaxrl_llm import rewards
from jaxrl_llm.monitoring import exits
from jaxrl_llm.base import own_code
from jaxrl_llm.tasks import own_reward

def forks(*args, **given):
  print('forks')
  if os.fork() == 0:
    HOW
  return rewards.Verdict(1.0, 'right')

def reward(completions):
  forks()
  return [1.0] * len(completions)

async def later(completions):
  return reward(completions)

sys.modules['mine'] = types.SimpleNamespace(
    reward=reward, later=later, __name__='mine', __file__='mine.py')
atexit.register(lambda: os.write(1, b'atexit\\n'))
print('begun')
try:
  with exits.program(''):
    for task in (
        types.SimpleNamespace(verify=forks),
        types.SimpleNamespace(judge=lambda p, t, c: [forks()] * 2),
        types.SimpleNamespace(submit=lambda *_: lambda v=forks(): v),
        types.SimpleNamespace(submit=lambda *_: forks)):
      found = rewards.submit(task, 'pp', 'tt', [False] * 2)()
      assert [v.reward for v in found] == [1.0] * 2, found
    own_code.guarded('f', forks)()
    with own_code.blamed('g'):
      forks()
    several = own_reward.Rewards(['mine:reward', 'mine:later'])
    found = several.judge(
        [own_reward.ProblemRow('p', '', {})] * 2, 'tt',
        rewards.Facts([[1]] * 2))
    assert [v.reward for v in found] == [2.0] * 2, found
    forks()  # in no place of them
finally:
  os.write(1, b'went on\\n')
'''


@pytest.mark.parametrize('how, said', [
    ('pass', ''), ('sys.exit(0)', ''), ('sys.exit("over")', 'over'),
    ('raise ValueError("odd")', 'ValueError: odd'), ('os._exit(7)', '')])
def test_a_forked_process_never_goes_on(how, said):
  done = subprocess.run(
      [sys.executable, '-W', 'ignore', '-c', FORKS.replace('HOW', how)],
      capture_output=True, text=True, cwd=devices.ROOT, timeout=60,
      env={**os.environ, 'PYTHONUNBUFFERED': ''})
  assert done.returncode == 0, done.stderr
  assert done.stdout.count('went on') == done.stdout.count('atexit') == 1
  # What was printed before a fork is printed once.
  assert done.stdout.count('begun') == 1
  assert done.stdout.count('forks\n') == 3 * 2 + 1 + 2 + 2 + 1
  assert done.stderr.count(said) == (12 if said else len(done.stderr) + 1)


@pytest.mark.parametrize('how, status', [
    ('pass', 0), ('sys.exit()', 0), ('sys.exit(3)', 3), ('sys.exit("x")', 1),
    ('sys.exit(True)', 1), ('sys.exit(259)', 3), ('1 / 0', 1),
    ('sys.exit(1 << 99)', 0)])
def test_the_exit_code_of_a_forked_process(how, status):
  done = subprocess.run([sys.executable, '-c', f'''
import os, sys
from jaxrl_llm.base import process_state
with process_state.alone():
  child = os.fork()
  if not child:
    {how}
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
'''], capture_output=True, text=True, cwd=devices.ROOT, timeout=60)
  assert done.stdout == f'{status}\n'


def changing(tmp_path):
  """Changes what belongs to the run; returns how that is seen."""
  os.chdir(tmp_path)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  signal.signal(signal.SIGINT, lambda *_: None)
  signal.alarm(60)
  jax.config.update('jax_enable_x64', True)
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def state():
  return (os.getcwd(), signal.getsignal(signal.SIGTERM),
          signal.getsignal(signal.SIGINT),
          signal.getitimer(signal.ITIMER_REAL)[0] > 0,
          jax.config.jax_enable_x64,
          resource.getrlimit(resource.RLIMIT_NOFILE))


@pytest.mark.parametrize('fails', [False, True])
def test_what_belongs_to_the_run_is_as_before(tmp_path, fails):
  before = state()
  try:
    with process_state.code():
      changing(tmp_path)
      assert not {*before[:4]} & {*state()[:4]}
      if fails:
        raise KeyError
  except KeyError:
    assert fails
  assert state() == before
  assert jnp.ones(()).dtype == jnp.float32


def test_what_the_user_set_outside_stays():
  """Such as the alarm of a worker, or the option of a loop of one's own."""
  signal.signal(signal.SIGALRM, lambda *_: None)
  signal.alarm(60)
  jax.config.update('jax_enable_x64', True)
  try:
    with process_state.code():
      pass
    assert signal.alarm(0) > 0 and jax.config.jax_enable_x64
  finally:
    jax.config.update('jax_enable_x64', False)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_the_users_code_finds_its_own_folder_again(tmp_path, monkeypatch):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  monkeypatch.chdir(tmp_path)
  with process_state.code():
    os.chdir('a')
    with process_state.code():  # one of its functions within another
      assert os.path.basename(os.getcwd()) == 'a'
      os.chdir('../b')
  for _ in range(2):
    assert os.getcwd() == str(tmp_path)
    with process_state.code():
      assert os.path.basename(os.getcwd()) == 'b'
  monkeypatch.chdir(tmp_path / 'a')  # as in a notebook, between two runs
  with process_state.code():
    assert os.path.basename(os.getcwd()) == 'a'
  monkeypatch.chdir(tmp_path)


def test_a_file_is_found_from_the_folder_of_the_run(tmp_path, monkeypatch):
  """Also after the user's code went to another one."""
  (tmp_path / 'a').mkdir()
  (tmp_path / 'mine.py').write_text('VALUE = 7')
  monkeypatch.chdir(tmp_path)
  with process_state.code():
    os.chdir('a')
  assert own_code.execute(pathlib.Path('mine.py'), 'mine').VALUE == 7


def test_a_folder_that_is_gone(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with process_state.code():
    (tmp_path / 'gone').mkdir()
    os.chdir('gone')
    os.rmdir(tmp_path / 'gone')
  assert os.getcwd() == str(tmp_path)
  with process_state.code():
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize('closes', [
    'os.close(1)', 'sys.stdout.close()', 'os.closerange(0, 3)'])
def test_a_closed_output_takes_no_file(tmp_path, closes):
  """A file of the run would get the number of the output, and what is printed.
  """
  done = subprocess.run([sys.executable, '-c', f'''
import os, sys
from jaxrl_llm.base import process_state
with process_state.code():
  {closes}
with open({str(tmp_path / "file")!r}, 'w') as file:
  print('lost', flush=True)
  file.write('kept')
'''], cwd=devices.ROOT, timeout=60)
  assert done.returncode == 0
  assert (tmp_path / 'file').read_text() == 'kept'


def test_another_thread_has_no_handlers(tmp_path):
  found = []

  def work():
    with process_state.code():
      os.chdir(tmp_path)
    found.append(os.getcwd())

  thread = threading.Thread(target=work)
  thread.start()
  thread.join()
  assert found == [os.getcwd()]


def test_numbers_have_32_bits_while_a_program_runs():
  @process_state.narrow()
  def program():
    return jnp.arange(3).dtype

  assert program() == jnp.int32
  jax.config.update('jax_enable_x64', True)
  try:
    assert program() == jnp.int32 and jnp.arange(3).dtype == jnp.int64
    with pytest.raises(KeyError), process_state.narrow():
      raise KeyError
    assert jax.config.jax_enable_x64
  finally:
    jax.config.update('jax_enable_x64', False)


def test_code_that_is_imported_changes_nothing(tmp_path):
  before = state()
  (tmp_path / 'changes.py').write_text(
      'import os, signal, jax\nos.chdir("/")\n'
      'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
      'jax.config.update("jax_enable_x64", True)\n')
  own_code.load(str(tmp_path / 'changes.py'))
  assert state() == before
