"""Tests of slurm.py: the batch script, run with stand-ins for SLURM."""

import json
import os
import subprocess
import sys

import pytest

from jaxrl_llm.launch import run, slurm
from tests.helpers import devices

# srun notes its arguments, does what DO says, and exits with CODE.
SRUN = f'''#!{sys.executable}
import json, os, sys
json.dump(sys.argv[1:], open(os.environ['HERE'] + '/srun', 'w'))
if os.environ['DO'] == 'finish':
  open(os.environ['RUN'] + '/summary.json', 'w').close()
sys.exit(int(os.environ['CODE']))
'''
SCONTROL = '#!/bin/sh\necho "$@" > "$HERE/scontrol"\nexit ${REFUSE:-0}\n'


@pytest.fixture(name='script')
def _script(tmp_path, capsys):
  """Makes a script with awkward names, and returns what runs it."""
  workdir = tmp_path / "a b's"
  workdir.mkdir()
  for name, text in (('srun', SRUN), ('scontrol', SCONTROL)):
    file = tmp_path / 'bin' / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
  assert slurm.main([
      '--config=configs/countdown.py', f'--workdir={workdir}', '--nodes=2',
      '--config.lora.targets=q|k "c" $HOME', '--sbatch=--partition=gpu']) == 0
  text = capsys.readouterr().out

  def run(do, code, refuse=0):
    for name in ('srun', 'scontrol'):
      (tmp_path / name).unlink(missing_ok=True)
    done = subprocess.run(
        ['bash', '-s'], input=text, text=True, cwd=devices.ROOT, env={
            **os.environ, 'PATH': f'{tmp_path}/bin:{os.environ["PATH"]}',
            'PYTHONPATH': str(devices.ROOT), 'HERE': str(tmp_path),
            'RUN': str(workdir), 'DO': do, 'CODE': str(code),
            'REFUSE': str(refuse),
            'SLURM_JOB_ID': '17'}).returncode
    requeued = tmp_path / 'scontrol'
    return done, requeued.read_text().strip() if requeued.exists() else ''

  return text, run, tmp_path


def test_a_job_that_was_stopped_queues_itself_again(script):
  text, run, here = script
  assert run('stop', 0) == (0, 'requeue 17')
  assert run('stop', 0, refuse=1) == (75, 'requeue 17')
  assert run('stop', 3) == (3, '')
  assert run('finish', 0) == (0, '')
  assert json.loads((here / 'srun').read_text()) == [
      '--kill-on-bad-exit=1', sys.executable, '-m', 'jaxrl_llm.train',
      '--config=configs/countdown.py',
      '--config.lora.targets=q|k "c" $HOME',
      f"--config.workdir={here}/a b's"]
  head = [line for line in text.splitlines() if line.startswith('#SBATCH')]
  assert {'#SBATCH --nodes=2', '#SBATCH --ntasks-per-node=1',
          '#SBATCH --signal=TERM@180', '#SBATCH --requeue',
          '#SBATCH --partition=gpu'} <= {*head}


def test_a_sweep_is_a_job_array(tmp_path, capsys):
  argv = [f'--config={tmp_path}/mine.py', f'--workdir={tmp_path}/sweep',
          '--sweep', '--parallel=2', '--python=python']
  (tmp_path / 'mine.py').write_text(
      'from jaxrl_llm.configs.countdown import get_config\n'
      'def get_hyper(hyper):\n  return hyper.sweep("seed", [5, 6, 7])\n')
  assert slurm.main(argv) == 0
  text = capsys.readouterr().out
  assert '#SBATCH --array=0-2%2\n' in text and '-%A-%a.log\n' in text
  for name in ('srun', 'python'):
    file = tmp_path / name
    file.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    file.chmod(0o755)
  for number in range(3):
    shown = subprocess.run(
        ['bash', '-s'], input=text, text=True, capture_output=True, env={
            'PATH': f'{tmp_path}:{os.environ["PATH"]}',
            'SLURM_ARRAY_TASK_ID': str(number)}).stdout
    assert shown.split() == [
        '--kill-on-bad-exit=1', 'python', '-m', 'jaxrl_llm.train',
        f'--config={tmp_path}/mine.py', f'--config.seed={5 + number}',
        f'--config.workdir={tmp_path}/sweep/00{number}-seed={5 + number}']


def test_no_hub_is_needed(capsys):
  """Neither here nor by a sweep's dry run; what a model decides is not said."""
  argv = ['--config=jackpot/qwen3_4b_math', '--config.model.hf=no/such',
          '--config.task.path=gs://b/a.jsonl',
          '--config.task.heldout=gs://b/b.jsonl']
  assert slurm.main([*argv, '--workdir=/shared/a']) == 0
  assert run.main([*argv, '--dry_run']) == 0
  assert capsys.readouterr().out.count('--config.model.hf=no/such') == 2


@pytest.mark.parametrize('argument, said', [
    ('--config.task=no.py', 'There is no file'),
    ('--sbatch=partition=gpu', 'must begin with --'),
    ('--config.stepz=1', 'stepz is not a field'),
    ('--name=my run/x', '--name=my run/x must be letters, digits and'),
    ('--name=a\n', 'must be letters')])
def test_a_mistake_is_one_sentence(capsys, argument, said):
  with pytest.raises(SystemExit) as end:
    slurm.main(['--config=configs/countdown.py', '--workdir=/a', argument])
  assert end.value.code == 2
  assert said in capsys.readouterr().err
