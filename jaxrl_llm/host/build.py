"""From a config to the parts of a run: task, programs, sampler, advantages.

`build` is the only place that reads most of the config; `train.py` and
`evaluate.py` both start from its result.
"""

import copy
import dataclasses
import functools
import hashlib
import pathlib
from typing import Any, Callable, NamedTuple, Sequence

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding, tasks
from jaxrl_llm.base import phases, plain, schedules
from jaxrl_llm.base import tokenizer as tokenizer_lib
from jaxrl_llm.base.tokenizer import ModelTokenizer
from jaxrl_llm.host import choices, fit, memory, methods, rollout
from jaxrl_llm.host import programs as programs_lib
from jaxrl_llm.host import stages as stages_lib
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.models import hf
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import stops as stops_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.storage import compiled, paths
from jaxrl_llm.types import LearnerBatch, Rollouts


class Parts(NamedTuple):
  """The parts of a run.

  Attributes:
    task: problems and their verifier.
    kinds: kind of training problem to the indices of its problems.
    programs: device programs; their config has the choices that the
      run makes itself.
    sample: (params, prompts, requests, key, sampling, policy_step) ->
      (rollouts, counts); serves the requests of a training step.
    sample_policy: serves those of an evaluation, with the policy's parameters.
    sampling: (**changes) -> SamplingParams of the config on the device, with
      changes made to them. The temperature is the last of a schedule.
    advantages: programs from rewards to advantages and to the signal.
    key: PRNG key of the run, on the devices of the sampler.
    step_key: step [] uint32 on the device -> key of its noise, for `sample`.
    contents: 'problems', 'model' and 'actor' to digests of what the config
      names.
    user_config: the config without the choices that the run makes itself.
    processes: who holds which rows, and their channel.
    unrewarded: counter of the steps without a reward.
    needs: bytes that an update needs on each device, by the compiler; None if
      the run did not ask it.
  """
  task: tasks.Task
  kinds: dict[str, np.ndarray]
  programs: programs_lib.Programs
  sample: Callable[..., tuple[Rollouts, dict[str, int]]]
  sample_policy: Callable[..., tuple[Rollouts, dict[str, int]]]
  sampling: Callable[..., SamplingParams]
  advantages: advantages_lib.Program
  key: jax.Array
  step_key: Callable[[jax.Array], jax.Array]
  contents: dict[str, str]
  user_config: ConfigDict
  processes: Processes
  unrewarded: rollout.Unrewarded
  needs: int | None = None

  @property
  def config(self) -> ConfigDict:
    """The run's config."""
    return self.programs.config

  @property
  def stages(self) -> stages_lib.Stages:
    """The curriculum and the selection."""
    return self.programs.stages

  def described(self) -> dict[str, Any]:
    """Returns the config as a checkpoint keeps it, with `contents`."""
    return {**self.config.to_dict(), 'contents': self.contents}

  def compared(self) -> dict[str, Any]:
    """Returns the values that all processes of a run must share, by name."""
    return {
        **config_lib.flatten(self.described()),
        'the held-out problems': digest(self.task.heldout),
        'the training problems': digest(self.task.train)}

  def describe(self, folder: paths.Path) -> None:
    """Writes the files of a folder that a run needs beside its checkpoints."""
    user_config = self.user_config.copy_and_resolve_references()
    user_config.workdir = str(folder)
    paths.write_whole(
        folder / 'choices.json', config_lib.choices(self.config))
    paths.write_whole(
        folder / 'config.json', config_lib.to_json(user_config))

  def player(self, number: int) -> 'Parts':
    """Returns the parts in which a player is the policy."""
    if not number:
      return self
    contents = {**self.contents, 'model': self.contents.get('actor')}
    return self._replace(
        programs=self.programs._replace(
            config=config_lib.of_actor(self.config),
            players=self.programs.players[number:]),
        contents={k: v for k, v in contents.items() if v is not None},
        user_config=config_lib.of_actor(self.user_config))

  def close(self) -> None:
    """Ends the task's processes beside this one."""
    getattr(self.task, 'close', lambda: None)()

  def shard_rows(self, batch: LearnerBatch) -> LearnerBatch:
    """Puts a whole batch of NumPy arrays on the devices, split over data
    shards.
    """
    rows = len(batch.tokens)
    mine = self.processes.positions(rows)
    return self.processes.shard_rows(
        jax.tree.map(lambda x: x[mine], batch), rows)

  def replicate(self, tree: Any) -> Any:
    """Puts a tree of host values on every device of the learner, whole."""
    return processes_lib.replicate(tree, self.programs.learner_mesh)

  def param_shardings(self) -> Any:
    """Returns the layout of the whole model's parameters in training."""
    return sharding.shardings(
        self.programs.policy.shapes, sharding.TRAIN_RULES,
        self.programs.learner_mesh)

  def large_programs(self, training: bool = True) -> list[str]:
    """Returns the functions that take long to compile, in their order.

    Args:
      training: whether for a run; else for an evaluation. Either may have some
        of their results on disk.
    """
    config, programs = self.config, self.programs
    start = ['initial_params'] * (not config.model.hf)
    if config_lib.has_sft(config):
      start += ['score'] * bool(
          config.sft.heldout or config.sft.heldout_count) + ['update']
    if not training:
      return [*start, 'sharded_generate']
    samplers = {id(programs.sampler), id(programs.rollout_sampler.sampler)}
    score = bool({'old_logprobs', 'anchor_logprobs'} & (
        self.stages.needs.columns.keys()))
    return [
        *start * len(programs.players), *['sharded_generate'] * len(samplers),
        'wave_signal', 'batch_advantages', *['score'] * score, 'update']

  def ends(self) -> str:
    """Returns a line about the tokens and texts that end a response."""
    tokenizer = self.task.tokenizer
    # A stop token is decoded where it is not the last one.
    said = [f'{plain.shown(tokenizer.decode([i, i]))} (token {i})'
            for i in tokenizer.stop_ids]
    said += [f'the text {plain.shown(text)}'
             for text in getattr(tokenizer, 'stop_texts', ())]
    return f'A response ends with {", ".join(said)}.\n'

  def updates(self) -> str:
    """Returns a line that says how an update is computed, and its memory."""
    learner = self.config.learner
    sizes = {plan.sizes.columns for plan in self.programs.learner.plans(
        methods.minibatch_rows(self.config))}
    needs = f' and needs {self.needs / 1e9:.1f} GB' if self.needs else ''
    return (
        f'An update takes lists of {" or ".join(map(str, sorted(sizes)))} '
        f'tokens with learner.remat={learner.remat}{needs} on each device.\n')

  def layout(self) -> str:
    """Returns the layouts of training and sampling weights as tables."""
    actor = self.programs.rollout_sampler.player
    text = ''
    for number, (_, policy, _) in enumerate(self.programs.players):
      of = ' of the actor' if number else ''
      text += f'Training{of}:\n' + sharding.table(
          policy.trained, sharding.TRAIN_RULES, self.programs.learner_mesh)
      if number == actor:
        text += f'Sampling{of}:\n' + sharding.table(
            self.programs.rollout_sampler.weights, sharding.SAMPLE_RULES,
            self.programs.mesh)
    return text


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
  return {
      str(name): np.flatnonzero(index == i) for i, name in enumerate(names)}


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
    raise ValueError(
        f'The task {config.task.name} has no problems in its set {name!r}, and '
        'some are needed: the fields of config.task say where they come from, '
        '--help lists them.')
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
  fits = [n <= config.max_prompt for n in lengths]
  kept = [p for p, fit in zip(problems, fits) if fit]
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
  return kept, [n for n, fit in zip(lengths, fits) if fit]


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
  for name in ('train', 'heldout') if checked else ():
    kept, lengths[name] = drop_long_prompts(
        getattr(task, name), tokenizer, config, name)
    setattr(task, name, kept)
  return task, lengths.get('train')


