"""Tests of the live display, the plain display, and the table at the end."""

import io
import logging as std_logging
import time

from absl import logging
import pytest
from rich.console import Console

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


def test_plain_output_is_some_lines_per_phase():
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with display.phase('RL', 200, done=50):
      for done in range(51, 201):
        display.update(done, {'reward/mean': done / 200, 'other': 1.0})
    display.note('[the end]')
  lines = out.getvalue().splitlines()
  assert lines[-1] == '[the end]'
  assert [line.split()[1] for line in lines[:-1]] == [
      f'{done}/200' for done in range(60, 201, 10)]
  assert lines[0].startswith('RL 60/200  0:00, 0:0')
  assert lines[-2].endswith('0:00 left  reward 1.000')


def test_nothing_is_shown_if_not_asked():
  for terminal in (True, False):
    out, console = capture(terminal)
    with progress.Display('run', show=False, console=console) as display:
      with display.phase('RL', 2):
        display.update(1, {'reward/mean': 1.0})
        display.note('a note')
    assert out.getvalue() == ''


def test_time_left(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with display.phase('RL', 20, done=10):  # 2 steps in 60 s, 8 to go
      now[0] += 60
      display.update(12, {})
    with display.phase('evaluation'):
      now[0] += 3725
      display.update(0, {'eval/pass@1': 0.5})
  assert out.getvalue().splitlines() == [
      'RL 12/20  1:00, 4:00 left', 'evaluation 1:02:05  held-out pass@1 0.500']


ROW = {'reward/mean': 0.25, 'reward/pass@1': 0.25, 'eval/pass@1': 0.5625,
       'update/entropy': 1.234, 'response/length': 1000.5,
       'speed/tokens_per_second': 12345.0, 'seconds/step': 10.25}


@pytest.mark.parametrize('name', ['x', 'evaluation of runs/countdown/' * 3])
def test_a_narrow_terminal_shows_three_lines_and_cuts_no_figure(name):
  _, console = capture(True, 80)
  display = progress.Display(name, console=console)
  with display.phase('responses', 1000, done=0):
    display.update(500, ROW, 'a response ' * 20)
    lines = frame(display, 80)
  assert len(lines) == 3 and all(len(line) <= 80 for line in lines)
  assert lines[0].startswith(name[:10])
  assert lines[0].endswith('500/1000  0:00, 0:00 left')
  assert lines[1] == (
      'reward 0.250  pass@1 0.250  held-out pass@1 0.562  entropy 1.234  '
      'length 1000.5')
  _, wide = capture(True, 200)
  display = progress.Display(name, console=wide)
  display.update(500, ROW)
  assert frame(display, 200)[1].endswith('tokens/s 12,345  s/step 10.25')


def test_truncated_responses_show_above_one_in_twenty():
  out, console = capture(False)
  with progress.Display('run', console=console) as display:
    with display.phase('RL', 3):
      for done, share in enumerate((0.3, 0.05, 0.051), 1):
        display.update(done, {'response/truncated': share})
  assert [line.partition('left')[2].strip()
          for line in out.getvalue().splitlines()] == [
              'truncated 30%', '', 'truncated 5%']


def test_the_last_frame_is_the_end_of_the_run():
  out, console = capture(True)
  with progress.Display('run', console=console) as display:
    for name in ('warm start', 'RL'):
      with display.phase(name, 4):
        display.update(4, {'reward/mean': 0.75})
        with display.phase('evaluation'):
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
    with display.phase('RL', 10):
      display.update(
          3, {'reward/mean': 0.25, 'seconds/step': 0.5}, '9,7>2: [9-7]=2')
      display._live.refresh()
      with display.phase('evaluation', 5):
        display._live.refresh()
      logging.warning('the disk is full')
      display._live.refresh()
  logging.warning('after the display')
  text = out.getvalue()
  for part in ('countdown', 'RL', '3/10', 'reward 0.250', 's/step 0.50',
               '9,7>2: [9-7]=2', 'evaluation', '0/5', 'the disk is full'):
    assert part in text
  assert 'after the display' not in text
  assert text.rindex('3/10') > text.index('0/5')  # back in the outer phase
  assert stderr_handler.stream is plain


def test_a_step_pays_next_to_nothing():
  """Host time of a display on a terminal, as a share of 150 ms steps."""
  row = {name: 1.0 for name, _, _ in progress.NUMBERS}
  _, console = capture(True)
  with progress.Display('run', console=console) as display:
    with display.phase('RL', 12):
      display._live.refresh()
      start = time.process_time()
      for done in range(12):
        time.sleep(0.15)
        display.update(done, row, 'a response')
      spent = time.process_time() - start
  assert spent < 0.05 * 12 * 0.15


@pytest.mark.parametrize('seconds, text', [
    (0, '0:00'), (59.6, '1:00'), (3599, '59:59'), (7231, '2:00:31')])
def test_clock(seconds, text):
  assert progress._clock(seconds) == text


def test_results():
  before = {'pass@1': .25, 'pass@1_error': .01, 'pass@8': .5, 'mean@8': .25,
            'greedy': .3, 'problems': 500, 'failed': 0.0}
  after = {**before, 'pass@1': .625, 'greedy': .25}
  out, console = capture(False)
  console.print(progress.results(before, after))
  rows = [[cell.strip() for cell in line.strip('│').split('│')]
          for line in out.getvalue().splitlines() if line.startswith('│')]
  assert rows == [
      ['pass@1', '0.250 ± 0.010', '0.625 ± 0.010', '+0.375'],
      ['pass@8', '0.500', '0.500', '+0.000'],
      ['greedy', '0.300', '0.250', '-0.050']]
