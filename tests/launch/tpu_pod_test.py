"""Tests of tpu_pod.py against a stand-in for gcloud on PATH."""

import json
import os
import pathlib
import re
import shlex
import signal
import stat
import subprocess
import sys
import time

import pytest

from launch import gcloud as gcloud_lib
from launch import xm
from tests import devices

# Notes its arguments, then does what the first rule that matches says; a rule
# is used up. Without one, a VM is as simple as it can be.
GCLOUD = '''#!{python}
import json, os, pathlib, sys, time
here = pathlib.Path({here!r})
words = sys.argv[1:]
with open(here / 'calls', 'a') as file:
  file.write(json.dumps(words) + '\\n')
rules = json.loads((here / 'rules').read_text())
text = ' '.join(words)
for rule in rules:
  if rule['when'] in text:
    rules.remove(rule)
    (here / 'rules').write_text(json.dumps(rules))
    if 'state' in rule:
      (here / 'state').write_text(rule['state'])
    time.sleep(rule.get('sleep', 0))
    print(rule.get('say', ''), flush=True)
    sys.exit(rule.get('code', 0))
state = here / 'state'
if 'describe' in words:
  if not state.exists():
    print('ERROR: NOT_FOUND: no such VM')
    sys.exit(1)
  print(state.read_text())
elif 'create' in words:
  state.write_text('READY')
elif 'delete' in words:
  state.unlink(missing_ok=True)
elif 'list' in words:
  print(json.dumps([dict(
      name='projects/p/a', acceleratorType='v5litepod-8', state='READY')]))
elif '-m jaxrl_llm.train' in text:
  print('RL 1/4')
'''
RUN, CREATE = '-m jaxrl_llm.train', 'tpu-vm create'


@pytest.fixture(name='gcloud')
def _gcloud(tmp_path):
  file = tmp_path / 'bin' / 'gcloud'
  file.parent.mkdir()
  file.write_text(GCLOUD.format(python=sys.executable, here=str(tmp_path)))
  file.chmod(file.stat().st_mode | stat.S_IXUSR)
  (tmp_path / 'calls').touch()
  return tmp_path


def start(here, *argv, rules=(), **env):
  (here / 'rules').write_text(json.dumps(list(rules)))
  return subprocess.Popen(
      [sys.executable, '-m', 'launch.tpu_pod', '--name=job', '--zone=here',
       '--type=v5litepod-16', '--config=configs/countdown.py',
       f'--workdir={here}/run', f'--log={here}/log', '--backoff=.01', *argv],
      cwd=devices.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True, env={
          **os.environ, **env,
          'PATH': f'{here}/bin:{os.environ["PATH"]}'})


def done(process, seconds=120):
  """Returns the exit code and the output of a launcher."""
  text, _ = process.communicate(timeout=seconds)
  return process.returncode, text


def calls(here):
  """Returns the calls of gcloud as short names, and their words."""
  words = [
      json.loads(line) for line in (here / 'calls').read_text().splitlines()]
  names = []
  for call in words:
    text = ' '.join(call)
    name = next(
        name for mark, name in (
            (RUN, 'run'), ('pkill', 'stop'), ('venv', 'setup'),
            ('scp', 'copy'), ('describe', 'describe'), ('create', 'create'),
            ('delete', 'delete'), ('list', 'list')) if mark in text)
    names.append(name)
  return names, words


def wait_for(here, when):
  """Waits until gcloud is called with these words."""
  end = time.monotonic() + 60
  while not any(when in ' '.join(json.loads(line)) for line in (
      here / 'calls').read_text().splitlines()):
    assert time.monotonic() < end
    time.sleep(.05)


