"""Services that collect the metrics of runs, each with a field of `log`.

The field is named as the library of the service, and its value is the project
there. A service may fail at any moment of a run, which then goes on without it.
"""

import importlib
import os
import pathlib
import posixpath
import re
import secrets
import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from absl import logging

from jaxrl_llm.rewards import plain
from jaxrl_llm.storage import paths

Log = Callable[[int, Mapping[str, float]], Any]  # (step, metrics)
_TAG = 'jaxrl_llm'  # start of the names of tags at MLflow


class _Run(NamedTuple):
  """A run, for the services.

  Attributes:
    project: where the service shows it.
    name: to show.
    ident: differs from that of every other run; a run that goes on keeps it.
    folder: on disk, of the run.
    config: section or field to value.
  """
  project: str
  name: str
  ident: str
  folder: pathlib.Path
  config: Mapping[str, Any]


def _wandb(run: _Run) -> tuple[Log, Callable[[], Any]]:
  """Opens a run, which drops the steps that it has."""
  import wandb
  opened = wandb.init(
      project=run.project, name=run.name, id=run.ident, resume='allow',
      dir=str(run.folder), config=dict(run.config))
  return lambda step, row: opened.log(row, step=step), opened.finish


def _trackio(run: _Run) -> tuple[Log, Callable[[], Any]]:
  """Opens a run, which its name identifies."""
  import trackio
  opened = trackio.init(
      project=run.project, name=run.ident, resume='allow', embed=False,
      config=dict(run.config))
  # Trackio would keep both rows of a step that is done again.
  begin = getattr(opened, '_next_step', 0)
  # Its own end of a program would call opened.finish again.
  return lambda step, row: step >= begin and opened.log(
      row, step=step), trackio.finish


def _mlflow(run: _Run) -> tuple[Log, Callable[[], Any]]:
  """Opens a run, which a tag identifies; another one is its last step."""
  import mlflow
  from mlflow import entities
  client = mlflow.MlflowClient()
  experiment = mlflow.set_experiment(run.project).experiment_id
  found = client.search_runs(
      [experiment], f"tags.{_TAG}_run = '{run.ident}'", max_results=1)
  opened = found[0] if found else client.create_run(
      experiment, run_name=run.name, tags={f'{_TAG}_run': run.ident})
  number = opened.info.run_id
  client.update_run(number, status='RUNNING')
  client.log_batch(number, params=[
      entities.Param(name, str(value))
      for name, value in _flat(run.config)
      if name not in opened.data.params])  # they cannot be changed
  last = int(opened.data.tags.get(f'{_TAG}_step', -1))

  def log(step, row):
    # MLflow would keep both rows of a step that is done again.
    if step > last:
      now, named = time.time_ns() // 1_000_000, {
          _mlflow_name(name): value for name, value in row.items()}
      client.log_batch(number, metrics=[
          entities.Metric(name, value, now, step)
          for name, value in named.items()
      ], tags=[entities.RunTag(f'{_TAG}_step', str(step))])

  return log, lambda: client.set_terminated(number)


def _mlflow_name(name: str) -> str:
  """Returns the nearest name that MLflow takes: pass_at_8 for pass@8."""
  known = re.sub(r'[^\w/. -]', '_', name.replace('@', '_at_'))
  return posixpath.normpath(known).strip('/.')[:250] or '_'


def _flat(
    config: Mapping[str, Any], section: str = '') -> Iterator[tuple[str, Any]]:
  """Yields dotted names and values."""
  for name, value in config.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f'{section}{name}.')
    else:
      yield f'{section}{name}', value


# By the names of the libraries: the service's name, and a function that opens a
# run there and returns log(step, metrics) and close().
TRACKERS = {
    'wandb': ('Weights & Biases', _wandb),
    'mlflow': ('MLflow', _mlflow),
    'trackio': ('Trackio', _trackio),
}


def check(projects: Mapping[str, str | None]) -> None:
  """Checks that the libraries of the chosen services are installed.

  Args:
    projects: by the names in TRACKERS, None for those that get nothing.

  Raises:
    ValueError: one is missing.
  """
  for name in TRACKERS:
    try:
      if projects.get(name):
        importlib.import_module(name)
    except ImportError:
      raise ValueError(
          f'log.{name}={projects[name]} needs the package {name}: pip install '
          f"'jaxrl_llm[{name}]', or set log.{name}=none.") from None


class Trackers:
  """The services that a run sends its metrics to, as long as they answer."""

  def __init__(
      self, projects: Mapping[str, str | None], workdir: pathlib.Path,
      run: paths.Path, config: Mapping[str, Any], is_new: bool):
    """Opens the run at each service.

    Args:
      projects: as of `check`.
      workdir: folder on disk.
      run: folder of the run, which may be in a bucket.
      config: section or field to value.
      is_new: whether the run starts afresh, and is another one there too.

    Raises:
      ValueError: a library is missing.
    """
    check(projects)
    self._opened: dict[str, tuple[Log, Callable[[], Any]]] = {}
    for name, (_, start) in TRACKERS.items():
      file = workdir / f'{name}_run.txt'
      if is_new:
        file.unlink(missing_ok=True)
      if project := projects.get(name):
        opened = self._tell(name, start, _Run(
            project, run.name, _ident(file, workdir, run), workdir, config))
        if opened:
          self._opened[name] = opened

  def log(self, step: int, row: Mapping[str, float]) -> None:
    """Sends the metrics of a step."""
    for name, (log, _) in [*self._opened.items()]:
      self._tell(name, log, step, row)

  def close(self) -> None:
    """Ends the run at each service."""
    for name, (_, close) in [*self._opened.items()]:
      self._tell(name, close)

  def _tell(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
    """Calls a service; one that fails is told no more."""
    try:
      return call(*args)
    except Exception as error:
      self._opened.pop(name, None)
      logging.warning(
          '%s gets no more metrics (%s): the run goes on, and metrics.jsonl '
          'has them.', TRACKERS[name][0], plain.line(plain.error(error)))


def _ident(file: pathlib.Path, workdir: pathlib.Path, run: paths.Path) -> str:
  """Returns what identifies the run of a folder, and keeps it in a file.

  A copy of a folder is another run: two runs that write to one at a service
  would lose rows. A folder that was moved has left its place.
  """
  place = os.fspath(run)
  known = file.read_text('utf8', 'replace').split('\n') if (
      file.exists()) else []
  moved = len(known) == 2 and run == paths.absolute(workdir) and (
      not os.path.exists(known[1]))
  if known[1:] != [place]:
    shown = re.sub('[^A-Za-z0-9_-]', '-', run.name)[:60]
    known = [
        known[0] if moved else f'{shown}-{secrets.token_hex(4)}', place]
    paths.write_whole(file, '\n'.join(known))
  return known[0]
