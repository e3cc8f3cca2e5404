"""Reinforcement learning from verifiable rewards: the loop.

A run restores or begins, makes its start weights, and loops: a step, then its
hooks (evaluate, log, save, show). The same command again continues a run that
was cut off, from its last checkpoint, bit for bit.
"""

import contextlib
import dataclasses
import functools
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple

import jax
from ml_collections import ConfigDict
import rich

from jaxrl_llm import checkpoint, rewards, sharding
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import phases, process_state, schedules
from jaxrl_llm.evaluation import heldout, page
from jaxrl_llm.jobs import sft
from jaxrl_llm.learner.options import FROZEN, POLICY
from jaxrl_llm.loop import carry, flops, step_metrics
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.loop.state import complete, init_state, RunState
from jaxrl_llm.loop.step import take_step
from jaxrl_llm.monitoring import (
  compiles,
  exits,
  metrics,
  progress,
  summary,
  timing,
  trackers,
)
from jaxrl_llm.monitoring import health as health_lib
from jaxrl_llm.prepare import build, choices, describe, start_weights
from jaxrl_llm.prepare import sft as sft_lib
from jaxrl_llm.sharding import cpu, distributed
from jaxrl_llm.storage import workdir as workdir_lib
from jaxrl_llm.types import AdvantageError, NoSignalError, Stopped


@process_state.narrow()
def train(config: ConfigDict, name: str = 'run') -> dict[str, Any]:
  """Runs a config from its beginning, or from its last checkpoint, to its end.

  Args:
    config: checked by `config.validate`.
    name: of the config; with model and task, it is the name that is shown.

  Returns:
    The content of `summary.json`.

  Raises:
    ValueError: the config does not fit itself, or the checkpoint in its
      workdir; or nothing can be written there, or another run is doing so.
    FloatingPointError: the loss is no longer finite.
    OSError: the disk is full at the beginning or at the end, or the workdir was
      removed; the message says where the state is.
    Stopped: SIGTERM or SIGINT came; the state is saved.
  """
  trackers.check(config.log)
  with (exits.stoppable(config.checkpoint.grace) as stop,
        workdir_lib.held(config.workdir, distributed.first()) as workdir):
    return _run(config, name, workdir, stop)


class RunFiles(NamedTuple):
  """Folder and writers of a run.

  Attributes:
    workdir: its folder.
    saver: writer of its checkpoints.
    metrics_writer: writer of its metrics and samples.
    gone: () -> whether the folder was removed or taken over, in this process.
  """
  workdir: workdir_lib.Folder
  saver: checkpoint.Checkpointer
  metrics_writer: Any
  gone: Callable[[], bool]


class Output(NamedTuple):
  """Output of a step for its hooks, JSON-able.

  Attributes:
    row: metrics.
    records: responses for `samples.jsonl`.
    sample: lines for the display.
  """
  row: dict[str, float]
  records: list[dict[str, Any]]
  sample: str


@dataclasses.dataclass
class Notes:
  """Facts about a run beside its state. A checkpoint keeps them as JSON.

  Attributes:
    start: estimates of the evaluation before the first step; None before it.
    latest: estimates of the latest evaluation.
    due: output of the last step while its hooks have not run. A run that ends
      between a step and its hooks does them when it goes on, so that no row or
      evaluation is lost.
    health: of the rows that were written, from which a run that goes on
      computes it again.
  """
  start: dict[str, float] | None = None
  latest: dict[str, float] | None = None
  due: Output | None = None
  health: health_lib.Health = health_lib.Health()


class Run(NamedTuple):
  """A run under way, as its hooks see it.

  Attributes:
    parts: task, stages, programs and config.
    fixed: device values that no step changes.
    files: what it writes to.
    notes: what its checkpoints keep beside the state.
    display: display of the progress.
    timer: seconds per phase.
    rate: FLOP/s of the machine's matmuls; see `flops.Rate`.
    began: when it began, of `time.monotonic`, as if it had never been stopped.
    resumed: step of the checkpoint that it goes on from, or None.
    compiled: () -> programs compiled so far.
  """
  parts: build.Parts
  fixed: Fixed
  files: RunFiles
  notes: Notes
  display: progress.Display
  timer: timing.Timer
  rate: flops.Rate
  began: float
  resumed: int | None
  compiled: Callable[[], compiles.Compiles]