def test_a_run_from_its_beginning_to_its_end(gcloud):
  override = "--config.lora.targets=q|k b's \"c\" $HOME"
  code, text = done(start(gcloud, '--spot', override))
  assert code == 0, text
  names, words = calls(gcloud)
  assert names == [
      'describe', 'create', 'describe', 'copy', 'setup', 'run', 'delete']
  vm = ['compute', 'tpus', 'tpu-vm']
  end = ['--zone=here', '--quiet']
  assert words[1] == [
      *vm, 'create', 'job', '--accelerator-type=v5litepod-16',
      '--version=v2-alpha-tpuv5-lite', '--spot', *end]
  assert words[6] == [*vm, 'delete', 'job', *end]
  *run, command, zone, quiet = words[5][:-5]
  ssh = words[5][-5:]
  assert run == [*vm, 'ssh', 'job', '--worker=all'] and [zone, quiet] == end
  assert ssh == ['--', '-o', 'ServerAliveInterval=30', '-o',
                 'ServerAliveCountMax=6']
  # As the shell of a worker reads it.
  shell = shlex.split(command.removeprefix('--command='))
  assert shell[:4] == ['cd', 'jaxrl_llm', '&&', '~/venv/bin/python']
  assert shell[4:shell.index('&&', 4)] == [
      '-m', 'jaxrl_llm.train', '--config=configs/countdown.py', override,
      f'--config.workdir={gcloud}/run', '--process_count=auto']
  assert 'RL 1/4' in text and 'RL 1/4' in (gcloud / 'log').read_text()
  assert 'still exists' not in text


def test_a_preempted_vm_is_made_again(gcloud):
  code, text = done(start(gcloud, rules=[
      dict(when=RUN, code=255, state='PREEMPTED'),
      dict(when=RUN, code=1, state='TERMINATED')]))
  assert code == 0, text
  again = ['describe', 'delete', 'describe', 'create', 'describe', 'copy',
           'setup', 'run']
  assert calls(gcloud)[0] == [
      'describe', 'create', 'describe', 'copy', 'setup', 'run', *again, *again,
      'delete']
  assert 'job: preempted; making it again' in text


def test_a_vm_preempted_before_the_program_runs_is_made_again(gcloud):
  code, text = done(start(gcloud, rules=[
      dict(when='scp', code=1, state='PREEMPTED'),
      dict(when='uv venv', code=1, state='TERMINATED')]))
  assert code == 0, text
  again = ['describe', 'delete', 'describe', 'create', 'describe', 'copy']
  assert calls(gcloud)[0] == [
      'describe', 'create', 'describe', 'copy', *again, 'setup', *again,
      'setup', 'run', 'delete']
  assert text.count('making it again') == 2


def test_a_preemption_that_ssh_does_not_notice(gcloud):
  code, text = done(start(gcloud, '--poll=.2', rules=[
      dict(when=RUN, sleep=300, state='PREEMPTED')]))
  assert code == 0, text
  assert calls(gcloud)[0].count('run') == 2
  assert 'job: preempted; making it again' in text


@pytest.mark.parametrize('state, made', [('READY', 1), ('PREEMPTED', 2)])
def test_a_program_that_was_asked_to_stop_runs_again(gcloud, state, made):
  """Its exit code is 0; what follows it says that the run is not done."""
  code, text = done(start(gcloud, rules=[
      dict(when=RUN, code=75, state=state)]))
  assert code == 0, text
  names = calls(gcloud)[0]
  assert names.count('run') == 2 and names.count('create') == made


def test_the_exit_code_of_a_worker(tmp_path):
  """0 only with a summary, which a run that was asked to stop has not."""
  job = gcloud_lib.Job(
      'a', 'b', 'c', 'd', 'spot', False, None, ['-m', 'jaxrl_llm.train'],
      f"{tmp_path}/a b's", ())
  python = tmp_path / 'venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  (tmp_path / 'jaxrl_llm').mkdir()
  python.write_text(
      '#!/bin/bash\n'
      f'if [ "$1" = -m ]; then exit $CODE; fi; exec {sys.executable} "$@"\n')
  python.chmod(0o755)
  command, = (
      word for word in gcloud_lib.program(job) if '--command' in word)

  def worker(code):
    return subprocess.run(
        ['bash', '-c', command.removeprefix('--command=')], cwd=tmp_path,
        env={**os.environ, 'HOME': str(tmp_path), 'CODE': str(code),
             'PYTHONPATH': str(devices.ROOT)}).returncode

  assert [worker(0), worker(3)] == [75, 3]
  (tmp_path / "a b's").mkdir()
  (tmp_path / "a b's" / 'summary.json').touch()
  assert [worker(0), worker(3)] == [0, 3]


