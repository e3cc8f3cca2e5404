"""Tests of phases: their counts, the time left, and how they end."""

import threading

import pytest

from jaxrl_llm.base import phases


@pytest.fixture(name='now')
def fixture_now(monkeypatch):
  """A clock that stands still, as a list of its time."""
  now = [100.0]
  monkeypatch.setattr(phases.time, 'monotonic', lambda: now[0])
  return now


def names():
  return [phase.name for phase in phases.running()]


def test_a_phase_counts_and_tells_the_time_left(now):
  with phases.phase('loading', 290, 'tensors') as phase:
    now[0] += 5
    assert phase.counts() == '0/290 tensors  0:05'  # No pace is known yet.
    phase.count(10)
    now[0] += 5
    # 10 in the first 5 s; of the 140 s after them, 5 have passed.
    assert phase.counts() == '10/290 tensors  0:10, 2:15 left'
    phase.count(289)
    phase.count()
    assert phase.counts() == '290/290 tensors  0:10, 0:00 left'


def test_time_left_counts_from_what_was_done_before(now):
  with phases.phase('RL', 100, 'steps', done=90) as phase:
    now[0] += 20
    phase.count(92)
    assert phase.counts() == '92/100 steps  0:20, 1:20 left'


def test_time_left_at_the_pace_of_the_phase_before(now):
  with phases.phase('RL'):
    with phases.phase('sample', 32, 'responses'):  # one call, not counted
      now[0] += 16
    with phases.phase('reshard'):
      now[0] += 3
    with phases.phase('sample', 64, 'responses') as phase:
      now[0] += 2
      assert phase.counts() == '0/64 responses  0:02, 0:30 left'
      now[0] += 60
      assert phase.counts() == '0/64 responses  1:02, 0:00 left'
    with phases.phase('reshard') as phase:
      now[0] += 1
      assert phase.counts() == '0:01, 0:02 left'
  # Another run has another pace.
  with phases.phase('RL'), phases.phase('reshard') as phase:
    assert phase.left() is None


def test_the_pace_of_a_phase_of_the_same_size_comes_first(now):
  with phases.phase('evaluation'):
    for total in (32, 4):  # Either call fills some of the slots.
      with phases.phase('sampling', total):
        now[0] += 16
    assert [phases.begin('sampling', total).left() for total in (32, 4, 8)] == [
        16, 16, 32]


def test_work_that_failed_has_no_pace(now):
  with phases.phase('run'):
    with pytest.raises(OSError), phases.phase('saving'):
      now[0] += 3
      raise OSError
    with phases.phase('saving') as phase:
      assert phase.left() is None


def test_what_is_done_once_is_no_part_of_the_pace(now):
  with phases.phase('RL', 10, 'steps') as steps:
    with phases.phase('update'):
      with phases.phase('compiling update', apart=True):
        now[0] += 60
      now[0] += 2
    steps.count()
    assert steps.counts() == '1/10 steps  1:02, 0:18 left'
    with phases.phase('update') as update:
      assert update.left() == 2
    # Between two counts as well.
    with phases.phase('compiling score', apart=True):
      now[0] += 7
    now[0] += 1
    assert steps.left() == 17


def test_a_phase_without_a_known_total_counts_too():
  with phases.phase('run'):
    rows = phases.counted(iter('abc'), 'reading', 'rows')
    assert [next(rows), next(rows)] == ['a', 'b']
    assert phases.running()[-1].counts() == '1 rows  0:00'


def test_counted_items_are_done_when_the_next_one_is_asked_for():
  seen = []
  with phases.phase('run'):
    for item in phases.counted('abc', 'verification', 'responses'):
      phase = phases.running()[-1]
      seen.append((item, phase.name, phase.done, phase.total))
    assert names() == ['run']
  assert seen == [
      ('a', 'verification', 0, 3), ('b', 'verification', 1, 3),
      ('c', 'verification', 2, 3)]
  assert [*phases.counted(iter('ab'), 'x', total=2)] == ['a', 'b']


def test_a_display_may_ask_for_the_count(now):
  size = [1]
  with phases.phase('run'), phases.phase(
      'saving', 9, 'MB', 1, poll=lambda: size[0]) as phase:
    now[0] += 2
    size[0] = 5
    assert phase.counts() == '5/9 MB  0:02, 0:02 left'
  # Nobody may have asked, so that it tells nothing of the pace.
  assert 'saving' not in phase._paces


def test_phases_end_with_those_inside_of_them():
  with phases.phase('outer'):
    with phases.phase('middle') as middle:
      inner = phases.begin('never ended')
      assert names() == ['outer', 'middle', 'never ended']
    assert names() == ['outer']
    phases.end(inner)
    phases.end(middle)
    assert names() == ['outer']
  assert names() == []


def test_a_thread_has_its_own_phases():
  seen = []
  with phases.phase('main'):
    thread = threading.Thread(target=lambda: seen.append(names()))
    thread.start()
    thread.join()
    assert names() == ['main'] and seen == [[]]


@pytest.mark.parametrize('seconds, text', [
    (0, '0:00'), (59.6, '1:00'), (3599, '59:59'), (7231, '2:00:31')])
def test_clock(seconds, text):
  assert phases.clock(seconds) == text