def _run(
    config: ConfigDict, name: str, workdir: workdir_lib.Folder,
    stop: threading.Event) -> dict[str, Any]:
  """Runs `train` in a folder that is held, until it is done or `stop` is set.
  """
  began, name = time.monotonic(), config_lib.title(config, name)
  with progress.Display(
      name, show=distributed.first(), brief=not config.log.display) as display:
    display.say(f'{name}, in {workdir.path}')
    parts = build.parts(config)
    parts.processes.channel.listen_to(stop)
    with _opened(parts, workdir) as (files, restored):
      count_compiles = compiles.first(display.note)
      _announce(parts, display)
      state, fixed, notes = _begin(parts, restored, display, workdir)
      if distributed.first():
        notes.health = health_lib.after(notes.health, metrics.read(
            workdir.local / 'metrics.jsonl'))
      state = _loop(Run(
          parts, fixed, files, notes, display,
          # It may be measured, which is no part of the first step.
          rate=flops.Rate(parts.programs.model.dtype),
          timer=timing.Timer(),
          began=began - (restored.host['seconds'] if restored else 0),
          resumed=restored and restored.step, compiled=count_compiles), state)
      compiled = count_compiles()
  if not parts.processes.channel.first:
    return {}
  summary.check(state.step, state.rounds)
  result = summary.summary(
      notes.start, notes.latest, time.monotonic() - began, state.step, compiled,
      notes.health.symptoms)
  line, fault = summary.end(workdir, result, name, checkpoint.whole_steps(
      workdir.path / 'checkpoints'))
  if config.log.report and page.renew(workdir.local, workdir.path):
    line += f', {page.FILE}'
  if config.log.display:
    rich.print(progress.results(notes.start, notes.latest))
    if said := parts.stages.curriculum.summary(state.curriculum):
      print(said)
  for symptom in notes.health.symptoms:
    print(f'Doubtful since step {symptom.step}: {symptom.text}')
  print(line)
  if fault:
    raise OSError(fault)
  return result


@contextlib.contextmanager
def _opened(
    parts: build.Parts, workdir: workdir_lib.Folder,
) -> Iterator[tuple[RunFiles, checkpoint.Restored | None]]:
  """Opens what a run writes to, and restores its last checkpoint.

  Args:
    parts: task, programs and config; closed at the end, as the files are.
    workdir: folder with the checkpoints.

  Yields:
    The files, and the checkpoint if there is one.
  """
  config, channel = parts.config, parts.processes.channel
  channel.agree(describe.compared(parts), 'between the processes')
  workdir_lib.check_shared(workdir.path, channel)
  saver = checkpoint.Checkpointer(
      workdir.path / 'checkpoints', describe.described(parts),
      keep=config.checkpoint.keep, timeout=config.checkpoint.timeout,
      channel=channel)
  restored = saver.restore(
      init_state(parts, parts.programs.learner.state).listed,
      differs=lambda saved: config_lib.resume_conflicts(
          saved, describe.described(parts)) or describe.carry_conflicts(
              saved, parts))
  gone, metrics_writer = lambda: False, metrics.NoWriter()
  if channel.first:
    step = restored.step if restored else None
    summary.begin(workdir, step or 0, config.steps)
    describe.write(parts, workdir.path)
    gone = workdir.watch()
    # Rows after the checkpoint are dropped: their steps are done again.
    metrics_writer = metrics.Writer(
        workdir.local, 0 if step is None else step + 1,
        config=config.to_dict(), tensorboard=config.log.tensorboard,
        run=workdir.path, **{
            name: config.log[name] for name in trackers.TRACKERS})
  with (contextlib.closing(parts), contextlib.closing(saver),
        contextlib.closing(metrics_writer)):
    yield RunFiles(workdir, saver, metrics_writer, gone), restored