def test_who_is_asked_to_stop():
  """Python, and none of the shells around it."""
  job = gcloud_lib.Job(*'abcd', 'spot', False, None, [], '', ())
  pattern = re.search("pkill -TERM -f '(.*?)'", ' '.join(gcloud_lib.stop(job)))
  asked = lambda line: bool(re.search(pattern[1], line))
  program = '/home/me/venv/bin/python -m jaxrl_llm.train --config=a.py'
  assert asked(program)
  assert not asked(f'bash -c cd jaxrl_llm && {program}')
  assert not asked(f'bash -c pkill -TERM -f {pattern[0]}')


def test_a_vm_that_is_being_deleted_is_waited_for(gcloud):
  code, text = done(start(gcloud, rules=[
      dict(when='describe', say='DELETING')] * 2))
  assert code == 0, text
  assert calls(gcloud)[0][:4] == ['describe'] * 3 + ['create']


def test_the_end_of_the_terminal_leaves_no_vm_behind(gcloud):
  process = start(gcloud, rules=[dict(when=RUN, sleep=300)])
  wait_for(gcloud, RUN)
  process.stdout.close()
  process.send_signal(signal.SIGHUP)
  assert process.wait(120) == 130
  assert calls(gcloud)[0][-2:] == ['stop', 'delete']


def test_a_trial_of_a_sweep_is_a_pod(gcloud):
  """It is finished when the program has written its summary."""
  (gcloud / 'rules').write_text('[]')
  script = gcloud / 'bin' / 'gcloud'
  script.write_text(script.read_text() + f'''
  folder, = pathlib.Path({str(gcloud)!r}, 'sweep').iterdir()
  (folder / 'summary.json').touch()
''')
  rest = ['--config=configs/countdown.py', f'--workdir={gcloud}/sweep']
  unit = xm.work_units(
      [dict(folder=f'{gcloud}/sweep/000', finished=False)], rest,
      python=sys.executable, tpu='v5litepod-8', zone='here',
      pod=['--spot', f'--log={gcloud}/log'])[0]
  run = lambda *argv: subprocess.run(
      [sys.executable, *argv], cwd=devices.ROOT, capture_output=True, text=True,
      env={**os.environ, 'PATH': f'{gcloud}/bin:{os.environ["PATH"]}'})
  found = run(*unit)
  assert found.returncode == 0, found.stdout + found.stderr
  names, words = calls(gcloud)
  assert names.count('run') == 1 and '--spot' in words[1]
  assert f'--config.workdir={gcloud}/sweep/000 ' in ' '.join(words[5])
  assert json.loads(run('-m', 'launch.run', *rest, '--list').stdout)[0][
      'finished']


def test_a_lost_connection_runs_again_without_a_new_vm(gcloud):
  code, _ = done(start(gcloud, rules=[dict(when=RUN, code=255)]))
  assert code == 0
  assert calls(gcloud)[0][5:] == ['run', 'describe', 'stop', 'run', 'delete']


def test_a_program_that_fails_is_not_run_again(gcloud):
  code, text = done(start(gcloud, rules=[
      dict(when=RUN, code=3, say='No prompt fits.')]))
  assert code == 3 and 'No prompt fits.' in text
  assert calls(gcloud)[0][-3:] == ['run', 'describe', 'delete']


def test_no_capacity_is_tried_again_and_in_the_end_said(gcloud):
  full = dict(when=CREATE, code=1, say='ERROR: no more capacity in the zone')
  code, text = done(start(gcloud, rules=[full] * 2))
  assert code == 0 and text.count('no more capacity') == 2
  code, text = done(start(gcloud, '--tries=3', rules=[full] * 9))
  assert code == 1 and 'create of job failed: ERROR: no more capacity' in text
  # The failed command may have made it: it is deleted.
  assert calls(gcloud)[0][-4:] == ['create', 'create', 'create', 'delete']
  assert 'still exists' not in text


def test_what_will_not_go_away_is_not_tried_again(gcloud):
  code, text = done(start(gcloud, rules=[
      dict(when=CREATE, code=1, say='PERMISSION_DENIED: billing is off')]))
  assert code == 1 and 'PERMISSION_DENIED: billing is off' in text
  assert calls(gcloud)[0].count('create') == 1


