"""Tests of the live display, the plain display, and the table at the end."""

import io
import logging as std_logging
import time
import types

from absl import logging
import pytest
from rich import cells
from rich.console import Console

from jaxrl_llm.base import phases
from jaxrl_llm.monitoring import progress


def capture(terminal, width=100):
  out = io.StringIO()
  return out, Console(file=out, force_terminal=terminal, width=width,
                      color_system=None)


def frame(display, width):
  """Returns the lines that a display would show now on a terminal."""
  out, console = capture(False, width)
  console.print(display._render())
  return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.fixture(name='now')
def fixture_now(monkeypatch):
  """A clock that stands still, as a list of its time."""
  now = [100.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  return now


@pytest.fixture(name='due')
def fixture_due(monkeypatch):
  """Lets a test look whether a line is due, in place of a thread."""
  monkeypatch.setattr(progress.Display, '_print_when_due', lambda self: None)
  return progress.Display._print_if_due


def test_plain_output_is_some_lines_per_phase():
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 200, 'steps', done=50):
      for done in range(51, 201):
        display.update(done, {'reward/mean': done / 200, 'other': 1.0})
    display.note('[the end]')
  lines = out.getvalue().splitlines()
  assert lines[-1] == '[the end]'
  assert [line.split()[1] for line in lines[:-1]] == [
      f'{done}/200' for done in range(60, 201, 10)]
  assert lines[0].startswith('RL 60/200 steps  0:00, 0:0')
  assert lines[-2].endswith('0:00 left  reward 1.000')


def test_remarks_stand_behind_their_metrics():
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 2, 'steps'):
      display.update(1, {'reward/mean': .5, 'eval/pass@1': .25}, '', {
          'eval/pass@1': 'from 0.125', 'seconds/step': 'not in this row'})
      display.update(2, {'reward/mean': .75}, '', {'eval/pass@1': 'not now'})
  assert out.getvalue().splitlines()[-1].endswith(
      'reward 0.750  held-out pass@1 0.250 (from 0.125)')


def test_nothing_is_shown_if_not_asked(now, due):
  for terminal in (True, False):
    out, console = capture(terminal)
    with progress.Display('run', show=False, console=console) as display:
      with phases.phase('RL', 2):
        display.update(1, {'reward/mean': 1.0})
        display.note('a note')
        display.say('a line')
        now[0] += 60
        due(display)
    assert out.getvalue() == ''


def test_time_left(now):
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 20, done=10):  # 2 steps in 60 s, 8 to go
      now[0] += 60
      display.update(12, {})
    with phases.phase('evaluation'):
      now[0] += 3725
      display.update(0, {'eval/pass@1': 0.5})
  assert out.getvalue().splitlines() == [
      'RL 12/20  1:00, 4:00 left', 'evaluation 1:02:05  held-out pass@1 0.500']


@pytest.mark.parametrize('brief', [False, True])
def test_silence_lasts_no_longer_than_half_a_minute(now, due, brief):
  out, console = capture(False)
  lines = lambda: out.getvalue().splitlines()
  with progress.Display('run', brief=brief, console=console) as display:
    def wait(seconds):
      for _ in range(seconds):
        now[0] += 1
        due(display)

    wait(4)
    assert not lines()
    with phases.phase('evaluation', 64, 'responses') as phase:
      wait(4)
      with phases.phase('compiling sampler (3 of 6)', apart=True):
        wait(5)
        assert lines() == [
            'evaluation 0/64 responses  0:09 > '
            'compiling sampler (3 of 6) 0:05']
        wait(29)
        assert len(lines()) == 1
        wait(1)
        assert lines()[1:] == [
            'evaluation 0/64 responses  0:39 > '
            'compiling sampler (3 of 6) 0:35']
      wait(1)  # The first line of this phase, which took more than 5 s.
      phase.count(16)
      wait(30)
      assert lines()[2:] == [
          'evaluation 0/64 responses  0:40',
          'evaluation 16/64 responses  1:10, 0:00 left']
    # Phases that have had their lines do not get another one so soon.
    with phases.phase('evaluation', 64, 'responses'):
      wait(20)
  assert len(lines()) == 4