def _typed(
    config: ConfigDict, model: ModelConfig | None, platform: str,
    section: str = 'model') -> tuple[ConfigDict, ModelConfig | None]:
  """Chooses the compute type of a checkpoint, if `model.dtype` does not.

  It is the type of the stored weights, but float32 on a CPU: a CPU computes in
  16 bits by converting each operand, which takes several times as long.
  """
  flat = config_lib.flatten(config)
  name = flat[f'{section}.hf']
  if not name or flat[f'{section}.dtype'] is not None:
    return config, model
  config = config.copy_and_resolve_references()
  if platform == 'cpu' and model.dtype != 'float32':
    logging.warning(
        'Computing in float32, since a CPU is slow in %s, the type of %s: '
        'set %s.dtype to choose.', model.dtype, name, section)
    model = dataclasses.replace(model, dtype='float32')
  own = config.model if section == 'model' else config.actor.model
  own.dtype = model.dtype
  return config, model


def _actor_checkpoint(
    config: ConfigDict, tokenizer: Any) -> hf.Checkpoint | None:
  """Opens the actor's checkpoint, if it has one, and compares vocabularies.

  Raises:
    ValueError: there is none, or it has other tokens than the policy's.
  """
  name = config.actor.model.hf
  if not name:
    return None
  folder = hf.fetch(name, field='actor.model.hf')
  if isinstance(tokenizer, ModelTokenizer):
    different = tokenizer_lib.differences(tokenizer, ModelTokenizer(folder))
    if different:
      (first, tokens), *_ = different.items()
      raise ValueError(
          f'actor.model.hf={name} has another vocabulary than '
          f'{tokenizer.folder}: {len(different)} ids differ, such as {first} '
          f'({tokens[1]!r} in place of {tokens[0]!r}) and {max(different)}. '
          "Choose an actor with the policy's vocabulary.")
  return hf.open_checkpoint(folder)