def test_a_vm_that_cannot_be_deleted_is_said(gcloud):
  bad = dict(when='tpu-vm delete', code=1, say='quota of deletes')
  code, text = done(start(gcloud, '--tries=2', rules=[bad] * 9))
  assert code != 0
  *_, last = text.strip().splitlines()
  assert last == (
      'The TPU VM job in here still exists and costs money. Delete it with: '
      'gcloud compute tpus tpu-vm delete job --zone=here --quiet')
  code, text = done(start(gcloud, '--keep'))
  assert code == 0 and 'still exists and costs money' in text


def test_credentials_are_in_no_log(gcloud):
  secret = 'hf_do not tell'
  code, text = done(start(gcloud, '--env=HF_TOKEN', HF_TOKEN=secret, rules=[
      dict(when=RUN, say=f'the token is {secret}!')]))
  assert code == 0 and 'the token is ***!' in text
  names, words = calls(gcloud)
  assert names[3:6] == ['copy', 'copy', 'setup']
  for path in (gcloud / 'log', gcloud / 'calls'):
    assert secret not in path.read_text()
  assert 'jaxrl_llm_env; set +a' in ' '.join(words[6])


@pytest.mark.parametrize('when', [RUN, CREATE])
def test_an_interrupt_leaves_no_vm_behind(gcloud, when):
  process = start(gcloud, rules=[dict(when=when, sleep=300)])
  wait_for(gcloud, when)
  process.terminate()
  code, text = done(process)
  assert code == 130 and calls(gcloud)[0][-1] == 'delete', text
  if when == RUN:
    assert calls(gcloud)[0][-2:] == ['stop', 'delete']
  assert 'still exists' not in text


def test_queued_resources(gcloud):
  code, text = done(start(gcloud, '--queued', '--reserved', rules=[
      dict(when='queued-resources create', state='CREATING'),
      dict(when='queued-resources describe', say='WAITING_FOR_RESOURCES'),
      dict(when='queued-resources describe', say='ACTIVE', state='READY')]))
  assert code == 0, text
  _, words = calls(gcloud)
  assert words[1] == [
      'compute', 'tpus', 'queued-resources', 'create', 'job', '--node-id=job',
      '--accelerator-type=v5litepod-16',
      '--runtime-version=v2-alpha-tpuv5-lite', '--reserved', '--zone=here',
      '--quiet']
  assert words[-1][2:5] == ['queued-resources', 'delete', 'job']
  assert '--force' in words[-1]


def test_a_dry_run_calls_nothing(gcloud):
  code, text = done(start(gcloud, '--dry_run'))
  assert code == 0 and calls(gcloud)[0] == []
  assert [line.split()[4] for line in text.splitlines() if line[0] != '#'] == [
      'create', 'describe', 'scp', 'ssh', 'ssh', 'delete', 'ssh']


def test_the_status_of_a_zone(gcloud):
  code, text = done(start(gcloud, '--status'))
  assert code == 0 and calls(gcloud)[0] == ['list']
  assert 'v5litepod-8' in text and 'READY' in text


@pytest.mark.parametrize('argv, said', [
    (['--spot', '--reserved'], 'exclude each other'),
    (['--name=A b'], '--name=A b must be lower-case'),
    (['--env=NO_SUCH'], '--env=NO_SUCH is not in the environment'),
    (['--workdir=runs/a'], '--workdir=runs/a must be in a bucket'),
    (['--config.stepz=1'], 'stepz is not a field')])
def test_mistakes_are_one_sentence(gcloud, argv, said):
  code, text = done(start(gcloud, *argv))
  assert code == 2 and said in text and calls(gcloud)[0] == []
  assert len(text.strip().splitlines()) == 1


def test_the_code_arrives_whole(gcloud):
  keep = gcloud / 'bin' / 'gcloud'
  keep.write_text(keep.read_text().replace(
      'rules = json', f'''if 'scp' in words:
  import shutil
  shutil.copy(words[4], {str(gcloud)!r})
rules = json''', 1))
  code, _ = done(start(gcloud))
  assert code == 0
  names = subprocess.run(
      ['tar', '-tzf', str(gcloud / 'jaxrl_llm.tgz')], capture_output=True,
      text=True, check=True).stdout.splitlines()
  assert {'setup.py', 'constraints.txt', 'jaxrl_llm/train.py',
          'configs/countdown.py'} <= set(names)
  assert not [name for name in names if name.startswith(('.venv', 'runs/'))]
  assert pathlib.Path(devices.ROOT, 'setup.py').exists()