def _announce(parts: build.Parts, display: progress.Display) -> None:
  """Says what the run compiles and how it keeps rows, and weights on several
  devices; and how large evaluations are, if they take long.
  """
  if size := heldout.size(parts.config, parts.task.heldout):
    display.say(size)
  compiles.expect(describe.large_programs(parts))
  layout = describe.layout(parts) if parts.programs.mesh.size > 1 else ''
  display.note(describe.ends(parts) + describe.updates(parts) + layout)
  if size := describe.buffer(parts):
    display.note(size)


def _begin(
    parts: build.Parts, restored: checkpoint.Restored | None,
    display: progress.Display,
    workdir: workdir_lib.Folder) -> tuple[RunState, Fixed, Notes]:
  """Makes the start weights, and the state that the loop begins with.

  The start weights are made here alone, so that they are gone when the loop
  begins: the state and the anchor have their own.

  Args:
    parts: programs and config.
    restored: the checkpoint that the run goes on from, or None.
    display: display of the progress.
    workdir: folder of the run.
  """
  starts = {}
  for name in parts.programs.players:
    player, folder = describe.of_player(parts, name), sft_lib.folder(name)
    with phases.phase('weights' if name == POLICY else (
        f'weights of {config_lib.MODELS[name]}')), sft.reported(
        player, display, workdir, folder) as report:
      starts[name] = start_weights.start(
          player, report, name=folder,
          resumed=bool(restored) and name not in FROZEN)
  fixed = Fixed(
      sampling=parts.sampling(),
      loss=parts.replicate(choices.loss_params(parts.config)),
      anchors=starts[POLICY].anchors,
      frozen={name: start.frozen for name, start in starts.items()},
      **{name: starts[name].params for name in FROZEN if name in starts})
  if not restored:
    # The hooks of step 0 evaluate the start weights, and save them.
    state = init_state(parts, parts.programs.learner.init(
        {name: starts[name].params for name in parts.programs.learner.state}))
    return state, fixed, Notes(due=Output({}, [], ''))
  display.note(f'Going on from step {restored.step} of {parts.config.steps}.')
  host, state = restored.host, restored.state.named
  if state.begun:
    begun = state.begun._replace(said=host['said'])
    shards = sharding.data_shards(parts.processes.mesh)
    if host.get('shards', shards) != shards:
      begun = carry.moved(begun, shards)
    state = state._replace(begun=begun)
  return state, fixed, Notes(
      host['start'], host['latest'], host['due'] and Output(**host['due']))


def _loop(run: Run, state: RunState) -> RunState:
  """Takes the steps, each with its hooks; returns the last state."""
  config = run.parts.config
  try:
    if run.notes.due:
      _after_step(run, state)
    with phases.phase('RL', config.steps, 'steps', state.step):
      while state.step < config.steps:
        try:
          with process_state.alone(), jax.transfer_guard('disallow'):
            state, report = take_step(run.parts, state, run.fixed, run.timer)
        except (rewards.VerifierError, ChildProcessError, AdvantageError,
                NoSignalError):
          _save(run, state)  # as it was before the wave
          raise
        run.notes.due = _output(run, report)
        run.compiled()
        _check_workdir(run, state)
        _after_step(run, state)
        cpu.return_memory()
        run.parts.processes.channel.check()
  except Stopped:
    _save(run, state)
    run.files.saver.check(state.step)
    raise Stopped(
        f'Stopped after step {state.step} of {config.steps}, which is saved; '
        'the same command goes on.') from None
  return state


def _output(run: Run, report: step_metrics.Report) -> Output:
  """Returns what a step leaves to its hooks; its time ends here."""
  timed = functools.partial(
      timing.speed, run.timer.take(), tokens=report.tokens,
      flops=report.flops | run.timer.take_flops(), memory=flops.peak_memory())
  row = timed(rate=run.rate.value)
  if run.rate.exceeded(max(
      share for name, share in row.items() if 'flops_share' in name)):
    row = timed(rate=run.rate.value)
    run.timer.take()  # That is no part of the next step.
  return Output(
      report.row | row, report.records, progress.sample_lines(report.sample))


