"""Supervised fine-tuning: files of the phase before RL, or of it alone."""

import contextlib
import json
import time
from typing import Any, Iterator

from absl import logging
from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import process_state
from jaxrl_llm.evaluation import page
from jaxrl_llm.monitoring import compiles, exits, metrics, progress, trackers
from jaxrl_llm.prepare import build, describe, sft, start_weights
from jaxrl_llm.sharding import distributed
from jaxrl_llm.storage import paths
from jaxrl_llm.storage import workdir as workdir_lib


class SftFiles:
  """Files of the phase, made when its first step is reported.

  Attributes:
    said: once it is closed, a line that names them; '' if there are none.
  """
  said = ''

  def __init__(
      self, parts: build.Parts, display: progress.Display,
      workdir: workdir_lib.Folder, name: str, **projects: str | None):
    """Prepares the files.

    Args:
      parts: of the run, in which the player is the policy.
      display: shows the metrics too.
      workdir: of the run.
      name: of the folder in it.
      **projects: where to send the metrics, as for `metrics.Writer`.
    """
    self._parts, self._display, self._projects = parts, display, projects
    self._path, self._local = workdir.path / name, workdir.local / name
    self._metrics_writer: metrics.Writer | None = None
    self._since = time.monotonic()

  def __call__(self, step: int, row: dict[str, float]) -> None:
    """Shows and writes the metrics of a step."""
    self._display.update(step, row)
    if not self._parts.processes.channel.first:
      return
    config = self._parts.config
    if self._metrics_writer is None:
      self._describe()
      self._metrics_writer = metrics.Writer(
          self._local, step, config=config.to_dict(), run=self._path,
          tensorboard=config.log.tensorboard, **self._projects)
    since, self._since = self._since, time.monotonic()
    self._metrics_writer.write(step, {**row, **(
        {'seconds/step': self._since - since} if step else {})})

  def _describe(self) -> None:
    """Writes the config with which the folder is evaluated and exported."""
    config = self._parts.user_config.copy_and_resolve_references()
    config.steps = 0
    if not config_lib.sft_of_lora(config):
      config.lora.rank = 0
    describe.write(self._parts._replace(user_config=config), self._path)

  def close(self) -> None:
    """Closes the files; if there are some, writes the summary and the page."""
    if self._metrics_writer is None:
      return
    self._metrics_writer.close()
    rows = metrics.read(self._local / 'metrics.jsonl')
    result: dict[str, Any] = {
        'steps': rows[-1]['step'],
        'seconds': sum(row.get('seconds/step', 0.0) for row in rows)}
    losses = [row['sft/heldout_loss'] for row in rows
              if row.get('sft/heldout_loss') is not None]
    if losses:
      result['heldout_loss'] = {
          'start': losses[0], 'final': losses[-1], 'best': min(losses)}
    try:
      paths.write_whole(
          self._local / 'summary.json', json.dumps(result, indent=1))
    except OSError as error:  # RL may follow, and needs no summary.
      logging.warning('%s has no summary.json (%s).', self._path, error)
    page.renew(self._local, self._path)
    self.said = f'{self._path}: checkpoints/, metrics.jsonl, {page.FILE}.' + (
        f' Held-out loss {losses[0]:.3f} to {losses[-1]:.3f} nats a token, '
        f'{min(losses):.3f} at best.' if losses else '')


@contextlib.contextmanager
def reported(
    parts: build.Parts, display: progress.Display, workdir: workdir_lib.Folder,
    name: str) -> Iterator[sft.Report]:
  """Makes the report of the phase before RL: its files, for rows of a file.

  Args:
    parts, display, workdir, name: see `SftFiles`.
  """
  if not (parts.config.sft.path or parts.config.sft.heldout):
    yield display.update
    return
  # The services get the metrics of RL, whose steps begin again.
  with contextlib.closing(SftFiles(parts, display, workdir, name)) as files:
    yield files
  if files.said:
    display.note(files.said)


@process_state.narrow()
def fine_tune(config: ConfigDict, name: str = 'run') -> str:
  """Runs supervised fine-tuning of all players, from the last checkpoint.

  Args:
    config: checked by `jaxrl_llm.sft.check`.
    name: of the config, for the display.

  Returns:
    A line for each player that says what is in its folder.

  Raises:
    ValueError: a row is not valid, or the checkpoint has another config.
    FloatingPointError: the loss is no longer finite.
    Stopped: SIGTERM or SIGINT came; the state is saved.
  """
  trackers.check(config.log)
  config = config.copy_and_resolve_references()
  # A KL penalty would need a second copy of the model.
  config.loss.kl_coef = 0.0
  name = config_lib.title(config, f'supervised fine-tuning of {name}')
  with (exits.stoppable(config.checkpoint.grace) as stop,
        workdir_lib.held(config.workdir, distributed.first()) as workdir,
        progress.Display(name, show=distributed.first(),
                         brief=not config.log.display) as display):
    display.say(f'{name}, in {workdir.path / sft.FOLDER}')
    parts = build.parts(config, training=False)
    parts.processes.channel.listen_to(stop)
    parts.processes.channel.agree(
        describe.compared(parts), 'between the processes')
    workdir_lib.check_shared(workdir.path, parts.processes.channel)
    compiled = compiles.first(display.note)
    compiles.expect(['update'])
    said = []
    with contextlib.closing(parts):
      for one in parts.programs.players:
        player, folder = describe.of_player(parts, one), sft.folder(one)
        if not config_lib.has_sft(player.config):
          continue
        with contextlib.closing(SftFiles(player, display, workdir, folder, **{
            to: config.log[to] for to in trackers.TRACKERS})) as files:
          start_weights.start(
              player, files, resumed=False, name=folder, alone=True)
        said.append(files.said or f'{workdir.path / folder} was done before.')
    compiled()
  return '\n'.join(said) if parts.processes.channel.first else ''