def _stops(tokenizer: Any) -> stops_lib.Stops:
  """Returns the tokens and texts that end a response, for the sampler."""
  texts = getattr(tokenizer, 'stop_texts', ())
  return stops_lib.Stops(tokenizer.stop_ids, stops_lib.tabulate(
      [text.encode() for text in texts], tokenizer.spelled) if texts else None)


def _mesh(config: ConfigDict) -> jax.sharding.Mesh:
  """Makes the sampler's mesh."""
  if config.mesh.cpu_devices is not None:
    sharding.split_cpu(config.mesh.cpu_devices)
  return sharding.make_mesh(
      *(config.mesh[axis] for axis in sharding.AXES),
      learner_tensor=config.mesh.learner_tensor)


def _contents(
    task: tasks.Task, **folders: pathlib.Path | None) -> dict[str, str]:
  """Returns digests of the problems, and of the files of models."""
  return {'problems': digest(task.train, ('id', 'prompt', 'info')), **{
      name: hf.digest(folder) for name, folder in folders.items() if folder}}


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
  values = {name: config.sampling[name] for name in ('top_k', 'top_p', 'min_p')}
  heat = schedules.at(config.sampling.temperature)
  return processes_lib.replicate(
      SamplingParams(**{'temperature': heat, **values, **changes}), mesh)


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
  model, actor = (
      config_lib.model_config(config), config_lib.actor_model(config))
  folder = checkpoint = None
  if config.model.hf:
    folder = hf.fetch(config.model.hf)
    checkpoint = hf.open_checkpoint(folder)
    if not tokenizer_lib.is_bare(folder):
      tokenizer = ModelTokenizer(folder)
  theirs = _actor_checkpoint(config, tokenizer) if actor else None
  for opened in filter(None, (checkpoint, theirs)):
    hf.warn_of_length(opened.folder, config.max_prompt + config.max_response)
  task, lengths = _task(
      config, model, tokenizer, training and not own_prompts)
  mesh = _mesh(config)
  platform = mesh.devices.flat[0].platform
  processes = processes_lib.make_processes(mesh, sharding.learner_mesh(
      mesh, config.mesh.learner_tensor))
  compiled.start(config.compilation_cache, processes.channel)
  config, model = _typed(config, model, platform)
  if actor:
    config, actor = _typed(config, actor, platform, 'actor.model')
  stages = stages_lib.make_stages(config, max(len(task.train), 1))
  memory.check(
      config, model, mesh, stages, len(task.heldout), training, actor)
  if training:
    _warn_of_warmup(config, stages)
  make = functools.partial(
      programs_lib.make_programs, model=model, mesh=mesh, stages=stages,
      stops=_stops(task.tokenizer), checkpoint=checkpoint, lengths=lengths,
      actor=actor and programs_lib.PlayerSource(
          config_lib.of_actor(config), actor, theirs))
  room = memory.available(mesh) if training else None
  programs, needs = fit.fitted(make, config, room and room // mesh.size)

  base_key = processes_lib.key(config.seed, programs.learner_mesh)
  fold_in = jax.jit(
      jax.random.fold_in, out_shardings=sharding.replicated(mesh))
  return Parts(
      task=task, kinds=by_kind(task.train), programs=programs,
      sample=rollout.host_sampler(programs.rollout_sampler.sampler, mesh),
      sample_policy=rollout.host_sampler(programs.sampler, mesh),
      sampling=functools.partial(_sampling, config, mesh),
      advantages=choices.advantages(config, stages.needs.of_advantage),
      key=processes_lib.key(config.seed, mesh),
      step_key=lambda step: fold_in(base_key, step),
      contents=_contents(
          task, model=folder, actor=theirs and theirs.folder),
      user_config=user_config, processes=processes,
      unrewarded=rollout.Unrewarded(), needs=needs)
