"""Hostile programs under bubblewrap: right verdicts, and no effect outside."""

import pytest

from jaxrl_llm.rewards import sandbox
from tests.helpers import hostile
from tests.helpers.bubblewrap import NEEDED

# These wait for a limit, seconds each.
WAIT = {name for name in hostile.names() if name.startswith('loop_')} | {
    'crash_signals_of_errors', 'descriptors_echo_requests',
    'descriptors_half_reply', 'fork_multiprocessing_bomb', 'kill_stop_parent',
    'kill_stop_self', 'memory_caught', 'memory_exception_text', 'memory_list',
    'memory_result_text', 'outside_search_project', 'patch_builtins_checks',
    'raise_hostile_text', 'result_handle_flood', 'result_wide'}
SAMPLE = [*dict.fromkeys(
    [name for name in hostile.names() if name not in WAIT][::5] + [
        'daemon_double_fork', 'environment_secret', 'equal_by_mock_any',
        'exit_zero_import', 'fork_bomb_os', 'kill_all', 'loop_one_test_only',
        'memory_list', 'outside_read_canary', 'patch_sys_modules',
        'socket_loopback', 'trace_parent'])]


@pytest.fixture(scope='module')
def world(executor, tmp_path_factory):
  with hostile.world(tmp_path_factory.mktemp('world'), executor) as made:
    yield made


@pytest.fixture(scope='module')
def executor():
  return sandbox.make('bubblewrap')


def judged(executor, world, case):
  """Returns the outcomes of a case."""
  for _ in range(2 if case.twice else 1):
    outcomes = executor.check(
        world.program(case.source), hostile.TESTS, limits=hostile.LIMITS)
  return outcomes


def holds(executor, world, name):
  """Checks a case: its verdict, and that the world is as it was."""
  case = hostile.case(name)
  outcomes = judged(executor, world, case)
  passed = [outcome.kind == 'passed' for outcome in outcomes]
  assert len(passed) == len(hostile.TESTS.tests)
  if case.want != 'some':
    assert all(passed) == (case.want == 'pass'), outcomes
  if case.want == 'fail':
    assert not any(passed), outcomes
  if case.kind and case.kind != 'correct':
    assert case.kind in {outcome.kind for outcome in outcomes}, outcomes
  assert not world.harm()


@NEEDED
@pytest.mark.parametrize('name', SAMPLE)
def test_hostile_program(executor, world, name):
  holds(executor, world, name)


@NEEDED
def test_next_program_is_judged_as_ever(executor, world):
  """After the programs above, on the same executor."""
  assert {o.kind for o in executor.check(
      hostile.GOOD, hostile.TESTS)} == {'passed'}
  assert not world.harm()


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize(
    'name', [name for name in hostile.names() if name not in SAMPLE])
def test_every_hostile_program(executor, world, name):
  holds(executor, world, name)


@NEEDED
def test_breach_would_be_seen(world):
  """The same attacks without a sandbox; else the tests above prove nothing."""
  executor = sandbox.make('subprocess', allow_unsafe=True)
  try:
    for name in ('outside_read_canary', 'socket_loopback'):
      outcomes = judged(executor, world, hostile.case(name))
      assert {outcome.kind for outcome in outcomes} == {'passed'}, name
    executor.close()
    assert world.harm() == ['the network was reached']
  finally:
    world.callers = 0
