"""Tests of tpu_pod.py: commands, secrets, interrupts; see helpers/gcloud.py."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from jaxrl_llm.launch import archive, local_files, xm
from jaxrl_llm.launch import gcloud as gcloud_lib
from tests.helpers import devices
from tests.helpers.gcloud import (
  calls,
  CREATE,
  done,
  install,
  RUN,
  run,
  start,
  wait_for,
)


@pytest.fixture(name='gcloud')
def _gcloud(tmp_path):
  install(tmp_path)
  return tmp_path


@pytest.fixture(name='sent')
def _sent(gcloud, monkeypatch):
  """Returns a folder, and what launches from it and opens what is sent."""
  monkeypatch.chdir(gcloud)
  keep = gcloud / 'bin' / 'gcloud'
  keep.write_text(keep.read_text().replace(
      'rules = json', f'''if 'scp' in words:
  import shutil
  shutil.copy(words[4], {str(gcloud)!r})
rules = json''', 1))

  def launch(*argv):
    code, text = run(gcloud, *argv)
    assert code == 0, text
    with tarfile.open(gcloud / 'jaxrl_llm.tgz') as archive:
      config = json.load(archive.extractfile('files/job.json'))
      names = [x.name for x in archive.getmembers() if x.isfile()]
    return names, config, [' '.join(words) for words in calls(gcloud)[1]]

  return gcloud, launch


def test_a_run_from_its_beginning_to_its_end(gcloud):
  override = "--config.lora.targets=q|k b's \"c\" $HOME"
  code, text = run(gcloud, '--spot', override)
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
  *begin, command, zone, quiet = words[5][:-5]
  ssh = words[5][-5:]
  assert begin == [*vm, 'ssh', 'job', '--worker=all'] and [zone, quiet] == end
  assert ssh == ['--', '-o', 'ServerAliveInterval=30', '-o',
                 'ServerAliveCountMax=6']
  # As the shell of a worker reads it.
  shell = shlex.split(command.removeprefix('--command='))
  shell = shell[shell.index('cd'):]
  assert shell[:4] == ['cd', 'jaxrl_llm', '&&', '~/venv/bin/python']
  assert shell[4:] == [
      '-m', 'jaxrl_llm.train', '--config=files/job.json',
      '--process_count=auto', '--stopped_code=75']
  assert 'RL 1/4' in text and 'RL 1/4' in (gcloud / 'log').read_text()
  assert 'still exists' not in text


def test_who_is_asked_to_stop():
  """Python, and none of the shells around it."""
  job = gcloud_lib.Job(
      *'abcd', 'spot', False, None, local_files.Sent('', {}, ()))
  pattern = re.search("pkill -TERM -f '(.*?)'", ' '.join(gcloud_lib.stop(job)))
  asked = lambda line: bool(re.search(pattern[1], line))
  program = '/home/me/venv/bin/python -m jaxrl_llm.train --config=a.py'
  assert asked(program)
  assert not asked(f'bash -c cd jaxrl_llm && {program}')
  assert not asked(f'bash -c pkill -TERM -f {pattern[0]}')


def test_the_end_of_the_terminal_leaves_no_vm_behind(gcloud):
  process = start(gcloud, rules=[dict(when=RUN, sleep=300)])
  wait_for(gcloud, RUN)
  process.stdout.close()
  process.send_signal(signal.SIGHUP)
  assert process.wait(120) == 130
  assert calls(gcloud)[0][-2:] == ['stop', 'delete']


def test_more_signals_do_not_cut_the_end_short(gcloud):
  process = start(gcloud, rules=[
      dict(when=RUN, sleep=300), dict(when='pkill', sleep=1),
      dict(when='tpu-vm delete', sleep=1, state='READY')])
  wait_for(gcloud, RUN)
  for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
    process.send_signal(number)
    time.sleep(.4)
  code, text = done(process)
  assert code == 130 and 'job: deleted' in text
  assert calls(gcloud)[0][-2:] == ['stop', 'delete']


def test_nohup(gcloud):
  process = start(gcloud, rules=[dict(when=RUN, sleep=1)],
                  prefix=('nohup',))
  wait_for(gcloud, RUN)
  process.send_signal(signal.SIGHUP)
  assert done(process)[0] == 0
  assert 'stop' not in calls(gcloud)[0]


def test_one_launcher_of_a_name_at_a_time(gcloud):
  process = start(gcloud, rules=[dict(when=RUN, sleep=300)])
  wait_for(gcloud, RUN)
  code, text = run(gcloud)
  assert code == 1 and 'Another launcher is at work on job' in text
  assert len(text.splitlines()) == 1
  process.terminate()
  assert done(process)[0] == 130


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
  python = lambda *argv: subprocess.run(
      [sys.executable, *argv], cwd=devices.ROOT, capture_output=True, text=True,
      env={**os.environ, 'HOME': str(gcloud),
           'PATH': f'{gcloud}/bin:{os.environ["PATH"]}'})
  found = python(*unit)
  assert found.returncode == 0, found.stdout + found.stderr
  names, words = calls(gcloud)
  assert names.count('run') == 1 and '--spot' in words[1]
  assert 'files/xm-' in ' '.join(words[5])
  trials = python('-m', 'jaxrl_llm.launch.run', *rest, '--list').stdout
  assert json.loads(trials)[0]['finished']


@pytest.mark.parametrize('secret', [
    'hf_do not tell', 'hf_1', '{\n"private_key": "AAAA"\n}'])
def test_credentials_are_in_no_log(gcloud, secret):
  code, text = run(gcloud, '--env=HF_TOKEN', HF_TOKEN=secret, rules=[
      dict(when=RUN, say=f'the token is {secret}!')])
  assert code == 0 and ('the token is ***!' in text or '\n' in secret)
  names, words = calls(gcloud)
  assert names[3:6] == ['copy', 'copy', 'setup']
  for line in filter(lambda line: len(line) > 3, secret.splitlines()):
    assert line not in text
    for path in (gcloud / 'log', gcloud / 'calls'):
      assert line not in path.read_text()
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


def test_a_log_on_a_full_disk(gcloud):
  code, text = run(gcloud, '--log=/dev/full')
  assert code == 0 and 'The log ends here: No space left' in text
  assert 'job: deleted' in text


def test_the_config_and_its_files_arrive(sent, monkeypatch):
  """Modules of the user too, without a folder that an installed one hides."""
  here, run = sent
  for name in ('helper', 'named', 'inside/deep', 'other/far', 'found'):
    (here / f'{name}.py').parent.mkdir(exist_ok=True)
    (here / f'{name}.py').write_text('')
  (here / 'inside' / 'deep.py').write_text('import found')
  (here / 'db.json').write_text('{}')
  (here / 'numpy').mkdir()  # Python finds the installed one.
  (here / 'inside' / 'template.py').write_text('def {{ name }}(')
  monkeypatch.syspath_prepend(here / 'other')
  monkeypatch.syspath_prepend(here)
  (here / 'mine.py').write_text(
      'import importlib, inside.deep, far, numpy\n'
      'importlib.import_module("named")\n'
      'def reward(prompts, completions, **columns):\n  import helper\n'
      'def sharp(rewards, *, where):\n  return rewards\n')
  for name in ('train.jsonl', 'other.py'):
    (here / name).write_text('')
  (here / 'other.py').write_text(
      'from jaxrl_llm.configs.grpo import qwen3_1p7b_math\n'
      'def get_config():\n  c = qwen3_1p7b_math.get_config()\n'
      "  c.task.path = c.task.heldout = ('train.jsonl',)\n"
      "  c.task.reward = ('mine.py:reward',)\n"
      "  c.model.preset, c.model.hf = 'tiny', None\n  return c\n")
  names, config, words = run(
      f'--config={here}/other.py', f'--config.advantage={here}/mine.py:sharp',
      '--config.log.wandb=mine', '--setup=pip install more', '--send=db.json')
  there = f'files{here}'
  assert {'files/job.json', *(f'{there}/{name}' for name in (
      'mine.py', 'helper.py', 'named.py', 'inside/deep.py',
      'inside/template.py', 'train.jsonl', 'db.json'))} == {
          x for x in names if x.startswith('files')}
  # What Python finds elsewhere is in the folder of the program.
  assert {'far.py', 'found.py', 'db.json'} <= {*names}
  assert config['task.reward'] == [f'{there}/mine.py:reward']
  assert config['advantage'] == f'{there}/mine.py:sharp'
  assert config['task.path'] == [f'{there}/train.jsonl']
  assert config['workdir'] == f'{here}/run'
  setup, = (text for text in words if 'venv -q' in text)
  assert "-e '.[tpu,gcs,wandb]'; pip install more" in setup


def test_the_code_arrives_whole(sent):
  _, run = sent
  names, config, _ = run('--config.steps=7')
  assert {'setup.py', 'constraints.txt', 'jaxrl_llm/train.py',
          'configs/countdown.py'} <= set(names)
  assert not [name for name in names if name.startswith(('.venv', 'runs/'))]
  assert config['steps'] == 7


@pytest.mark.parametrize('override, said', [
    ('task.path=no.jsonl', 'There is no file'),
    ('task.path=no', 'There is no file'),
    ('task.reward=no.py:f', 'There is no file'),
    ('task.reward=json:nothing', 'has no function'),
    ('task.reward=exact', 'does not name a function'),
    ('task.path=.', 'is a folder'), ('task.path=data/there', 'no file'),
    ('task.template=no.txt', 'There is no file'),
    ('curriculum=no.py', 'There is no file'),
    ('model.hf=./no', 'there is no folder'),
    ('model.hf=no.gguf', 'there is no folder'),
    ('model.hf=runs/no/model', 'there is no folder')])
def test_a_missing_file_is_said_before_a_vm_is_made(
    gcloud, monkeypatch, override, said):
  (gcloud / 'data').mkdir()
  for name in ('there', 'data/there'):
    (gcloud / f'{name}.jsonl').touch()
  monkeypatch.chdir(gcloud)
  argv = [f'--config.{name}={gcloud}/there.jsonl' for name in (
      'task.path', 'task.heldout') if not override.startswith(name)]
  for more in ([], ['--dry_run']):
    code, text = run(
        gcloud, '--config=grpo/qwen3_1p7b_math', *argv,
        '--config.model.hf=none', f'--config.{override}', *more)
    assert code == 2 and said in text and calls(gcloud)[0] == []
    assert len(text.strip().splitlines()) == 1


def test_an_installed_package_has_no_checkout_to_send(gcloud, monkeypatch):
  monkeypatch.setattr(archive, 'ROOT', gcloud)
  code, text = run(gcloud)
  assert code == 2 and 'in a clone of the repository' in text
  assert calls(gcloud)[0] == []


def test_a_dry_run_calls_nothing(gcloud):
  code, text = run(gcloud, '--dry_run')
  assert code == 0 and calls(gcloud)[0] == []
  assert [line.split()[4] for line in text.splitlines() if line[0] != '#'] == [
      'create', 'describe', 'scp', 'ssh', 'ssh', 'delete', 'ssh']


def test_the_status_of_a_zone(gcloud):
  code, text = run(gcloud, '--status')
  assert code == 0 and calls(gcloud)[0] == ['list']
  assert 'v5litepod-8' in text and 'READY' in text


@pytest.mark.parametrize('argv, said', [
    (['--spot', '--reserved'], 'exclude each other'),
    (['--name=A b'], '--name=A b must be lower-case'),
    (['--env=NO_SUCH'], '--env=NO_SUCH is not in the environment'),
    (['--tries=0'], '--tries=0 must be at least 1'),
    (['--workdir=runs/a'], '--workdir=runs/a must be in a bucket'),
    (['--config.stepz=1'], 'stepz is not a field'),
    (['--type=v5litepod-33'], 'is none of v5litepod-1'),
    (['--config.mesh.data=4'], 'makes 4 devices, but there are 16')])
def test_mistakes_are_one_sentence(gcloud, argv, said):
  code, text = run(gcloud, *argv)
  assert code == 2 and said in text and calls(gcloud)[0] == []
  assert len(text.strip().splitlines()) == 1
