"""Tests of xm.py; XManager itself runs in the slow one, in its environment."""

import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from jaxrl_llm.launch import xm
from jaxrl_llm.monitoring import metrics
from tests.helpers import devices

pytestmark = pytest.mark.processes  # They start sweeps.

CONFIG = '''
from tests.helpers import tiny
get_config = tiny.get_config
def get_hyper(hyper):
  return hyper.sweep('seed', range(6))
'''


def start(python, here, *argv):
  return subprocess.Popen(
      [python, 'launch/xm.py', f'--config={here}/config.py', '--sweep',
       f'--workdir={here}/sweep', f'--python={sys.executable}',
       '--config.steps=2', '--config.log.tensorboard=false', *argv],
      cwd=devices.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True, start_new_session=True, env={
          **os.environ, 'HOME': str(here), 'JAX_PLATFORMS': 'cpu',
          'PYTHONPATH': str(devices.ROOT),
          'JAX_COMPILATION_CACHE_DIR': str(devices.kept(here / 'programs')),
          'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'})


@pytest.fixture(name='here')
def _here(tmp_path):
  (tmp_path / 'config.py').write_text(CONFIG)
  return tmp_path


def test_a_work_unit_is_a_trial_that_is_not_finished(here):
  """Its command runs that trial alone, as run.py would."""
  trials = [dict(folder=f'{here}/{i}', finished=i == 1) for i in range(3)]
  rest = ['--config=a b.py', '--sweep']
  units = xm.work_units(trials, rest)
  assert units == {
      i: ['-m', 'jaxrl_llm.launch.run', *rest, f'--trial={i}'] for i in (0, 2)}


def test_a_work_unit_on_a_tpu_is_a_pod(here):
  """It has an hour to save and to delete its VM."""
  trial = dict(folder='gs://b/my_sweep/000-seed=0', finished=False)
  unit = xm.work_units(
      [trial], ['--config=a b.py'], python='/a b/python', tpu='v5litepod-8',
      zone='here', pod=['--spot', "--config.lora.targets=q b's"])[0]
  *first, program = unit
  assert first == [
      '-m', 'jaxrl_llm.launch.run', '--config=a b.py', '--trial=0',
      '--grace=3600']
  assert shlex.split(program.removeprefix('--program=')) == [
      '/a b/python', '-m', 'jaxrl_llm.launch.tpu_pod',
      '--name=xm-0f0c0888-000-seed-0', '--zone=here', '--type=v5litepod-8',
      '--spot', "--config.lora.targets=q b's"]


def test_the_trials_end_with_the_leash():
  """When it is pulled, and when its holder dies: their input ends."""
  for end in ('leash.pull()', 'os.kill(os.getpid(), 9)'):
    text = subprocess.run(
        [sys.executable, '-c', 'import os, subprocess\n'
         'from jaxrl_llm.launch import xm\n'
         'leash = xm._Leash()\n'
         'trial = subprocess.Popen("cat; echo ended", shell=True)\n'
         f'{end}\n'
         'print(trial.wait())'],
        cwd=devices.ROOT, capture_output=True, text=True, timeout=60).stdout
    assert sorted(text.splitlines()) == (
        ['0', 'Interrupted: the trials save and end.', 'ended']
        if 'pull' in end else ['ended'])


def test_no_two_trials_share_a_vm():
  """Neither those of a long sweep, nor of two sweeps with the same name."""
  folders = [f'{parent}/{number:03d}-{"Fields=" * 20}'
             for parent in ('gs://b/me/sweep', 'gs://b/you/sweep', 'x' * 99)
             for number in range(3)]
  names = {*map(xm.vm_name, [*folders, '/', '/a/é', f'/a/{"-" * 99}'])}
  assert len(names) == len(folders) + 3
  for name in names:
    assert re.fullmatch('[a-z]([-a-z0-9]{0,60}[a-z0-9])?', name)
    assert len(name) <= 60


def test_a_dry_run_prints_the_commands(here):
  process = start(sys.executable, here, '--dry_run')
  text, _ = process.communicate(timeout=120)
  assert process.returncode == 0
  assert [line.split('--trial=')[1] for line in text.splitlines()] == [
      *'012345']


def test_without_xmanager_it_says_how_to_get_it(here):
  process = start(sys.executable, here)
  text, _ = process.communicate(timeout=120)
  assert process.returncode == 2
  file = f'{devices.ROOT}/launch/xm_constraints.txt'
  assert f'pip install -c {file} xmanager' in text


