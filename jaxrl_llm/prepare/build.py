"""From a config to the parts of a run: task, programs, sampler, advantages.

`build` is the only place that reads most of the config; `train.py` and
`evaluate.py` both start from its result.
"""

import copy
import dataclasses
import functools
import hashlib
from typing import Any, Sequence

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding, tasks
from jaxrl_llm.base import own_code, phases, plain, schedules
from jaxrl_llm.base import tokenizer as tokenizer_lib
from jaxrl_llm.base.tokenizer import ModelTokenizer
from jaxrl_llm.learner.options import POLICY, TEACHER
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.models import hf
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.prepare import choices, fit, memory, methods
from jaxrl_llm.prepare import programs as programs_lib
from jaxrl_llm.prepare import stages as stages_lib
from jaxrl_llm.sampling import stops as stops_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.storage import compiled


def digest(
    problems: Sequence[tasks.Problem],
    fields: Sequence[str] = ('id', 'prompt', 'kind', 'answer', 'info')) -> str:
  """Returns a hash of fields of problems, in their order."""
  text = repr([tuple(getattr(p, name) for name in fields) for p in problems])
  return hashlib.sha256(text.encode('utf8', 'replace')).hexdigest()[:16]


def by_kind(problems: Sequence[tasks.Problem]) -> dict[str, np.ndarray]:
  """Returns the indices of the problems of each kind, by its name."""
  names, index = np.unique(
      [plain.line(p.kind) for p in problems], return_inverse=True)
  return {str(name): np.flatnonzero(index == i) for i, name in enumerate(names)}


def drop_long_prompts(
    problems: Sequence[tasks.Problem], tokenizer: Any, config: ConfigDict,
    name: str) -> tuple[Sequence[tasks.Problem], list[int]]:
  """Selects the problems whose prompts have at most `max_prompt` tokens.

  A warning counts the others: a prompt is never cut.

  Args:
    problems: any number.
    tokenizer: a `tokenizer.Tokenizer`.
    config: it has `max_prompt`.
    name: name of the set, for the warning.

  Returns:
    The problems that fit, in their order, and the tokens of their prompts.

  Raises:
    ValueError: there are no problems, none fits, or a prompt has no token or
      is not valid text.
  """
  if not len(problems):
    field = 'path' if name == 'train' else name
    raise ValueError(
        f'The task {config.task.name} has no problems in its set {name!r}, and '
        'some are needed: ' + (
            f'set config.task.{field} to a file of them.'
            if hasattr(config.task, field) else 'the fields of config.task say '
            'where they come from, --help=problems lists them.'))
  for problem in problems:
    if plain.text(problem.prompt) != problem.prompt:
      raise ValueError(
          f'The prompt {plain.shown(problem.prompt)} of the set {name!r} is no '
          'valid text: correct the problem.')
  lengths = [len(tokenizer.encode(p.prompt)) for p in phases.counted(
      problems, f'prompts of the set {name!r}', total=len(problems))]
  if not min(lengths):
    raise ValueError(
        f'The tokeniser makes no token of the prompt '
        f'{problems[lengths.index(0)].prompt[:60]!r} of the set {name!r}.')
  kept = [p for p, n in zip(problems, lengths) if n <= config.max_prompt]
  if not kept:
    raise ValueError(
        f'No prompt of the set {name!r} has at most max_prompt='
        f'{config.max_prompt} tokens, the shortest has {min(lengths)}: raise '
        'config.max_prompt.')
  if len(kept) < len(problems):
    logging.warning(
        'Left out of the set %r: %d of %d problems, whose prompts have more '
        'than max_prompt=%d tokens (the longest %d).', name,
        len(problems) - len(kept), len(problems), config.max_prompt,
        max(lengths))
  return kept, [n for n in lengths if n <= config.max_prompt]


def with_teacher_prompts(
    problems: Sequence[tasks.Problem], tokenizer: Any,
    config: ConfigDict) -> list[tasks.Problem]:
  """Adds what the teacher reads, by `teacher.hint`.

  A warning counts the problems that are left out, since the text is too long.

  Raises:
    ValueError: the function fails, returns no text or the prompts themselves,
      or no text fits.
  """
  name, most = config.teacher.hint, methods.teacher_prompt(config)
  make, kept = own_code.guarded(
      f'teacher.hint={name}', own_code.function(name)), []
  for problem in problems:
    text = make(problem)
    if not text or not isinstance(text, str) or plain.text(text) != text:
      raise ValueError(
          f'teacher.hint={name} returns {plain.shown(str(text))} for the '
          f'problem {plain.shown(problem.shown)}: return the text that the '
          'teacher reads.')
    try:
      length = len(tokenizer.encode(text))
    except ValueError as error:
      raise ValueError(f'A text of teacher.hint={name}: {error}') from None
    if 1 <= length <= most:
      kept.append(dataclasses.replace(problem, teacher_prompt=text))
  if not kept:
    raise ValueError(
        f'No text of teacher.hint={name} has at most {most} tokens: raise '
        'teacher.max_tokens.')
  if all(problem.teacher_prompt == problem.prompt for problem in kept):
    raise ValueError(
        f'teacher.hint={name} returns the prompt of each problem as it is: '
        'return another text, or leave teacher.hint out.')
  if len(kept) < len(problems):
    logging.warning(
        "Left out of the set 'train': %d of %d problems, for which "
        'teacher.hint has more than %d tokens: teacher.max_tokens raises '
        'that.', len(problems) - len(kept), len(problems), most)
  return kept


