"""Evaluation of a checkpoint of a run."""

import contextlib
import json
import os
from typing import Any, Callable, Sequence

from ml_collections import ConfigDict
import rich

from jaxrl_llm import checkpoint, tasks
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import phases, plain, process_state, schedules
from jaxrl_llm.evaluation import heldout, page, report, responses, weights
from jaxrl_llm.monitoring import compiles, exits, progress
from jaxrl_llm.prepare import build, describe
from jaxrl_llm.sharding import distributed
from jaxrl_llm.storage import paths
from jaxrl_llm.storage import workdir as workdir_lib
from jaxrl_llm.tasks import sets as task_sets


def _content(problem: tasks.Problem) -> tuple[int, str, str]:
  """Returns what tells a problem from others."""
  return problem.id, problem.prompt, repr(problem.info)


def problem_sets(
    parts: build.Parts, files: Sequence[str],
) -> tuple[dict[str, Sequence], int]:
  """Loads the problems to evaluate on.

  Args:
    parts: task, and config of the evaluation.
    files: sources for the task to load; none is its held-out problems, by file
      if there are several.

  Returns:
    Name to problems, each of them once, without those whose prompts are too
    long; and the number of the latter.

  Raises:
    ValueError: the task reads no files, a file has no problems that fit, or
      the task cannot read one.
  """
  task, config = parts.task, parts.config
  if files and not hasattr(task, 'load'):
    raise ValueError(
        f'The task {config.task.name} reads no files: leave out --files to '
        'evaluate on its held-out problems.')
  sets, left_out = {}, 0
  # One name for all ways to write the path of a file.
  names = [name if paths.in_bucket(name) else os.path.normpath(name)
           for name in files] or ['held-out']
  for name in dict.fromkeys(names):
    problems = task.load(name) if files else task.heldout
    once = task_sets.distinct(task_sets.once(
        problems, getattr(task, 'key', _content), [repr(name)]))
    kept, _ = build.drop_long_prompts(once, task.tokenizer, config, name)
    left_out += len(once) - len(kept)
    sets[name] = kept
  if not files:
    some = heldout.spread(sets.pop('held-out'), config.eval.problems)
    sets = {name or 'held-out': [some[row] for row in rows]
            for name, rows in heldout.by_source(some).items()}
  return sets, left_out


@process_state.narrow()
def evaluate(
    config: ConfigDict, which: str = 'best', *, files: Sequence[str] = (),
    greedy: bool = False, player: str = 'policy') -> dict[str, Any]:
  """Evaluates, and writes the results; see `jaxrl_llm.evaluate`.

  Args:
    config: checked by `config.validate`; its model must be that of the
      checkpoint, all else may differ.
    which: 'best', 'last' or 'start'.
    files: sources for the task to load; none is its held-out problems.
    greedy: use temperature 0 instead of the config's.
    player: one of config.PLAYERS.

  Returns:
    The content of `evaluation.json`: settings, `report.summary` of all
    problems, and under 'files' the summary of each file.

  Raises:
    ValueError: there is no such checkpoint, or it is of another model; the task
      cannot read the files; or the same evaluation is already running; or the
      config has no actor.
    OSError: the bucket of the workdir does not answer; or the folder of the
      responses was removed, or taken over by another process.
    Stopped: SIGTERM or SIGINT came; the responses are kept.
  """
  config = config_lib.of_player(config, player)
  paths.reachable(config.workdir)
  # A KL penalty would need a second copy of the model.
  config.loss.kl_coef = 0.0
  # Files of problems that are not evaluated need not exist.
  if files and 'path' in config.task:
    config.task.path = config.task.heldout = ()
  name = config_lib.title(config, f'evaluation of {config.workdir}')
  with (exits.stoppable(config.checkpoint.grace) as asked, progress.Display(
      name, show=distributed.first(), brief=not config.log.display) as display):
    display.say(name)
    parts = build.parts(config, training=False)
    parts.processes.channel.listen_to(asked)
    return _evaluate(parts, which, files, greedy, player, display)


def _evaluate(
    parts: build.Parts, which: str, files: Sequence[str], greedy: bool,
    player: str, display: progress.Display) -> dict[str, Any]:
  """`evaluate`, once the parts are made."""
  config, channel = parts.config, parts.processes.channel
  sets, left_out = problem_sets(parts, files)
  channel.agree(
      {f'the content of {name}': build.digest(problems)
       for name, problems in sets.items()}, 'between the processes')
  workdir = paths.place(config.workdir)
  if channel.count > 1 and channel.first:
    workdir.mkdir(parents=True, exist_ok=True)
  workdir_lib.check_shared(workdir, channel)
  temperature = 0.0 if greedy else schedules.at(config.sampling.temperature)
  with contextlib.closing(parts):
    compiled = compiles.first(display.note)
    compiles.expect(describe.large_programs(parts, training=False))
    display.note(describe.ends(parts).rstrip())
    with phases.phase('weights'):
      params, step, identity = weights.load(
          parts, which, display.update, player)
    if said := checkpoint.untrained(workdir / 'checkpoints', which, step):
      display.say(said)
    settings = weights.settings(
        parts.user_config, identity, temperature, parts.programs.model.dtype)
    if further := getattr(parts.task.tokenizer, 'further_stops', ()):
      settings['stops'] = further
    folder = workdir / 'evaluation' / config_lib.fingerprint(settings)
    with workdir_lib.held(folder, channel.first) as held:
      if channel.first:
        paths.write_whole(
            folder / 'settings.json', json.dumps(settings, indent=1))
      collected = responses.collect(
          held.local / 'responses.jsonl', parts, responses.ResponseSource(
              params, parts.sampling(temperature=temperature),
              heldout.NOISE, step),
          sets, samples=config.eval.samples, display=display,
          gone=_gone(held))
      compiled()
      every = [row for rows in collected.values() for row in rows]
      result = dict(
          workdir=str(workdir), checkpoint=which, step=step,
          temperature=temperature, samples=config.eval.samples,
          max_prompt=config.max_prompt, max_response=config.max_response,
          responses=str(folder / 'responses.jsonl'), left_out=left_out,
          **report.summary(every, config.eval.k),
          files={name: report.summary(rows, config.eval.k)
                 for name, rows in collected.items()})
      for place in (folder, workdir) if channel.first else ():
        paths.write_whole(
            place / 'evaluation.json',
            json.dumps(plain.json(result), indent=1))
        paths.write_whole(place / 'evaluation.md', report.markdown(result))
      # A checkpoint, or the model as it came, may be evaluated without a run.
      if channel.first and config.log.report and (
          workdir / 'metrics.jsonl').exists():
        page.renew(workdir, workdir)
  return result


def _gone(held: workdir_lib.Folder) -> Callable[[], str]:
  """Makes `gone` of `responses.collect`."""
  gone = held.watch('settings.json')
  return lambda: (
      f'{held.path} was removed, or taken over by another process, during the '
      'evaluation: run the same command again.') if gone() else ''


def show(result: dict[str, Any], workdir: str) -> None:
  """Prints the result of `evaluate`, in the process that writes its files."""
  if not distributed.first():
    return
  print(report.title(result))
  rich.print(report.table(result))
  for line in report.notes(result):
    print(line)
  print(f'Written to {workdir}: evaluation.md, evaluation.json; every response '
        f'to {result["responses"]}', flush=True)