def _after_step(run: Run, state: RunState) -> None:
  """Runs the hooks of a step: evaluate, log, save, show, each when it is due.

  Also those of the step that a resumed run was saved in, if they had not run.
  """
  output = run.notes.due
  estimates = _evaluate(run, state)
  if estimates is not None:
    output = output._replace(row=output.row | {
        f'eval/{name}': value for name, value in estimates.items()})
  _log(run, state.step, output, evaluated=estimates is not None)
  # A checkpoint of this moment on must not have them done twice.
  run.notes.due = None
  _save_if_due(run, state, estimates or {})
  _show(run, state.step, output, evaluated=estimates is not None)


def _evaluate(run: Run, state: RunState) -> dict[str, float] | None:
  """Returns the estimates of the policy, or None if none are due."""
  config, notes = run.parts.config, run.notes
  if state.step and not schedules.due(
      state.step, config.eval.every, config.steps):
    return None
  notes.latest = heldout.evaluate(
      run.parts, run.parts.programs.policy.to_sampling(
          state.learner.params, run.fixed.frozen[POLICY]), state.step)
  if not state.step:
    notes.start = notes.latest
  run.timer.take()  # An evaluation is no part of the next step.
  _check_workdir(run, state)  # It may have taken long.
  return notes.latest


def _log(run: Run, step: int, output: Output, *, evaluated: bool) -> None:
  """Writes metrics and samples of a step, of every one with an evaluation.

  Warns of what the metrics show. It says the same in a run that goes on, since
  that reads the same rows.
  """
  config, notes = run.parts.config, run.notes
  if evaluated or schedules.due(step, config.log.every, config.steps):
    run.files.metrics_writer.write(step, output.row)
    run.files.metrics_writer.samples(output.records)
    known = len(notes.health.symptoms)
    notes.health = health_lib.after(
        notes.health, [{'step': step, **output.row}])
    for symptom in notes.health.symptoms[known:]:
      run.display.say(f'Step {step}, a warning: {symptom.text}')


def _save_if_due(
    run: Run, state: RunState, estimates: dict[str, float]) -> None:
  """Saves a checkpoint, whose score is the mean reward of an evaluation.

  The one that the run goes on from was saved before its hooks: with them done,
  it is saved again, with its score.
  """
  config, again = run.parts.config, run.resumed == state.step
  if not state.step or again or schedules.due(
      state.step, config.checkpoint.every, config.steps):
    _save(run, state, estimates.get('mean'), again)


def _show(run: Run, step: int, output: Output, *, evaluated: bool) -> None:
  """Shows a step that this process has done; with an evaluation, a group too.
  """
  if step and run.resumed != step:
    run.display.update(step, output.row, output.sample, health_lib.trends(
        run.notes.health, run.notes.start))
    if evaluated and output.records:
      run.display.show(progress.completions(output.records))


def _save(
    run: Run, state: RunState, score: float | None = None,
    again: bool = False) -> None:
  """Starts to write a checkpoint; the best score is kept.

  Args:
    run: where to, and the notes that it keeps.
    state: between two steps.
    score: mean reward on the held-out problems, or None.
    again: write it anew if it is there already.
  """
  complete(state, run.parts.processes)
  run.files.workdir.sync()  # A run that goes on has the rows up to it.
  run.files.saver.save(
      state.step, state.listed, _host(run, state), score=score, again=again)


def _host(run: Run, state: RunState) -> dict[str, Any]:
  """Returns what a checkpoint keeps beside the state; `_begin` reads it."""
  notes = run.notes
  return dict(
      start=notes.start, latest=notes.latest,
      due=notes.due and notes.due._asdict(),
      said=state.begun and [*state.begun.said],
      shards=sharding.data_shards(run.parts.processes.mesh),
      seconds=time.monotonic() - run.began)


def _check_workdir(run: Run, state: RunState) -> None:
  """Saves the state elsewhere if the workdir is gone.

  Raises:
    FileNotFoundError: it is gone; the message says where the state is.
  """
  parts, workdir = run.parts, run.files.workdir
  channel = parts.processes.channel
  # All processes must save their part, whichever has noticed.
  if any(channel.gather(run.files.gone())):
    complete(state, parts.processes)
    raise FileNotFoundError(checkpoint.rescue(
        workdir.path, functools.partial(describe.write, parts),
        describe.described(parts), state.step, state.listed,
        _host(run, state), channel))
