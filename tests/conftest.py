"""Fixtures for several test files: one tiny run and its compiled programs."""

import collections
import gc
import os
import signal
from typing import Any, NamedTuple

import jax
import pytest

from jaxrl_llm.base import phases
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.loop import step_metrics
from jaxrl_llm.monitoring import plots
from jaxrl_llm.prepare import build
from tests.helpers import blocks, devices, memory, tiny

# JAX reads it when it starts; so do the processes that tests start. Flags that
# the caller has set come last and win.
os.environ['XLA_FLAGS'] = f'{devices.QUICK} {os.environ.get("XLA_FLAGS", "")}'
devices.keep_programs()
# Where there is no TPU, libtpu, a compiler here, would print errors.
jax.config.update(
    'jax_platforms', os.environ.setdefault('JAX_PLATFORMS', 'cpu'))

# A shell ignores them in what it runs in the background; so would the programs
# that tests start and stop.
for _number in (signal.SIGINT, signal.SIGHUP):
  if signal.getsignal(_number) is signal.SIG_IGN:
    signal.signal(_number, signal.SIG_DFL if _number is signal.SIGHUP else (
        signal.default_int_handler))


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers():
  """Returns the number of processes for `-n auto`."""
  return memory.workers((yield), memory.free())


def pytest_collection_finish():
  """Leaves the modules and tests, which stay, out of garbage collections."""
  gc.collect()
  gc.freeze()


def pytest_terminal_summary(terminalreporter):
  """Says how many tests could not run here, and why."""
  reasons = collections.Counter(
      report.longrepr[2].removeprefix('Skipped: ')
      for report in terminalreporter.stats.get('skipped', ())
      if isinstance(report.longrepr, tuple))
  for reason, count in reasons.most_common():
    tests = 'test' if count == 1 else 'tests'
    terminalreporter.write_line(f'{count} {tests} could not run: {reason}')


@pytest.fixture(scope='module', autouse=True)
def programs():
  """Frees the programs of a file after its tests."""
  yield
  memory.clear()


@pytest.fixture(autouse=True)
def signals():
  """Restores signals: `exits.program` ignores them until the process ends.

  The processes that later tests start would ignore them as well.
  """
  before = {
      number: signal.getsignal(number)
      for number in (signal.SIGTERM, signal.SIGINT)}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_phases():
  """Ends the phases that earlier tests have left, with errors that are kept."""
  del phases.running()[:]


@pytest.fixture(scope='session', autouse=True)
def draw():
  """The function that draws curves, which the runs of tests do without.

  A picture takes as much time as a run of a tiny model.
  """
  draw = plots.draw
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, 'draw', lambda rows, path, title: path.write(
        b'no picture' * 500))
    yield draw


@pytest.fixture
def drawn(monkeypatch, draw):
  """Lets the runs of a test draw their curves."""
  monkeypatch.setattr(plots, 'draw', draw)


@pytest.fixture(scope='session', autouse=True)
def declared():
  """Fails where a step of any run has a metric that no module declares."""
  report, log = step_metrics.report, loop._log

  def check(row):
    # Those of the user's own plugs are declared nowhere.
    unknown = blocks.hooks().undeclared(
        name for name in row if not name.startswith(
            ('sharper/', 'near/', 'sure/')))
    assert not unknown, f'No docstring of a module has {", ".join(unknown)}'

  def reported(*args, **given):
    found = report(*args, **given)
    check(found.row)
    return found

  def logged(run, step, output, **given):
    check(output.row)
    log(run, step, output, **given)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(step_metrics, 'report', reported)
    patch.setattr(loop, '_log', logged)
    yield


class Run(NamedTuple):
  """A finished run of 20 steps.

  Attributes:
    config: config of the run; `workdir` has all its files.
    summary: result of `train`.
    parts: parts of the run.
    watched: recorded inputs and outputs of the parts.
    compiled: names of the programs compiled from the start of the run to the
      end of its last step.
    known: number of compiled programs after each step.
  """
  config: Any
  summary: dict[str, Any]
  parts: build.Parts
  watched: tiny.Watched
  compiled: list[str]
  known: list[int]


def fickle(problem, text, truncated):
  """Verifier that fails for some responses to every problem."""
  if (problem.id + len(text)) % 5 == 0:
    raise RuntimeError('no sandbox')
  return tiny.by_length(problem, text, truncated)


@pytest.fixture(scope='session')
def run(tmp_path_factory) -> Run:
  """A run of 20 steps with evaluations and a verifier that often fails."""
  config = tiny.load(
      tmp_path_factory.mktemp('tiny') / 'run', steps=20, eval__every=5,
      checkpoint__every=7, loss__entropy_bonus=0.01)
  parts = build.parts(config)
  watched = tiny.watch(parts, fickle)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, 'parts', lambda _: watched.parts)
    compiled, known = tiny.compiled_by_step(patch)
    summary = loop.train(config)
  return Run(
      config, summary, parts, watched, compiled[:known[-1]], known)


@pytest.fixture(scope='session')
def parts(run) -> build.Parts:
  """Parts of a tiny run with compiled programs."""
  return run.parts


@pytest.fixture(scope='session')
def several(parts) -> build.Parts:
  """Parts of a run with four updates per step and a KL penalty."""
  config = tiny.load(
      learner__epochs=2, learner__updates=2, loss__kl_coef=0.2)
  return tiny.changed(
      parts, config=config, learner=build.parts(config).programs.learner)


@pytest.fixture
def reuse(monkeypatch):
  """Function that makes new runs use the compiled programs of given parts."""
  def use(parts):
    monkeypatch.setattr(
        build, 'parts',
        lambda config, **_: tiny.changed(parts, config=config))
  return use