def test_a_thread_prints_what_is_due(now):
  out, console = capture(False)
  display = progress.Display('run', console=console)
  display._closed = types.SimpleNamespace(  # does not wait for a second
      wait=lambda seconds: bool(out.getvalue()), set=lambda: None)
  with display:
    now[0] += 6
    display._watch.join(timeout=60)
  assert out.getvalue() == 'preparing 0:06\n'


def test_a_brief_display_prints_neither_notes_nor_steps():
  for terminal in (False, True):
    out, console = capture(terminal)
    with progress.Display('run', brief=True, console=console) as display:
      display.say('run, in a folder')
      display.note('a table')
      with phases.phase('RL', 2):
        display.update(1, {'reward/mean': 1.0})
    assert out.getvalue() == 'run, in a folder\n'


def test_a_line_has_the_counted_phases_and_the_innermost_one(now, due):
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 400, 'steps'):
      display.update(1, {'sft/loss': 0.5})
      with phases.phase('verify'), phases.phase('verification', 8, 'responses'):
        now[0] += 5
        due(display)
      with phases.phase('update'), phases.phase('optimiser steps', 1):
        with phases.phase('compiling update'):
          now[0] += 30
          due(display)
  assert out.getvalue().splitlines() == [
      'RL 1/400 steps  0:05, 0:00 left > verification 0/8 responses  0:05'
      '  loss 0.500',
      'RL 1/400 steps  0:35, 0:00 left > compiling update 0:30  loss 0.500']


ROW = {'reward/mean': 0.25, 'reward/pass@1': 0.25, 'eval/pass@1': 0.5625,
       'update/entropy': 1.234, 'response/length': 1000.5,
       'speed/tokens_per_second': 12345.0, 'seconds/step': 10.25}


@pytest.mark.parametrize('name', ['x', 'evaluation of runs/countdown/' * 3])
def test_a_narrow_terminal_cuts_no_figure(name):
  _, console = capture(True, 80)
  with progress.Display(name, console=console) as display:
    with phases.phase('responses', 1000, done=0):
      display.update(500, ROW, 'a problem ' * 20 + '\n' + 'a response ' * 20)
      lines = frame(display, 80)
  assert len(lines) == 4 and all(len(line) <= 80 for line in lines)
  assert lines[0].startswith(name[:10])
  assert lines[0].endswith('500/1000  0:00, 0:00 left')
  assert lines[1] == (
      'reward 0.250  pass@1 0.250  held-out pass@1 0.562  entropy 1.234  '
      'length 1000.5')
  _, wide = capture(True, 200)
  with progress.Display(name, console=wide) as display:
    display.update(500, ROW)
    assert frame(display, 200)[1].endswith('tokens/s 12,345  s/step 10.25')


@pytest.mark.parametrize('width', [20, 40])
def test_no_line_is_longer_than_the_terminal_is_wide(width):
  """Wide characters take two places; what gives way is the run's name."""
  _, console = capture(True, width)
  with progress.Display('很' * 60, console=console) as display:
    with phases.phase('RL', 200):
      display.update(50, {'reward/mean': 0.25}, 'a problem ' * 9)
      with phases.phase('a phase of a long name ' * 3) as phase:
        phase.start -= 2
        lines = frame(display, width)
  assert len(lines) == 4 and '50/200' in lines[0]
  assert all(cells.cell_len(line) <= width for line in lines)