def test_the_constraints_name_xmanager_and_an_older_protobuf():
  lines = dict(
      line.split('==') for line in pathlib.Path(
          devices.ROOT, 'launch/xm_constraints.txt').read_text().split())
  assert 'xmanager' in lines and int(lines['protobuf'].split('.')[0]) < 7


def test_one_trial_of_a_sweep(here):
  done = subprocess.run(
      [sys.executable, '-m', 'jaxrl_llm.launch.run',
       f'--config={here}/config.py', '--sweep', f'--workdir={here}/sweep',
       '--list'], cwd=devices.ROOT,
      capture_output=True, text=True, check=True)
  trials = json.loads(done.stdout)
  assert len(trials) == 6 and not any(trial['finished'] for trial in trials)
  for number, said in ((6, 'there are 6 trials'), (2, 'failed')):
    done = subprocess.run(
        [sys.executable, '-m', 'jaxrl_llm.launch.run',
         f'--config={here}/config.py', '--sweep', f'--workdir={here}/sweep',
         f'--trial={number}',
         '--program=false'], cwd=devices.ROOT, capture_output=True, text=True)
    assert done.returncode and said in done.stdout + done.stderr
  assert [path.name for path in (here / 'sweep').iterdir()] == ['002-seed=2']


def ends(here):
  """Returns, for each trial, how often each step was written."""
  return [
      [row['step'] for row in metrics.read(path)] for path in sorted(
          (here / 'sweep').glob('*/metrics.jsonl'))]


def installed(here):
  """Returns the Python of a new environment with XManager."""
  python = str(here / 'xm' / 'bin' / 'python')
  subprocess.run([sys.executable, '-m', 'venv', here / 'xm'], check=True)
  subprocess.run(
      [python, '-m', 'pip', 'install', '-q', '-c',
       'launch/xm_constraints.txt', 'xmanager'], cwd=devices.ROOT, check=True)
  return python


@pytest.mark.slow
@pytest.mark.parametrize('launcher', ['xm', 'run'])
def test_a_sweep_that_is_killed_goes_on(here, launcher):
  """Six trials, killed twice: each runs once to its end."""
  python = installed(here) if launcher == 'xm' else sys.executable

  def begin():
    if launcher == 'xm':
      return start(python, here, '--parallel=2')
    return subprocess.Popen(
        [sys.executable, '-m', 'jaxrl_llm.launch.run',
         f'--config={here}/config.py', '--sweep', f'--workdir={here}/sweep',
         '--parallel=2', '--config.steps=2', '--config.log.tensorboard=false'],
        cwd=devices.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True)

  starts = []
  for wanted in (1, 3):
    process = begin()
    while len([*(here / 'sweep').glob('*/summary.json')]) < wanted:
      assert process.poll() is None, process.communicate()[0][-3000:]
      time.sleep(.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    starts.append({path: path.stat().st_mtime_ns for path in (
        here / 'sweep').glob('*/summary.json')})
  last = time.monotonic() + 600
  while True:  # trials of the killed launcher may still run
    process = begin()
    text, _ = process.communicate(timeout=600)
    if process.returncode == 0:
      break
    assert time.monotonic() < last, text[-3000:]
    time.sleep(2)
  assert ends(here) == [[0, 1, 2]] * 6
  for path, written in starts[0].items() | starts[1].items():
    assert path.stat().st_mtime_ns == written  # not run again
  assert len((here / 'sweep' / 'sweep.md').read_text().splitlines()) >= 8


@pytest.mark.slow
def test_an_interrupt_ends_the_trials(here):
  """They save first; a failed trial is no traceback of XManager."""
  python = installed(here)
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
    process = start(python, here, '--parallel=2', '--config.steps=1000')
    files = [here / 'sweep' / f'{i:03d}-seed={i}' for i in range(2)]
    before = [metrics.read(file / 'metrics.jsonl') for file in files]
    while any(len(metrics.read(file / 'metrics.jsonl')) < len(rows) + 2
              for file, rows in zip(files, before)):
      assert process.poll() is None, process.communicate()[0][-3000:]
      time.sleep(.1)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)  # until the trials end, too
    if number != signal.SIGKILL:
      assert process.returncode == 130 and 'Traceback' not in text
      assert 'the same command continues the sweep.' in text
    for file in files:
      with open(file / 'log.txt', 'ab') as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # Nobody runs it.
      assert 'Stopped after step' in (file / 'log.txt').read_text()[-200:]
    assert len([*(here / 'sweep').iterdir()]) == 2
