"""A stand-in for gcloud on PATH, and launches of tpu_pod.py with it."""

import contextlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import time
from unittest import mock

from jaxrl_llm.launch import tpu_pod
from tests.helpers import devices

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


def install(here: pathlib.Path) -> None:
  """Writes the stand-in to `here`/bin, and its notes to `here`."""
  file = here / 'bin' / 'gcloud'
  file.parent.mkdir()
  file.write_text(GCLOUD.format(python=sys.executable, here=str(here)))
  file.chmod(file.stat().st_mode | stat.S_IXUSR)
  (here / 'calls').touch()


def _prepared(here, argv, rules, env):
  """Writes the rules; returns the arguments and the environment."""
  (here / 'rules').write_text(json.dumps(list(rules)))
  return [
      '--name=job', '--zone=here', '--type=v5litepod-16',
      f'--config={devices.ROOT}/configs/countdown.py',
      f'--workdir={here}/run', f'--log={here}/log', '--backoff=.01', *argv], {
          'HOME': str(here), **env, 'PATH': f'{here}/bin:{os.environ["PATH"]}'}


def start(here, *argv, rules=(), prefix=(), **env):
  """Starts the launcher."""
  argv, env = _prepared(here, argv, rules, env)
  return subprocess.Popen(
      [*prefix, sys.executable, '-m', 'jaxrl_llm.launch.tpu_pod', *argv],
      cwd=devices.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True, env={**os.environ, **env})


def done(process, seconds=120):
  """Returns the exit code and the output of a started launcher."""
  text, _ = process.communicate(timeout=seconds)
  return process.returncode, text


def run(here, *argv, rules=(), **env):
  """Runs the launcher in this process; returns its exit code and output."""
  argv, env = _prepared(here, argv, rules, env)
  text = io.StringIO()
  with (mock.patch.dict(os.environ, env), contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text)):
    try:
      code = tpu_pod.main(argv)
    except SystemExit as end:
      code = end.code
  return code, text.getvalue()


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