def with_stops(task: tasks.Task, config: ConfigDict, size: int) -> Any:
  """Returns a task's tokeniser with all that ends a response of the run.

  Args:
    task: of the run.
    config: of the run.
    size: of the model's vocabulary.

  Raises:
    ValueError: see `tokenizer.with_stops`.
  """
  return tokenizer_lib.with_stops(
      task.tokenizer, [*getattr(task, 'stops', ()), *config.sampling.stop],
      size)


def _task(
    config: ConfigDict, model: ModelConfig, tokenizer: Any,
    checked: bool) -> tuple[tasks.Task, list[int] | None]:
  """Makes the task; if its sets are checked, without prompts that are too long.

  Returns:
    The task and, if its sets are checked, the tokens of each training prompt.
  """
  with phases.phase('reading the problems'):
    task = copy.copy(tasks.get(
        config.task.name, tokenizer, **{
            k: v for k, v in config.task.items() if k != 'name'}))
    getattr(task, 'ready', lambda: None)()
    if hasattr(task, 'turns') and not methods.has_turns(config):
      raise ValueError(
          f'task.name={config.task.name} makes a task with `turns`, so it '
          'needs an option max_turns: add it to what `create` takes.')
  tokenizer = task.tokenizer = with_stops(task, config, model.vocab_size)
  needed = max(tokenizer.vocab_size, *(i + 1 for i in tokenizer.stop_ids))
  if model.vocab_size < needed:
    raise ValueError(
        f'model.vocab_size={model.vocab_size} is less than the {needed} tokens '
        'of the tokeniser: raise it, or take the tokeniser of the model.')
  lengths = {}
  if checked and config.teacher.hint:
    task.train = with_teacher_prompts(task.train, tokenizer, config)
  for name in ('train', 'heldout') if checked else ():
    kept, lengths[name] = drop_long_prompts(
        getattr(task, name), tokenizer, config, name)
    setattr(task, name, kept)
  return task, lengths.get('train')


def _typed(
    config: ConfigDict, models: dict[str, ModelConfig], platform: str,
) -> tuple[ConfigDict, dict[str, ModelConfig]]:
  """Chooses the compute types of checkpoints, where `model.dtype` does not.

  It is the type of the stored weights, but float32 on a CPU: a CPU computes in
  16 bits by converting each operand, which takes several times as long.
  """
  flat, config = config_lib.flatten(config), (
      config.copy_and_resolve_references())
  for player, model in models.items():
    section = config_lib.MODELS[player]
    name = flat[f'{section}.hf']
    if not name or flat[f'{section}.dtype'] is not None:
      continue
    if platform == 'cpu' and model.dtype != 'float32':
      logging.warning(
          'Computing in float32, since a CPU is slow in %s, the type of %s: '
          'set %s.dtype to choose.', model.dtype, name, section)
      model = dataclasses.replace(model, dtype='float32')
    models = models | {player: model}
    config.update_from_flattened_dict({f'{section}.dtype': model.dtype})
  return config, models


def _checkpoints(
    config: ConfigDict, tokenizer: Any) -> tuple[dict[str, hf.Checkpoint], Any]:
  """Opens the checkpoints of players that have one, and compares vocabularies.

  Returns:
    The checkpoints, and the policy's tokeniser: that of its checkpoint, if it
    has one, else the given one.

  Raises:
    ValueError: there is no checkpoint, or it has other tokens than the
      policy's.
  """
  found, flat = {}, config_lib.flatten(config)
  for player, section in config_lib.MODELS.items():
    name = flat[f'{section}.hf']
    if not name:
      continue
    folder = hf.fetch(name, field=f'{section}.hf')
    if player == POLICY:
      if not tokenizer_lib.is_bare(folder):
        tokenizer = ModelTokenizer(folder)
    elif not isinstance(tokenizer, ModelTokenizer):
      if not tokenizer_lib.is_bare(folder):
        raise ValueError(
            f'{section}.hf={name} has a tokenizer of its own, and the policy '
            'has that of the task: choose a model that was trained with it, or '
            'a policy (model.hf) with a tokenizer.')
    else:
      different = tokenizer_lib.differences(tokenizer, ModelTokenizer(folder))
      if different:
        (first, tokens), *_ = different.items()
        raise ValueError(
            f'{section}.hf={name} has another vocabulary than '
            f'{tokenizer.folder}: {len(different)} ids differ, such as {first} '
            f'({tokens[1]!r} in place of {tokens[0]!r}) and {max(different)}. '
            "Choose a model with the policy's vocabulary.")
    found[player] = hf.open_checkpoint(folder)
    limits = {'max_prompt': config.max_prompt}
    if player == (TEACHER if TEACHER in config_lib.players(flat) else POLICY):
      limits['teacher.max_tokens'] = methods.teacher_prompt(config)
    longest = max(limits, key=limits.__getitem__)
    hf.warn_of_length(folder, longest, limits[longest] + config.max_response)
  return found, tokenizer


