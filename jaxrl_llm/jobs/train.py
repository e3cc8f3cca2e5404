"""Reinforcement learning from verifiable rewards: the loop.

A step has four acts. `sample`: the curriculum proposes problems, the sampler
answers them, the verifier judges the answers. `absorb`: the stages learn the
rewards, the curriculum takes train batches, rewards become advantages.
`score`: the learner computes the log-probs that updates compare theirs with.
`learn`: the selection picks rows, the learner takes its optimiser steps. Data
moves one way; what comes back to an earlier stage is values.

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

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np
import rich

from jaxrl_llm import checkpoint, rewards
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import phases, process_state, schedules
from jaxrl_llm.evaluation import heldout, page
from jaxrl_llm.host import buffer as buffer_lib
from jaxrl_llm.host import (
  build,
  choices,
  flops,
  rollout,
  rounds,
  start_weights,
  step_metrics,
  turns,
)
from jaxrl_llm.host import programs as programs_lib
from jaxrl_llm.host.state import complete, digests, Fixed, init_state, RunState
from jaxrl_llm.jobs import sft
from jaxrl_llm.learner.advantages import WaveSignal
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
from jaxrl_llm.sharding import cpu, distributed
from jaxrl_llm.storage import workdir as workdir_lib
from jaxrl_llm.types import (
  AdvantageError,
  GroupRequests,
  NoSignalError,
  RolloutTokens,
  rows_of,
  Stopped,
  Table,
)


def take_step(
    parts: build.Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[RunState, step_metrics.Report]:
  """Takes one step of the loop: a wave of rollouts and its train batches.

  Args:
    parts: task, stages, programs and config.
    state: before the step; its learners are donated.
    fixed: device values that no step changes.
    timer: seconds per phase.

  Returns:
    The state after the step, and what the step reports.

  Raises:
    VerifierError: the verifier gave no response a reward, in a few steps in a
      row, or returned something that is not a reward.
    NoSignalError: the groups of the curriculum have had no signal for too long.
    Stopped: a process was asked to stop; the state before is unchanged.
    FloatingPointError: too many updates in a row had a loss or gradient that
      is not finite; the last batch is saved.
  """
  curriculum, wave = sample(parts, state, fixed, timer)
  absorbed = absorb(parts, state, fixed, curriculum, wave, timer)
  tokens = score(parts, state, fixed, absorbed, timer)
  learned, buffer = learn(parts, state, fixed, absorbed, tokens, timer)

  table = wave.rows.table
  solved = step_metrics.solve(
      state.solved, table.problem, table.valid & (table.reward >= 1.0))
  state = RunState(
      state.step + 1, state.rounds + len(absorbed.batches), learned.learners,
      absorbed.curriculum, learned.selection, buffer, absorbed.in_flight,
      solved)
  report = _report(
      parts, state, fixed, _with_scores(wave, absorbed, tokens), absorbed,
      learned)
  parts.processes.channel.agree(digests(state), f'after step {state.step}')
  return state, report


def sample(
    parts: build.Parts, state: RunState, fixed: Fixed,
    timer: timing.Timer) -> tuple[Any, buffer_lib.Wave]:
  """Act 1: samples responses to the curriculum's problems, and judges them.

  Args:
    parts, state, fixed, timer: those of `take_step`.

  Returns:
    State of the curriculum after `propose`, and the wave.
  """
  settings, task, programs = (
      parts.stages.settings, parts.task, parts.programs)
  sampler = programs.rollout_sampler
  with timer('propose'):
    curriculum, ask = parts.stages.curriculum.propose(state.curriculum)
    problems = [task.train[i] for i in ask.problem]
    call = rollout.SampleCall(
        problems, rollout.encode(problems, task.tokenizer, settings.max_prompt),
        rollout.requests_of(
            ask, problems=len(task.train), samples=settings.samples,
            budget=settings.max_response))

  with timer('reshard'):
    weights = jax.block_until_ready(
        sampler.to_sampling(
            state.learners[sampler.player].params,
            fixed.frozen[sampler.player]))

  draw = fixed.sampling
  if 'temperature' in parts.stages.needs.columns:
    draw = parts.sampling(temperature=schedules.at(
        settings.temperature, state.step))
  with timer('sample'):
    responses, start_judging = turns.respond(
        parts, call, turns.WaveSampling(
            parts.sample, weights, draw, state.step,
            sampler.sampler.sampler.slots,
            int(jax.device_get(state.learner.step)), state.step))
  del weights  # The update needs their room.

  # The user's code may use JAX as it likes.
  with timer('verify'), jax.transfer_guard('allow'):
    judged = start_judging()()
    warning = parts.unrewarded.check(judged, responses, state.step)
    if warning and parts.processes.channel.first:
      logging.warning(warning)
    parts.processes.channel.check()

  with timer('batch'):
    rows = buffer_lib.of_wave(
        ask, responses, judged, parts.stages, state.step)
    return curriculum, buffer_lib.Wave(
        ask, responses, judged, rows, _signal(parts, state, ask, rows.table))


class Due(NamedTuple):
  """The wave whose rewards the stages see in this step.

  Attributes:
    ask: its groups.
    rows: its R rollouts.
    signal: learning signal of its groups.
    unscored: how many of its rollouts have no scores yet: 0 or R.
  """
  ask: GroupRequests
  rows: buffer_lib.Buffer
  signal: WaveSignal
  unscored: int


class Absorbed(NamedTuple):
  """Train batches, and the stages' states, after the wave that is due.

  Attributes:
    curriculum: its state, after `take`.
    selection: its state, after `feedback`.
    in_flight: waves that no stage has seen yet, the oldest first.
    due: the wave.
    table: rows held over from earlier waves, then those of `due`; the rows of
      the train batches have their advantages.
    batches: rows [B, n] of each train batch.
    metrics: metrics of the advantages.
  """
  curriculum: Any
  selection: Any
  in_flight: tuple[buffer_lib.InFlight, ...]
  due: Due
  table: Table
  batches: list[np.ndarray]
  metrics: dict[str, float]


def absorb(
    parts: build.Parts, state: RunState, fixed: Fixed, curriculum: Any,
    wave: buffer_lib.Wave, timer: timing.Timer) -> Absorbed:
  """Act 2: shows a wave's rewards to the stages, and makes the train batches.

  It is the wave that was sampled `actor.lag` steps ago; without a lag, the new
  one.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    curriculum: state of the curriculum after `propose`.
    wave: the new wave.
  """
  choose, select, _, settings = parts.stages
  in_flight, due = _exchange(parts, state, fixed, wave, timer)
  with timer('batch'):
    table = buffer_lib.join(state.buffer.table, due.rows.table)
    with timer('select'):
      # Before the rounds: a round is judged by a wave that was sampled after
      # its updates.
      selection = select.feedback(state.selection, step_metrics.probe(
          due.rows.table, wave.responses.policy_step))
    curriculum = choose.update(
        curriculum, due.ask, table, due.signal.signal, due.signal.gain)
    curriculum, taken = choose.take(curriculum)
    batches = [
        buffer_lib.batch_rows(table, groups, settings.samples)
        for groups in taken]
    table, metrics = rounds.with_advantages(
        parts.advantages, table, batches, np.uint32(state.step),
        replicate=parts.replicate)
    if settings.advantage:
      rounds.check_advantages(table, batches, settings.advantage)
  return Absorbed(
      curriculum, selection, in_flight, due, table, batches, metrics)


def _exchange(
    parts: build.Parts, state: RunState, fixed: Fixed, wave: buffer_lib.Wave,
    timer: timing.Timer) -> tuple[tuple[buffer_lib.InFlight, ...], Due]:
  """Exchanges the new wave for the one that is due: without a lag, itself."""
  if not parts.stages.settings.lag:
    return (), Due(
        wave.ask, wave.rows, wave.signal, len(wave.rows.table.group))
  # The policy that wrote the rows is gone when they are due, and nothing says
  # yet which of them are needed: all are scored, before it learns.
  with timer('score'):
    tokens = _scored(parts, state, fixed, wave.rows, rounds.masked_indices(
        wave.rows.table.valid, programs_lib.scored_rows(parts.programs)))
  with timer('batch'):
    in_flight, ask, rows = buffer_lib.exchange(
        state.in_flight, wave.ask, wave.rows._replace(tokens=tokens),
        parts.stages)
    # Its signal is computed anew: when it was sampled, earlier rows of its
    # groups may have been in flight.
    return in_flight, Due(
        ask, rows, _signal(parts, state, ask, rows.table), unscored=0)


def _signal(
    parts: build.Parts, state: RunState, ask: GroupRequests,
    table: Table) -> WaveSignal:
  """Computes the signal of a wave that has these groups and rows."""
  held = state.buffer.table
  return rounds.signal(
      parts.advantages, buffer_lib.join(held, table), ask,
      np.uint32(state.step), first=len(held.group),
      prompts=parts.stages.curriculum.max_prompts,
      samples=parts.stages.settings.samples, replicate=parts.replicate)


def score(
    parts: build.Parts, state: RunState, fixed: Fixed, absorbed: Absorbed,
    timer: timing.Timer) -> RolloutTokens:
  """Act 3: scores rows by the policy that wrote them, before it learns.

  Only rows that a round may still use cost a forward pass: those of the train
  batches, and those that wait for a later wave. The parameters are those that
  wrote them, up to the first update of `learn`.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    absorbed: table and train batches.

  Returns:
    Tokens and log-probs of the table's rows.
  """
  settings = parts.stages.settings
  with timer('score'):
    waiting = rows_of(
        absorbed.table, parts.stages.curriculum.holds(absorbed.curriculum),
        settings.samples)
    rows = rounds.to_score(
        absorbed.table, [*absorbed.batches, waiting], absorbed.due.unscored,
        size=programs_lib.scored_rows(parts.programs),
        drop_zero_advantage=settings.drop_zero_advantage)
    return buffer_lib.join(state.buffer.tokens, _scored(
        parts, state, fixed, absorbed.due.rows, rows))


def _scored(
    parts: build.Parts, state: RunState, fixed: Fixed,
    wave: buffer_lib.Buffer, rows: np.ndarray) -> RolloutTokens:
  """Returns the tokens of a wave with the scores of these rows."""
  return rounds.with_scores(
      _learning(parts, fixed), *wave, rows,
      tuple(player.params for player in state.learners))


def learn(
    parts: build.Parts, state: RunState, fixed: Fixed, absorbed: Absorbed,
    tokens: RolloutTokens, timer: timing.Timer,
) -> tuple[rounds.RoundsOutcome, buffer_lib.Buffer]:
  """Act 4: runs a round for each train batch: select rows, then update.

  Args:
    parts, state, fixed, timer: those of `take_step`.
    absorbed: table and train batches.
    tokens: of the table's rows.

  Returns:
    The outcome of the rounds, and the rows that are held for later steps.
  """
  def select(*of_round):
    with timer('select'):
      return parts.stages.selection.select(*of_round)

  with timer('update'):
    learned = rounds.run(
        _learning(parts, fixed), state.learners, absorbed.table, tokens,
        absorbed.batches, select, absorbed.selection, rounds.RunCounts(
            state.step, state.rounds, int(jax.device_get(state.learner.step))))
    return learned, buffer_lib.keep(
        buffer_lib.Buffer(learned.table, tokens), parts.stages,
        absorbed.curriculum, learned.selection)


def _learning(parts: build.Parts, fixed: Fixed) -> rounds.Learning:
  """Returns what scores and updates are made with."""
  return rounds.Learning(
      parts.programs.learner, fixed.loss, fixed.frozen[0], fixed.anchor,
      parts.stages, parts.processes)


def _with_scores(
    wave: buffer_lib.Wave, absorbed: Absorbed,
    tokens: RolloutTokens) -> buffer_lib.Wave:
  """Returns the step's wave with the old log-probs that were computed.

  With a lag, it is the last one in flight; else it is the end of the table.
  """
  rows, first = len(wave.rows.table.group), 0
  if absorbed.in_flight:
    tokens = absorbed.in_flight[-1].rows.tokens
  else:
    first = len(absorbed.table.group) - rows
  old = tokens.old_logprobs
  return wave._replace(rows=wave.rows._replace(
      tokens=wave.rows.tokens.replace(
          old_logprobs=None if old is None else old[first:first + rows])))


def _report(
    parts: build.Parts, state: RunState, fixed: Fixed, wave: buffer_lib.Wave,
    absorbed: Absorbed, learned: rounds.RoundsOutcome) -> step_metrics.Report:
  """Returns the report of a step, after which the run has this state."""
  programs, (choose, select, needs, settings) = (
      parts.programs, parts.stages)
  table, sampler = learned.table, programs.rollout_sampler
  return step_metrics.report(
      parts, wave, step=state.step, solved=state.solved,
      updates=learned.metrics,
      measured={
          **({'sampler/temperature': schedules.at(
              settings.temperature, state.step - 1)}
             if 'temperature' in needs.columns else {}),
          **wave.signal.metrics, **absorbed.metrics,
          **choose.metrics(absorbed.curriculum),
          **select.metrics(learned.selection), **step_metrics.of_rounds(
              learned.picked, table,
              int((state.buffer.table.group >= 0).sum()))},
      trained=table,
      flops=flops.of_step(
          programs.model, wave.responses.call, wave.judged.length,
          [(table.prompt_length[rows], table.length[rows])
           for rows, *_ in learned.picked],
          epochs=settings.epochs,
          frozen=fixed.frozen[0] is not None,
          actor=programs.players[sampler.player].model
          if sampler.player else None,
          actor_learns=settings.actor_learns))


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
  channel.agree(parts.compared(), 'between the processes')
  workdir_lib.check_shared(workdir.path, channel)
  saver = checkpoint.Checkpointer(
      workdir.path / 'checkpoints', parts.described(),
      keep=config.checkpoint.keep, timeout=config.checkpoint.timeout,
      channel=channel)
  restored = saver.restore(
      init_state(parts, parts.programs.learner.state),
      differs=lambda saved: config_lib.resume_conflicts(
          saved, parts.described()))
  gone, metrics_writer = lambda: False, metrics.NoWriter()
  if channel.first:
    step = restored.step if restored else None
    summary.begin(workdir, step or 0, config.steps)
    parts.describe(workdir.path)
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
  compiles.expect(parts.large_programs())
  layout = parts.layout() if parts.programs.mesh.size > 1 else ''
  display.note(parts.ends() + parts.updates() + layout)
  if size := buffer_lib.size(parts.stages):
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
  starts = []
  for number in range(len(parts.programs.players)):
    player, name = parts.player(number), 'sft' + '-actor' * number
    with phases.phase('weights' + ' of the actor' * number), sft.reported(
        player, display, workdir, name) as report:
      starts.append(start_weights.start(
          player, report, resumed=bool(restored), name=name))
  params, frozen, anchors = zip(*starts)
  fixed = Fixed(
      sampling=parts.sampling(),
      loss=parts.replicate(choices.loss_params(parts.config)),
      anchor=anchors[0], frozen=frozen)
  if not restored:
    # The hooks of step 0 evaluate the start weights, and save them.
    return init_state(parts, parts.programs.learner.init(*params)), fixed, (
        Notes(due=Output({}, [], '')))
  display.note(f'Going on from step {restored.step} of {parts.config.steps}.')
  host = restored.host
  return restored.state, fixed, Notes(
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
            state, report = take_step(
                run.parts, state, run.fixed, run.timer)
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
      timing.speed, run.timer.take(), tokens=report.tokens, flops=report.flops,
      memory=flops.peak_memory())
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
          state.learner.params, run.fixed.frozen[0]), state.step)
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
      state.step, state, _host(run), score=score, again=again)


def _host(run: Run) -> dict[str, Any]:
  """Returns what a checkpoint keeps beside the state; `_begin` reads it."""
  notes = run.notes
  return dict(
      start=notes.start, latest=notes.latest,
      due=notes.due and notes.due._asdict(),
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
        workdir.path, parts.describe, parts.described(), state.step, state,
        _host(run), channel))