def test_a_step_that_trains_on_nothing_says_so():
  """A loss that is not finite is another thing, and stays seen."""
  nan = float('nan')
  _, console = capture(True, 80)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 4):
      shown = []
      for step, (tokens, loss) in enumerate((
          (nan, nan), (50.0, .5), (0.0, nan), (50.0, nan)), 1):
        display.update(step, {
            'update/processed': tokens, 'update/loss': loss,
            'update/entropy': loss})
        shown.append(frame(display, 80)[1])
  assert shown == ['entropy none  update none', 'entropy 0.500',
                   'entropy none  update none', 'entropy nan']


def test_a_sample_shows_both_ends_of_problem_and_response():
  """The question of a problem and the answer of a response come last."""
  record = dict(
      prompt='Natalia sold clips.\nHow many? ' + '很' * 100 + ' In all?',
      response='She sold 48. ' * 20 + 'So 72.', verdict='correct')
  sample = progress.sample_lines([record, {**record, 'prompt': 'other'}])
  _, console = capture(True, 60)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 2):
      display.update(1, {}, sample)
      problem, response = frame(display, 60)[-2:]
  for line in (problem, response):
    assert cells.cell_len(line) in (59, 60)  # wide characters take two
  assert problem.startswith('Natalia sold clips. How')
  assert problem.endswith(' In all?') and ' … ' in problem
  assert response.startswith('She sold 48.')
  assert response.endswith('So 72.  [correct]') and ' … ' in response
  assert progress.sample_lines([]) == ''


def test_a_terminal_shows_what_takes_long_within_the_run(now):
  _, console = capture(True, 100)
  with progress.Display('run', console=console) as display:
    assert 'preparing' in frame(display, 100)[0]
    with phases.phase('RL', 2, 'steps'):
      display.update(1, {'sft/loss': 1.0})
      with phases.phase('update'), phases.phase('optimiser steps', 4):
        with phases.phase('compiling update (5 of 5)', apart=True):
          now[0] += 0.5
          assert len(frame(display, 100)) == 2
          now[0] += 61
          assert frame(display, 100)[1:] == [
              '  optimiser steps  0/4  1:02',
              '  compiling update (5 of 5)  1:02', 'loss 1.000']


def test_truncated_responses_show_above_one_in_twenty():
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 3):
      for done, share in enumerate((0.3, 0.05, 0.051), 1):
        display.update(done, {'response/truncated': share})
  assert [line.partition('left')[2].strip()
          for line in out.getvalue().splitlines()] == [
              'truncated 30%', '', 'truncated 5%']


def test_the_last_frame_is_the_end_of_the_run():
  out, console = capture(True)
  with progress.Display('run', console=console) as display:
    for name in ('warm start', 'RL'):
      with phases.phase(name, 4):
        display.update(4, {'reward/mean': 0.75})
        with phases.phase('evaluation'):
          display._live.refresh()
  # The last line of each kind, and nothing after it that erases it.
  last = out.getvalue().rpartition('run')[2]
  assert 'RL' in last and '4/4' in last and 'reward 0.750' in last
  assert '\x1b[2K' not in last and '\x1b[1A' not in last


@pytest.fixture
def stderr_handler():
  """Log handler as made by logging.basicConfig."""
  handler = std_logging.StreamHandler()
  std_logging.getLogger().addHandler(handler)
  yield handler
  std_logging.getLogger().removeHandler(handler)


def test_live_display_shows_the_run_and_lets_warnings_through(stderr_handler):
  plain = stderr_handler.stream
  out, console = capture(True)
  with progress.Display('countdown', console=console) as display:
    with phases.phase('RL', 10):
      display.update(
          3, {'reward/mean': 0.25, 'seconds/step': 0.5}, '9,7>2: [9-7]=2')
      display._live.refresh()
      with phases.phase('evaluation', 5) as phase:
        phase.start -= 2
        display._live.refresh()
      logging.warning('the disk is full')
      display._live.refresh()
  logging.warning('after the display')
  text = out.getvalue()
  for part in ('countdown', 'RL', '3/10', 'reward 0.250', 's/step 0.50',
               '9,7>2: [9-7]=2', 'evaluation', '0/5', 'the disk is full'):
    assert part in text
  assert 'after the display' not in text
  last = text.rpartition('countdown')[2]
  assert '3/10' in last and '0/5' not in last  # back in the outer phase
  assert stderr_handler.stream is plain


