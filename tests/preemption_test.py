"""Tests that runs end well: asked to stop, killed, or stopped by the system."""

import pathlib
import random
import shutil
import signal
import time

import pytest

from jaxrl_llm import checkpoint
from jaxrl_llm.monitoring import metrics
from tests import resume_test
from tests.helpers import many

pytestmark = pytest.mark.processes  # They start runs.

# Most of the run is RL; the verifier of `tests.helpers.many` gives it a signal.
FIELDS = dict(
    steps=40, learner__updates=2, sft__steps=40,
    sft__cache='none', checkpoint__every=3, eval__every=4,
    curriculum='speed', speed__n_init=2, curriculum_prompts=10,
    selection='cbs', cbs__rounds=2, cbs__warmup=1, actor__lag=1, seed=3)


def same(a: pathlib.Path, b: pathlib.Path) -> None:
  """Compares two runs bit by bit."""
  assert many.rows(a) == many.rows(b)
  assert (a / 'run/samples.jsonl').read_text() == (
      b / 'run/samples.jsonl').read_text()
  assert resume_test.final_state(a / 'run') == resume_test.final_state(
      b / 'run')


@pytest.fixture(scope='module', name='whole')
def _whole(tmp_path_factory):
  """Folder of a run of two processes, its seconds, and compiled programs."""
  folder = tmp_path_factory.mktemp('whole')
  programs = folder / 'programs'
  for place in ('first', 'second'):  # the second finds compiled programs
    began = time.monotonic()
    many.finish(many.start(
        folder / place, FIELDS, count=2, programs=programs,
        module='tests.helpers.many'), folder / place)
  same(folder / 'first', folder / 'second')
  return folder / 'second', time.monotonic() - began, programs


def wait_for_the_first_line(folder, process):
  """Waits until a run can be asked to stop: until it writes its config."""
  file, began = folder / 'run' / 'config.json', time.time()
  while not file.exists() or file.stat().st_mtime < began:
    assert process.poll() is None and time.time() < began + 300, (
        many.said(folder, 0))
    time.sleep(.01)


@pytest.mark.slow
@pytest.mark.parametrize('gone', [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_gone_ends_the_other(tmp_path, whole, gone):
  """Ten times at random moments; then both again: to the bit."""
  folder, seconds, programs = whole
  run = dict(count=2, programs=programs, module='tests.helpers.many')
  moments = random.Random(time.time_ns())
  number = runs = 0
  while number < 10:
    place = tmp_path / str(runs)
    processes = many.start(
        place, {**FIELDS, 'processes__patience': 20}, stopped=75, **run)
    wait_for_the_first_line(place, processes[0])
    wait = moments.uniform(0, seconds * .6)
    time.sleep(wait)
    victim = number % 2
    over = processes[victim].poll() is not None
    if not over:
      processes[victim].send_signal(gone)
    began = time.monotonic()
    code = processes[1 - victim].wait(120)
    if not over:
      processes[victim].kill()
      processes[victim].wait()
    if code == 0:  # at most, the victim had to wait for the other's end
      same(place, folder)
      runs += 1
      continue
    print(f'{gone.name} of {victim} after {wait:.1f} s: the other ended after '
          f'{time.monotonic() - began:.1f} s with {code}')
    number += 1
    assert code == 75
    text = many.said(place, 1 - victim)
    sentence = (f'Process {victim} was killed' if gone == signal.SIGKILL else
                f'Process {victim} has not answered')
    assert sentence in text, text
    for log in place.glob('log-*.txt'):
      log.write_text('')
  many.finish(many.start(place, FIELDS, **run), place)
  same(place, folder)


@pytest.mark.slow
def test_asked_to_stop_at_any_moment(tmp_path, whole):
  """Twenty times, to one or both: they exit with 75; to the bit."""
  folder, seconds, programs = whole
  moments = random.Random(time.time_ns())
  asked = runs = 0
  while asked < 20:
    place = tmp_path / str(runs)
    runs += 1
    while not (place / 'run' / 'summary.json').exists():
      processes = many.start(
          place, FIELDS, count=2, programs=programs, stopped=75,
          module='tests.helpers.many')
      wait_for_the_first_line(place, processes[0])
      wait = moments.uniform(0, seconds / 2)
      time.sleep(wait)
      for process in processes[:moments.choice([1, 2])][
          ::moments.choice([1, -1])]:
        if process.poll() is None:
          process.send_signal(signal.SIGTERM)
      asked += 1
      many.finish(processes, place, 180, codes=(0, 75))
      done = (place / 'run' / 'summary.json').exists()
      assert [x.returncode for x in processes] == [0 if done else 75] * 2
      rows = metrics.read(place / 'run' / 'metrics.jsonl') if (
          place / 'run' / 'metrics.jsonl').exists() else []
      print(f'asked after {wait:.1f} s, {len(rows)} rows')
      for log in place.glob('log-*.txt'):
        log.write_text('')
    same(place, folder)
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize('full', [0, 1])
def test_a_full_disk_in_one_process_costs_only_checkpoints(tmp_path, full):
  """Its files may have 4 KB in steps 3 to 5; the others wait for 15 s."""
  many.finish(many.start(
      tmp_path, dict(
          steps=8, checkpoint__every=1, checkpoint__timeout=15,
          checkpoint__keep=9, eval__every=0), count=2, full=full,
      programs=tmp_path / 'programs', module='tests.helpers.many'), tmp_path)
  assert 'could not be written' in many.said(tmp_path, full)
  steps = checkpoint.whole_steps(tmp_path / 'run/checkpoints')
  assert {0, 1, 8} <= {*steps} and 4 not in steps


@pytest.mark.parametrize('number', [
    signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_one_process_is_asked_to_stop(tmp_path, number):
  """In the warm start; then it goes on from there, and ends as it should."""
  fields = dict(
      steps=1, sft__steps=900, sft__cache='none', eval__every=0)
  run = dict(programs=tmp_path / 'programs')
  process, = many.start(tmp_path, fields, stopped=75, **run)
  wait_for_the_first_line(tmp_path, process)
  process.send_signal(number)
  many.finish([process], tmp_path, 120, codes=[75])
  assert 'fine-tuning, which is saved' in many.said(tmp_path, 0)
  many.finish(many.start(tmp_path, fields, **run), tmp_path)
  assert (tmp_path / 'run' / 'summary.json').exists()
  assert not [*(tmp_path / 'run').glob('sft*')]
