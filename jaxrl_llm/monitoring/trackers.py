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
from typing import Any, Callable, Mapping

from absl import logging
import jax

from jaxrl_llm.base import plain
from jaxrl_llm.storage import paths

Opened = tuple[Callable[[int, Mapping[str, float]], Any], Callable[[], Any]]


def _wandb(project, name, ident, folder, config) -> Opened:
  """Opens a run, which drops the steps that it has.

  Args:
    project: where the service shows it.
    name: to show.
    ident: differs from that of every other run; a run that goes on keeps it.
    folder: on disk, of the run.
    config: section or field to value.

  Returns:
    log(step, metrics) and close().
  """
  import wandb
  run = wandb.init(project=project, name=name, id=ident, resume='allow',
                   dir=str(folder), config=dict(config))
  return lambda step, row: run.log(row, step=step), run.finish


def _trackio(project, name, ident, folder, config) -> Opened:
  """Opens a run, which is found again by its name."""
  import trackio
  run = trackio.init(project=project, name=ident, resume='allow', embed=False,
                     config=dict(config))
  # Trackio would keep both rows of a step that is done again.
  begin = getattr(run, '_next_step', 0)
  # At the end of a program it would call run.finish once more.
  return lambda step, row: step >= begin and run.log(
      row, step=step), trackio.finish


def _mlflow(project, name, ident, folder, config) -> Opened:
  """Opens a run, which is found again by a tag; another has its last step."""
  import mlflow
  from mlflow import entities
  client = mlflow.MlflowClient()
  experiment = mlflow.set_experiment(project).experiment_id
  found = client.search_runs(
      [experiment], f"tags.jaxrl_llm_run = '{ident}'", max_results=1)
  run = found[0] if found else client.create_run(
      experiment, run_name=name, tags={'jaxrl_llm_run': ident})
  number, last = run.info.run_id, int(run.data.tags.get('jaxrl_llm_step', -1))
  client.update_run(number, status='RUNNING')
  flat = {jax.tree_util.keystr(path, simple=True, separator='.'): value
          for path, value in jax.tree_util.tree_leaves_with_path(
              config, is_leaf=lambda value: not isinstance(value, dict))}
  client.log_batch(number, params=[
      entities.Param(name, str(value)) for name, value in flat.items()
      if name not in run.data.params])  # they cannot be changed

  def log(step, row):
    if step <= last:  # MLflow would keep both rows of a step that is done again
      return
    now = time.time_ns() // 1_000_000
    named = {_mlflow_name(name): value for name, value in row.items()}
    client.log_batch(
        number, metrics=[entities.Metric(name, value, now, step)
                         for name, value in named.items()],
        tags=[entities.RunTag('jaxrl_llm_step', str(step))])

  return log, lambda: client.set_terminated(number)


def _mlflow_name(name: str) -> str:
  """Returns the nearest name that MLflow takes: pass_at_8 for pass@8."""
  known = re.sub(r'[^\w/. -]', '_', name.replace('@', '_at_'))
  return posixpath.normpath(known).strip('/.')[:250] or '_'


# By the names of the libraries: the service's name, and a function that opens a
# run there.
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
    self._opened: dict[str, Opened] = {}
    for name, (_, start) in TRACKERS.items():
      file = workdir / f'{name}_run.txt'
      if is_new:
        file.unlink(missing_ok=True)
      if project := projects.get(name):
        if opened := self._tell(
            name, start, project, run.name, _ident(file, workdir, run), workdir,
            config):
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