def _stops(tokenizer: Any) -> stops_lib.Stops:
  """Returns the tokens and texts that end a response, for the sampler."""
  texts = getattr(tokenizer, 'stop_texts', ())
  after = getattr(tokenizer, 'after_last_answer', str)()
  closing = tuple(tokenizer.encode(after)) if after else ()
  return stops_lib.Stops(
      tokenizer.stop_ids, stops_lib.tabulate(
          [text.encode() for text in texts], tokenizer.spelled)
      if texts else None, closing if {*closing[:1]} & {*tokenizer.stop_ids}
      else ())


def _contents(
    task: tasks.Task, checkpoints: dict[str, hf.Checkpoint],
    config: ConfigDict) -> dict[str, str]:
  """Returns digests of the problems, and of the files of models."""
  fields = 'id', 'prompt', 'info', *['teacher_prompt'] * bool(
      config.teacher.hint)
  return {'problems': digest(task.train, fields), **{
      'model' if player == POLICY else player: hf.digest(checkpoint.folder)
      for player, checkpoint in checkpoints.items()}}


def _warn_of_warmup(config: ConfigDict, stages: stages_lib.Stages) -> None:
  """Warns if the learning rate never reaches its peak."""
  given, steps = config.optimizer, programs_lib.updates_of_run(config, stages)
  if given.schedule != 'constant':
    steps = min(steps, given.decay_steps or steps)
  if given.warmup_steps > steps > 0:
    logging.warning(
        'optimizer.warmup_steps=%d is more than the %d optimiser steps of the '
        'run or its schedule, so that the learning rate never reaches its '
        'peak: lower it.', given.warmup_steps, steps)


def _sampling(
    config: ConfigDict, mesh: jax.sharding.Mesh, **changes: Any,
) -> SamplingParams:
  """Computes `Parts.sampling`."""
  heat = schedules.at(config.sampling.temperature)
  return processes_lib.replicate(config_lib.as_section(
      SamplingParams, config.sampling, **{'temperature': heat, **changes}),
                                 mesh)


def parts(
    config: ConfigDict, training: bool = True, *, own_prompts: bool = False,
    tokenizer: Any = None) -> Parts:
  """Makes the parts of a run. Nothing is compiled yet.

  Args:
    config: checked by `config.validate`.
    training: False does not check the task's sets of problems: they may be
      empty, or have prompts that are too long.
    own_prompts: whether the caller has prompts of its own. Then the sets are
      not checked either.
    tokenizer: of the task, if the model has none; None for the task's own.

  Returns:
    The parts.

  Raises:
    ValueError: values that do not fit together, in one sentence.
  """
  user_config, config = config, config_lib.with_saved_auto_values(config)
  models = config_lib.models(config)
  checkpoints, tokenizer = _checkpoints(config, tokenizer)
  task, lengths = _task(
      config, models[POLICY], tokenizer, training and not own_prompts)
  if config.mesh.cpu_devices is not None:
    sharding.split_cpu(config.mesh.cpu_devices)
  mesh = sharding.make_mesh(
      *(config.mesh[axis] for axis in sharding.AXES),
      learner_tensor=config.mesh.learner_tensor)
  platform = mesh.devices.flat[0].platform
  processes = processes_lib.make_processes(mesh, sharding.learner_mesh(
      mesh, config.mesh.learner_tensor))
  compiled.start(config.compilation_cache, processes.channel)
  config, models = _typed(config, models, platform)
  stages = stages_lib.make_stages(config, max(len(task.train), 1))
  memory.check(config, models, mesh, stages, len(task.heldout), training)
  if training:
    _warn_of_warmup(config, stages)
  make = functools.partial(
      programs_lib.make_programs, models=models, mesh=mesh, stages=stages,
      stops=_stops(task.tokenizer), checkpoints=checkpoints, lengths=lengths)
  room = memory.available(mesh) if training else None
  programs, needs = fit.fitted(make, config, room and room // mesh.size)

  base_key = processes_lib.key(config.seed, programs.learner_mesh)
  fold_in = jax.jit(jax.random.fold_in, out_shardings=sharding.replicated(mesh))
  return Parts(
      task=task, kinds=by_kind(task.train), programs=programs,
      sample=rollout.host_sampler(programs.rollout_sampler.sampler, mesh),
      sample_policy=rollout.host_sampler(programs.sampler, mesh),
      sampling=functools.partial(_sampling, config, mesh),
      advantages=choices.advantages(config, stages.needs.of_advantage),
      key=processes_lib.key(config.seed, mesh),
      step_key=lambda step: fold_in(base_key, step),
      contents=_contents(task, checkpoints, config), user_config=user_config,
      processes=processes, needs=needs, unrewarded=rollout.Unrewarded(
          stages.settings.carry.requests if stages.settings.carry else 0))
