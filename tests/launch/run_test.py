"""Tests of the local runner, with a small program instead of training."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxrl_llm.launch import results, run
from jaxrl_llm.monitoring import metrics as metrics_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]

CONFIG = '''
from jaxrl_llm import config

def get_config(arg=None):
  return config.base()

def get_hyper(hyper):
  return hyper.product([
      hyper.sweep('loss.clip_high', [0.2, 0.28]),
      hyper.sweep('seed', range(2))])
'''

# Counts to `steps`, one line of metrics a step, from where it was; seed 1
# fails in its first life.
PROGRAM = '''
import json, os, pathlib, sys, time
args = dict(arg.split('=', 1) for arg in sys.argv[1:])
folder = pathlib.Path(args['--config.workdir'])
seed, steps = int(args['--config.seed']), int(args['--config.steps'])
clip = float(args['--config.loss.clip_high'])
(folder / 'pid').write_text(str(os.getpid()))
metrics = folder / 'metrics.jsonl'
done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
print('from', done, flush=True)
for step in range(done, steps):
  with metrics.open('a') as f:
    value = clip + seed / 10 - (step == steps - 1) / 100
    f.write(json.dumps({'step': step + 1, 'eval/pass@1': value}) + '\\n')
  if seed == 1 and step == 1 and not done:
    sys.exit('out of luck')
  time.sleep(float(os.environ.get('PACE', 0)))
(folder / 'summary.json').write_text('{}')
'''


@pytest.fixture(name='here')
def _here(tmp_path):
  (tmp_path / 'small.py').write_text(CONFIG)
  (tmp_path / 'program.py').write_text(PROGRAM)
  return tmp_path


def arguments(here, *more, steps=3):
  return [
      f'--config={here}/small.py', f'--workdir={here}/runs',
      f'--program={sys.executable} {here}/program.py',
      f'--config.steps={steps}', *more]


def logs(here):
  return [
      (folder / 'log.txt').read_text().split('\n')[:-1]
      for folder in sorted((here / 'runs').glob('*/'))]


def test_dry_run_prints_the_commands_and_runs_nothing(here, capsys):
  assert run.main(arguments(here, '--sweep', '--dry_run')) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 4
  assert lines[1] == (
      f'{sys.executable} {here}/program.py --config={here}/small.py '
      '--config.steps=3 --config.loss.clip_high=0.2 --config.seed=1 '
      f'--config.workdir={here}/runs/001-clip_high=0.2,seed=1')
  assert not (here / 'runs').exists()


def test_the_program_that_sweeps(here, capsys, monkeypatch):
  monkeypatch.setattr(sys, 'argv', [
      'jaxrl-sweep', f'--config={here}/small.py', '--dry_run'])
  assert run.sweep() == 0
  assert len(capsys.readouterr().out.splitlines()) == 4


def test_failures_stop_nobody_and_are_tried_again(here, capsys):
  command = arguments(here, '--sweep', '--parallel=2')
  assert run.main(command) == 1
  out = capsys.readouterr().out
  assert '001-clip_high=0.2,seed=1: failed (1): out of luck' in out
  assert logs(here) == [
      ['from 0'], ['from 0', 'out of luck'], ['from 0'],
      ['from 0', 'out of luck']]
  assert run.main(command) == 0
  # The finished ones were left alone, the others went on from step 2.
  assert logs(here) == [
      ['from 0'], ['from 0', 'out of luck', 'from 2'], ['from 0'],
      ['from 0', 'out of luck', 'from 2']]
  # Another config is another trial: all are taken up again.
  assert run.main(arguments(here, '--sweep', steps=4)) == 0
  assert [log[-1] for log in logs(here)] == ['from 3'] * 4


def test_table(here):
  trials = run.plan(
      f'{here}/small.py', sweep=True, workdir=f'{here}/runs',
      overrides={}, program=['true'])
  for trial, values in zip(trials, ([.1, .5, .4], [.2], [], [.3])):
    trial.folder.mkdir(parents=True)
    (trial.folder / 'metrics.jsonl').write_text(''.join(
        json.dumps({'step': 2 * i, 'eval/pass@1': v, 'loss': 1.0}) + '\n'
        for i, v in enumerate(values)) + '{"step": 9, "eval/pa')
  rows = results.rows_of(
      [trial.fields for trial in trials],
      ['done', 'done', 'failed (1): out', 'done'],
      [metrics_lib.read(trial.folder / 'metrics.jsonl') for trial in trials],
      ['eval/pass@1', 'eval/other'])
  metric, best = 'eval/pass@1', 'eval/pass@1 best'
  assert rows[0] == {
      'trial': '0', 'loss.clip_high': '0.2', 'seed': '0', 'state': 'done',
      'step': '4', metric: '0.4', best: '0.5'}
  assert rows[2] == {
      'trial': '2', 'loss.clip_high': '0.28', 'seed': '0',
      'state': 'failed (1)', 'step': ''}
  # Means of .4, .2 and of .5, .2; deviations .2 / sqrt(2) and .3 / sqrt(2).
  assert rows[4] == {
      'trial': 'mean of 2', 'loss.clip_high': '0.2',
      metric: '0.3 ± 0.14', best: '0.35 ± 0.21'}


def test_the_table_names_doubtful_trials():
  cut = [{'step': i, 'response/truncated': .9} for i in range(30)]
  first, second = results.rows_of(
      [{}, {}], ['done', 'done'], [cut, cut[:3]], [])[:2]
  assert first['doubts'] == 'truncated' and 'doubts' not in second


def lines_of(trials):
  """Returns the table of trials with three metrics and their means."""
  metrics = {f'eval/{name}{best}': '0.3123' for name in (
      'pass@1', 'pass@8', 'greedy') for best in ('', ' best')}
  row = {'overlong.mode': 'none', 'optimizer.learning_rate': '1e-05'}
  return results.cells([
      *({'trial': str(i), **row, 'seed': str(i), 'state': 'done',
         'step': '200', **metrics} for i in range(trials)),
      {'trial': f'mean of {trials}', **row,
       **dict.fromkeys(metrics, '0.3123 ± 0.0123')}])


def test_the_table_has_short_names_and_cuts_nothing_at_80_columns(
    monkeypatch, capsys):
  lines = lines_of(3)
  assert lines[0] == [
      'trial', 'mode', 'learning_rate', 'seed', 'state', 'step', 'pass@1',
      'pass@1 best', 'pass@8', 'pass@8 best', 'greedy', 'greedy best']
  for width, heads in ((200, 1), (80, 2)):
    monkeypatch.setenv('COLUMNS', str(width))
    results.show_table(lines)
    out = capsys.readouterr().out
    assert '…' not in out and max(map(len, out.splitlines())) <= width
    assert out.count('trial') == heads
    assert out.count('0.3123') == 3 * 6 + 6 and out.count('0.0123') == 6
  names = ['steps', 'sft.steps', 'eval/a', 'train/a', 'b']
  assert results.short(names) == names


def test_a_sweep_leaves_its_table_and_names_what_nobody_measured(here, capsys):
  command = arguments(
      here, '--sweep', '--parallel=2', '--metrics=eval/pass@1,eval/pas@8')
  assert run.main(command) == 1
  assert run.main(command) == 0
  note = ('No trial has measured eval/pas@8: choose with --metrics, for '
          'example eval/pass@1.')
  file = here / 'runs' / 'sweep.md'
  out = capsys.readouterr().out.splitlines()
  assert out[-2:] == [note, f'Written to {file}.']
  lines = file.read_text().splitlines()
  assert lines[0] == (
      '| trial | clip_high | seed | state | step | pass@1 | pass@1 best |')
  # Step 3 of seed 0: .2 - .01; the best is .2.
  assert lines[2] == '| 0 | 0.2 | 0 | done | 3 | 0.19 | 0.2 |'
  assert lines[-1] == note


def test_damaged_metrics_are_named_and_cost_no_trial(here, capsys):
  command = arguments(
      here, '--config.seed=0', '--config.loss.clip_high=.3')
  assert run.main(command) == 0
  file, = (here / 'runs').glob('*/metrics.jsonl')
  file.write_text('???\n' + file.read_text())
  assert run.main(command) == 1
  out = capsys.readouterr().out.splitlines()
  assert out[-1] == f'{file}:1 is not JSON; remove the line.'
  assert logs(here) == [['from 0']]


def test_table_leaves_out_what_all_trials_share(here, capsys):
  assert run.main(arguments(here, '--config.seed=0',
                            '--config.loss.clip_high=.3')) == 0
  out = capsys.readouterr().out
  assert 'clip_high' not in out.split('done')[-2].split('trial')[-1]
  assert '0.29' in out and '0.3' in out  # last and best


@pytest.mark.parametrize('more,words', [
    (['--sweep', '--config.seed=3'], 'seed is set for each trial'),
    (['--config.workdir=x'], 'workdir is set for each trial'),
    (['--config.lr=3'], 'use optimizer.learning_rate'),
    (['--config.samples_per_prompt=1'], 'samples_per_prompt=1'),
    (['--parallell=3'], '--parallell=3 is not understood'),
])
def test_mistakes_are_refused_before_anything_runs(here, capsys, more, words):
  with pytest.raises(SystemExit) as stop:
    run.main(arguments(here, *more))
  assert stop.value.code == 2
  assert words in capsys.readouterr().err
  assert not (here / 'runs').exists()


@pytest.mark.parametrize('code, said', [
    ('', 'has no function get_hyper'),
    ('get_hyper = 3', 'has no function get_hyper'),
    ('def get_hyper(hyper):\n  return hyper.sweeep()', 'line 8.'),
    ('import sys\ndef get_hyper(hyper):\n  sys.exit(0)', 'line 9.'),
    ('def get_hyper(hyper):\n  return []', 'gives no trials'),
    ('def get_hyper(hyper):\n  return [{1: 2}]', 'gives no trials'),
    ('def get_hyper(hyper):\n  return {"seed": [1]}', 'gives no trials'),
])
def test_a_config_without_a_sweep_is_refused(here, capsys, code, said):
  file = here / 'small.py'
  file.write_text(CONFIG.split('def get_hyper')[0] + code)
  with pytest.raises(SystemExit) as stop:
    run.main(arguments(here, '--sweep'))
  err = capsys.readouterr().err
  assert stop.value.code == 2 and err.count('\n') == 1
  assert said in err and 'small.py' in err


def alive(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True


def start_slowly(here, *more, **options):
  """Starts the runner on four slow trials; returns when two of them run."""
  runner = subprocess.Popen(
      [sys.executable, 'launch/run.py',
       *arguments(here, '--sweep', '--parallel=2', *more, steps=1000)],
      **options, cwd=ROOT, stdout=subprocess.PIPE, text=True,
      env={**os.environ, 'PACE': '.1', 'PYTHONPATH': str(ROOT)},
      # What a shell runs in the background inherits an ignored SIGINT.
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
  files = [here / 'runs' / f'{name}' / 'metrics.jsonl' for name in (
      '000-clip_high=0.2,seed=0', '002-clip_high=0.28,seed=0')]
  deadline = time.monotonic() + 60
  while not all(file.exists() for file in files):
    assert time.monotonic() < deadline and runner.poll() is None
    time.sleep(0.05)
  return runner, [int((f.parent / 'pid').read_text()) for f in files]


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_runner_takes_its_trials_with_it(here, number):
  runner, pids = start_slowly(here)
  assert all(map(alive, pids))
  runner.send_signal(number)
  out, _ = runner.communicate(timeout=30)
  assert runner.returncode == 130
  assert 'the same command continues' in out
  assert not any(map(alive, pids))


def test_an_attached_runner_ends_with_its_launcher(here):
  """Its standard input is a pipe that ends when the launcher dies."""
  launcher = subprocess.Popen(['cat'], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
  runner, pids = start_slowly(here, '--attached', stdin=launcher.stdout)
  launcher.stdout.close()  # The runner alone reads it now.
  assert all(map(alive, pids)) and runner.poll() is None
  launcher.kill()
  launcher.communicate()
  out, _ = runner.communicate(timeout=30)
  assert runner.returncode == 130 and 'Interrupted' not in out
  assert not any(map(alive, pids))
  # A launcher that is gone before the runner looks: nothing starts.
  late = subprocess.run(
      [sys.executable, 'launch/run.py',
       *arguments(here, '--trial=0', '--config.seed=0', '--attached')],
      cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)},
      stdin=subprocess.DEVNULL, timeout=60)
  assert late.returncode == 130 and not (here / 'runs' / '000').exists()


def planned(here, *, steps, program='true'):
  return run.plan(
      f'{here}/small.py', sweep=True, workdir=f'{here}/runs',
      overrides={'steps': str(steps)}, program=[program])


@pytest.mark.parametrize('program, said', [
    ('/no/such', '/no/such cannot be used (No such file or directory): '
     'correct --program.'),
    ('true', 'cannot be used (File exists): check that path, or choose '
     'another --workdir.')])
def test_a_trial_that_cannot_start_stops_nobody(here, program, said):
  trials = planned(here, steps=3, program=program)
  trials[1].folder.parent.mkdir()
  trials[1].folder.write_text('')  # a file in place of its folder
  states = run.run(trials, parallel=1)
  assert all(state.startswith('failed') for state in states)
  assert states[1 if program == 'true' else 0].endswith(said)
  assert states[3] == ('failed (0): no output' if program == 'true' else
                       f'failed: {said}')


def test_a_bucket_that_does_not_answer_is_one_sentence(
    here, monkeypatch, capsys):
  def reachable(path):
    raise OSError(f'{path} did not answer.')

  monkeypatch.setattr(run.paths, 'reachable', reachable)
  for more in ([], ['--list'], ['--dry_run']):
    with pytest.raises(SystemExit) as stop:
      run.main(arguments(here, *more, '--workdir=gs://none/runs'))
    assert stop.value.code == 2
    assert capsys.readouterr() == ('', 'gs://none/runs did not answer.\n')


def test_the_summary_of_another_config_finishes_no_trial(here, monkeypatch):
  """A runner whose program is refused leaves the other's notes alone.

  In a bucket, runners on two hosts do not see each other's log.txt.
  """
  first, second = planned(here, steps=3)[0], planned(here, steps=4)[0]
  assert first.folder == second.folder
  done = ['sh', '-c', f"sleep 1; touch '{first.folder}/summary.json'"]
  process = run.start(first._replace(command=done))
  monkeypatch.setattr(run.Trial, 'logs', here)
  refused, = run.run(
      [second._replace(command=['sh', '-c', 'echo busy; exit 1'])], 1)
  monkeypatch.undo()
  assert refused == 'failed (1): busy'
  assert process.wait() == 0
  assert not second.finished
  assert run.run([first._replace(command=done)], 1) == ['done']
  assert first.finished and not second.finished


def test_the_training_programs_own_note_counts(here):
  """It finishes a trial whose runner was killed; so do earlier notes."""
  trial, other = planned(here, steps=3)[:2]
  trial.folder.mkdir(parents=True)
  for name in ('config.json', 'trial.json'):
    note = trial.folder / name
    note.write_text(trial.config)
    assert not trial.finished
    (trial.folder / 'summary.json').touch()
    assert trial.finished
    note.write_text(other.config)
    assert not trial.finished
    note.unlink()
    (trial.folder / 'summary.json').unlink()


def test_a_killed_runner_leaves_trials_that_nobody_starts_twice(here, capsys):
  runner, pids = start_slowly(here)
  runner.kill()
  runner.communicate()
  trials = run.plan(
      f'{here}/small.py', sweep=True, workdir=f'{here}/runs',
      overrides={'steps': '2'},
      program=[sys.executable, f'{here}/program.py'])
  states = run.run(trials, parallel=4)
  busy = 'another process is running it'
  assert states == [busy, 'done', busy, 'failed (1): out of luck']
  assert all(map(alive, pids))
  for pid in pids:
    os.kill(pid, signal.SIGKILL)
  while any(map(alive, pids)):
    time.sleep(0.05)
  assert run.run(trials, parallel=4) == ['done'] * 4
  capsys.readouterr()