def test_a_terminal_that_went_away_ends_the_display_alone():
  class Gone(io.StringIO):
    gone = False

    def write(self, text):
      if self.gone:
        raise OSError(5, 'Input/output error')
      return super().write(text)

  out = Gone()
  console = Console(file=out, force_terminal=True)
  with progress.Display('countdown', console=console) as display:
    display.update(1, {})
    out.gone = True
  assert not display._show


def test_a_step_pays_next_to_nothing():
  """Host time of a display on a terminal, as a share of 150 ms steps."""
  row = {name: 1.0 for name, _, _ in progress.NUMBERS}
  _, console = capture(True)
  with progress.Display('run', console=console) as display:
    with phases.phase('RL', 12):
      display._live.refresh()
      start = time.process_time()
      for done in range(12):
        time.sleep(0.15)
        display.update(done, row, 'a response')
      spent = time.process_time() - start
  assert spent < 0.05 * 12 * 0.15


def test_results():
  before = {'pass@1': .25, 'pass@1_error': .01, 'pass@8': .5, 'mean@8': .25,
            'greedy': .3, 'problems': 500, 'failed': 0.0,
            'a_b/pass@1': .5, 'a_b/pass@1_error': .25, 'a_b/mean': .5}
  after = {**before, 'pass@1': .625, 'greedy': .25}
  out, console = capture(False)
  console.print(progress.results(before, after))
  rows = [[cell.strip() for cell in line.strip('│').split('│')]
          for line in out.getvalue().splitlines() if line.startswith('│')]
  assert rows == [
      ['pass@1', '0.250 ± 0.010', '0.625 ± 0.010', '+0.375'],
      ['pass@8', '0.500', '0.500', '+0.000'],
      ['greedy', '0.300', '0.250', '-0.050'],
      ['a_b/pass@1', '0.500 ± 0.250', '0.500 ± 0.250', '+0.000']]


def record(sample, **changes):
  return dict(
      step=7, group=3, sample=sample, prompt='<|user|>\n1 + 1?', reward=.5,
      verdict='wrong', response=f'It is [b]{sample}[/b].\n\x1b[31m') | changes


def printed(records, width=80):
  out, console = capture(False, width)
  with progress.Display('run', console=console) as display:
    display.show(progress.completions(records))
  return [line.rstrip() for line in out.getvalue().splitlines()]


def test_completions_are_a_table():
  lines = printed([record(0), record(1, reward=None, advantage=-.512),
                   record(0, group=4)])
  assert lines[0] == 'step 7: <|user|> 1 + 1?'
  assert lines[1].split() == ['reward', 'advantage', 'verdict', 'response']
  # Markup and control characters of a response have no effect.
  assert [line.split(maxsplit=3) for line in lines[3:5]] == [
      ['0.5', '-', 'wrong', 'It is [b]0[/b]. [31m'],
      ['-', '-0.51', 'wrong', 'It is [b]1[/b]. [31m']]
  assert len(lines) == 5


def test_completions_are_cut():
  lines = printed([
      record(i, response='begin ' + 'x' * 9999 + ' end') for i in range(11)])
  text = ''.join(lines)
  assert text.count('begin') == text.count('end') == 8
  assert len(lines) < 60 and all(len(line) <= 80 for line in lines)
  assert lines[-1].strip() == '3 more in samples.jsonl'


def test_a_brief_display_shows_no_table():
  out, console = capture(False)
  with progress.Display('run', console=console, brief=True) as display:
    display.show(progress.completions([record(0)]))
  assert not out.getvalue()
