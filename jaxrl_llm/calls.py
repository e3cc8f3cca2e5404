"""Four calls for a loop of one's own: `Sampler`, `Learner`, `save`, `load`.

  sampler = jaxrl_llm.Sampler('Qwen/Qwen3-0.6B', max_response=256)
  learner = jaxrl_llm.Learner(sampler, learning_rate=1e-6)
  for step in range(100):
    samples = sampler.sample(prompts(step), 8)
    advantages = of_rewards(samples.texts)
    metrics = learner.step(samples.batch(advantages))
  jaxrl_llm.save('runs/loop', learner)

Prompts, rewards and advantages are the caller's. The calls are made of the
parts of a run: its sampler, its rounds of updates and its checkpoints. They
compute with 32 bits; JAX's option for 64 (`jax_enable_x64`) is off in each call
and as before after it.
"""

import contextlib
import pathlib
from typing import Any, Mapping, NamedTuple, Sequence

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import checkpoint
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import own_code, plain, process_state, schedules
from jaxrl_llm.base.tokenizer import is_bare, Tokenizer
from jaxrl_llm.config import names as names_lib
from jaxrl_llm.evaluation import responses as responses_lib
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.loop import rollout, scores, step_metrics
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop import step as step_lib
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.models.config import PRESETS
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import (
  build,
  choices,
  describe,
  methods,
  stages,
  start_weights,
)
from jaxrl_llm.sharding import cpu
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import RolloutTokens, Table

Prompt = str | Sequence[Mapping[str, Any]]

# Fields and sections of the config that a class sets, and the prefix of their
# last names in its keywords. Two of `loss` say what a sampler records.
_OF_SAMPLER = {
    'seed': '', 'prompts_per_step': '', 'samples_per_prompt': '',
    'max_prompt': '', 'max_response': '', 'sampling.': '', 'mesh.': '',
    'model.': '', 'lora.': 'lora_', 'loss.behaviour': '',
    'loss.replay_experts': '', 'compilation_cache': ''}
_OF_LEARNER = {
    'steps': '', 'drop_zero_advantage': '', 'sampling.temperature': '',
    'optimizer.': '', 'learner.': '', 'loss.': ''}
# They say how the steps of a run share responses.
_OF_RUN = frozenset({
    'sampling.carry_over', 'sampling.wave_steps', 'sampling.carry_groups'})
# Columns that the rows of any learner have.
_COLUMNS = frozenset({
    'anchor_logprobs', 'behaviour_logprobs', 'old_logprobs', 'policy_step',
    'prompt_length', 'response_length', 'temperature', 'tokens'})
_CHOOSING = 'objective', 'importance', 'term'  # Other options depend on them.


class Batch(NamedTuple):
  """Rows to train on, in NumPy.

  A tree of arrays whose first axis is the rows: they can be joined, reordered
  and left out by `jax.tree.map`.

  Attributes:
    tokens: prompts, responses and log-probs of B rows.
    advantages: [B] float32.
    trained: [B] bool, whether a row counts in the loss.
    policy_step: [B] int32, optimiser steps of the policy that wrote it.
    temperature: [B] float32, at which it was drawn.
  """
  tokens: RolloutTokens
  advantages: np.ndarray
  trained: np.ndarray
  policy_step: np.ndarray
  temperature: np.ndarray


class Samples(NamedTuple):
  """Responses to P prompts, n to each: R rows, those of a prompt together.

  Attributes:
    texts: R texts, with the stop text that ended them, without a stop token.
    prompt: [R] int, number of the row's prompt in the call.
    tokens: [R, T] int32, ending with the stop token if there is one; 0 after
      `lengths`.
    lengths: [R] int32, tokens of each response.
    logprobs: [R, T] float32, log-prob of each token under the distribution
      that it was drawn from; 0 after `lengths`.
    entropy: [R, T] float32, nats, of the distribution at the temperature,
      before top-k, top-p and min-p.
    truncated: [R] bool, ended by `max_response`.
    rows: the same tokens as an update takes them.
    policy_step: optimiser steps of the policy that wrote them.
    temperature: at which they were drawn.
  """
  texts: list[str]
  prompt: np.ndarray
  tokens: np.ndarray
  lengths: np.ndarray
  logprobs: np.ndarray
  entropy: np.ndarray
  truncated: np.ndarray
  rows: RolloutTokens
  policy_step: int
  temperature: float

  def batch(self, advantages: Any, trained: Any = None) -> Batch:
    """Makes a batch for `Learner.step`.

    Args:
      advantages: [R] or [P, n].
      trained: [R] or [P, n] bool, rows that count in the loss; None for all.
        The advantages of others are ignored.

    Raises:
      ValueError: a shape is another, or an advantage is not finite.
    """
    rows, prompts = len(self.texts), int(self.prompt[-1]) + 1
    advantages = _column('advantages', advantages, rows, prompts, np.float32)
    trained = np.ones(rows, bool) if trained is None else _column(
        'trained', trained, rows, prompts, bool)
    wrong = trained & ~np.isfinite(advantages)
    if wrong.any():
      row = int(wrong.argmax())
      raise ValueError(
          f'The advantage of row {row} is {advantages[row]}: give a finite '
          'one, or leave the row out by trained[row]=False.')
    return Batch(
        self.rows, np.where(trained, advantages, 0), trained,
        np.full(rows, self.policy_step, np.int32),
        np.full(rows, self.temperature, np.float32))


class Sampler:
  """Samples responses of a model.

  Its program is compiled in the first call, for `prompts_per_step` prompts and
  `samples_per_prompt` responses to each. More are sampled in several calls of
  it, fewer in one; nothing is compiled anew.

  Attributes:
    parts: of a run, see `loop.parts.Parts`; `parts.programs.model` is the
      model's architecture.
    calls: calls of `sample` so far; with the seed they fix its noise.
  """

  @process_state.narrow()
  def __init__(
      self, model: str, tokenizer: Tokenizer | None = None, *,
      prompts_per_step: int = 32, samples_per_prompt: int = 8,
      max_prompt: int = 64, max_response: int = 64,
      temperature: float | str = 1.0,
      **fields: Any):
    """Opens a model. Its weights are read by the first call that needs them.

    Args:
      model: a folder or a name on the Hugging Face hub, a GGUF file, or a
        preset such as 'tiny', which has random weights.
      tokenizer: of a preset, or of a model that was trained from one; any
        other has its own.
      prompts_per_step: prompts that one call of the program takes, and the
        learner's batch has.
      samples_per_prompt: responses to each.
      max_prompt: most tokens of a prompt.
      max_response: most tokens of a response, its stop token included.
      temperature: of the responses to train on, and of the learner's policy:
        a number, or a schedule such as '0:1.2,100:0.8', of the learner's
        `steps`.
      **fields: other fields of a run's config by their last name: `seed`, of
        random weights and of the responses; those of the sections `sampling`
        (`slots`, `top_p`, `stop`, `weights='int8'`, ...), `mesh` (`fsdp`,
        `tensor`, `cpu_devices`, ...) and `model` (`dtype`, `width`, ...), of
        LoRA as `lora_rank`, `lora_alpha` and `lora_targets`; `behaviour`,
        `replay_experts` and `compilation_cache`.

    Raises:
      ValueError: the model or an option is not valid.
    """
    if jax.process_count() > 1:
      raise ValueError(
          f'A Sampler cannot share {jax.process_count()} processes: use one '
          'process, or jaxrl_llm.run.')
    preset = model in PRESETS
    bare = preset or is_bare(pathlib.Path(model))
    if bare == (tokenizer is None):
      raise ValueError(
          f'model={model!r} {"is a preset and " * preset}has no tokeniser: '
          'give one as tokenizer=, such as '
          'jaxrl_llm.base.tokenizer.CharTokenizer(alphabet).' if bare else
          f'model={model!r} has a tokeniser of its own: leave out tokenizer=.')
    # The task only says how an answer ends in the model's chat format.
    config = config_lib.complete(config_lib.base(), {
        'model.preset' if preset else 'model.hf': model, 'task.name': 'math',
        'advantage': 'reinforce'}, 'own_loop')
    config = _changed(config, _OF_SAMPLER, 'Sampler', dict(
        prompts_per_step=prompts_per_step, max_prompt=max_prompt,
        samples_per_prompt=samples_per_prompt, max_response=max_response,
        temperature=temperature, **fields))
    self.calls = 0
    self._tokenizer = tokenizer
    self.parts = build.parts(config, training=False, tokenizer=tokenizer)
    self._weights: Any = None
    self._learner: Learner | None = None

  @property
  def tokenizer(self) -> Tokenizer:
    """Tokeniser, with the tokens and texts that end a response."""
    return self.parts.task.tokenizer

  def follow(self, learner: 'Learner') -> None:
    """Samples with the learner's newest weights from now on."""
    if self._learner is not None:
      self._learner.samplers.remove(self)
    learner.samplers.append(self)
    self._learner, self._weights = learner, None

  @process_state.narrow()
  def sample(
      self, prompts: Sequence[Prompt], n: int | None = None, *,
      temperature: float | None = None) -> Samples:
    """Samples n responses to each prompt.

    The response j to prompt i depends on the seed, the number of calls before,
    i, j and the weights, not on the number of prompts or devices.

    Args:
      prompts: texts, which the model reads as they are; or lists of messages
        with `role` and `content`, in the model's chat format.
      n: responses to each; None for `samples_per_prompt`.
      temperature: None for that of the sampler, or of its learner; 0 is
        greedy. The learner refuses rows of another one.

    Returns:
      The responses, in the order of the prompts.

    Raises:
      ValueError: there is no prompt, or one is not valid or too long.
    """
    parts, config = self.parts, self.parts.config
    n = config.samples_per_prompt if n is None else n
    if isinstance(prompts, str) or not len(prompts) or n < 1:
      raise ValueError(
          f'prompts={plain.shown(prompts)}, n={n}: give a list of at least one '
          'prompt, and n of at least 1.')
    problems = [Problem(i, _text(prompt, i, self.tokenizer), '')
                for i, prompt in enumerate(prompts)]
    weights, policy_step = self._policy()
    sampler = parts.programs.rollout_sampler.sampler
    heat = float(self._temperature() if temperature is None else temperature)
    if not heat >= 0:
      raise ValueError(f'temperature={heat} must be at least 0; 0 is greedy.')
    sampling = parts.sampling(temperature=heat)
    key = parts.step_key(parts.replicate(np.uint32(self.calls)))
    found = []
    for problem, number in responses_lib.calls(
        [range(n)] * len(problems), max_prompts=sampler.max_prompts,
        max_requests=sampler.max_requests):
      rows, local = np.unique(problem, return_inverse=True)
      of_call = [problems[i] for i in rows]
      call = rollout.SampleCall(
          of_call, rollout.encode(of_call, self.tokenizer, config.max_prompt),
          rollout.requests(local, number, config.max_response))
      found.append(rollout.respond(
          parts.sample, weights, call, key, sampling, tokenizer=self.tokenizer,
          processes=parts.processes, policy_step=policy_step))
    self.calls += 1
    free = rows_lib.empty(0, parts.stages).tokens.without('score')
    rollouts, tokens = jax.tree.map(lambda *x: np.concatenate(x), *[
        (x.rollouts, rows_lib.tokens_of(
            x, np.asarray(x.rollouts.length), free,
            parts.stages.settings.tempered)) for x in found])
    return Samples(
        [text for x in found for text in x.texts],
        np.repeat(np.arange(len(prompts)), n), rollouts.tokens,
        rollouts.length, rollouts.logprobs, rollouts.entropy,
        rollouts.truncated, tokens, policy_step, heat)

  def _temperature(self) -> float:
    """Returns the temperature of the step, by the learner that trains on it."""
    learner, parts = self._learner, self.parts
    if learner and learner.sampler is self:
      parts = learner.parts
    return schedules.at(
        parts.config.sampling.temperature, learner.steps if learner else 0)

  def _policy(self) -> tuple[Any, int]:
    """Returns the weights to sample with, and their optimiser steps."""
    to_sampling = self.parts.programs.rollout_sampler.weights.apply
    if self._learner is not None:
      # They are made anew in each call: kept, they would be in the way of the
      # update, which overwrites those that need no copy.
      state, frozen = self._learner.state, self._learner.frozen
      return to_sampling(state.params, frozen), int(state.step)
    if self._weights is None:
      start = start_weights.start(self.parts, lambda *_: None, resumed=False)
      self._weights = to_sampling(start.params, start.frozen)
    return self._weights, 0


class Learner:
  """Trains the model of a sampler, which samples with its weights from then on.

  The program is compiled in the first step, for batches of up to
  `prompts_per_step` x `samples_per_prompt` rows; other numbers of rows compile
  nothing anew.

  Attributes:
    parts: the sampler's.
    sampler: the sampler that it was made from.
    samplers: those that sample with its weights, in the order of `follow`.
    state: parameters, optimiser state and counters, on the devices.
    frozen: parameters that LoRA does not train, or None.
    steps: calls of `step` so far.
    folder: where it was last saved or loaded, or None.
  """

  @process_state.narrow()
  def __init__(
      self, sampler: Sampler, *, learning_rate: float = 1e-6,
      objective: Any = 'clip', aggregation: str = 'token_mean',
      updates: int = 1, **fields: Any):
    """Makes the learner, with the weights that the model has on disk.

    Args:
      sampler: it has the model, the sizes and the devices.
      learning_rate: peak learning rate of AdamW.
      objective: loss of a token: `clip`, `gspo`, `cispo` or another of
        `ops/policy_losses.py`, or a function of their form.
      aggregation: `token_mean`, `sequence_mean` or `constant`.
      updates: optimiser steps of a step, each on an equal share of the rows.
      **fields: other fields of a run's config by their last name: those of the
        sections `loss` (`clip_high`, `kl_coef`, `importance`, `term`, ...),
        `optimizer` (`schedule`, `warmup_steps`, ...) and `learner` (`epochs`,
        `remat`, ...); `temperature`, in place of the sampler's; `steps`,
        which schedules end with, and `drop_zero_advantage`.

    Raises:
      ValueError: an option is not valid, or the model does not fit.
    """
    config = _changed(sampler.parts.user_config, _OF_LEARNER, 'Learner', dict(
        learning_rate=learning_rate, objective=objective,
        aggregation=aggregation, updates=updates, **fields))
    self.parts = parts = build.parts(
        config, own_prompts=True, tokenizer=sampler._tokenizer)
    there = _COLUMNS | sampler.parts.stages.needs.columns.keys()
    for name, needed in methods.named(parts.config).items():
      if needed and name not in there:
        raise ValueError(
            f'A function of the loss names the column {name}, which rows of a '
            f'loop of your own do not have: they have '
            f'{", ".join(sorted(there))}.')
    self.sampler, self.steps = sampler, 0
    self.folder: paths.Path | None = None
    self.samplers: list[Sampler] = []
    start = start_weights.start(parts, lambda *_: None, resumed=False)
    self.frozen = start.frozen
    self.state = parts.programs.learner.init({POLICY: start.params})[POLICY]
    self._fixed = Fixed(
        sampling=None, anchors=start.anchors, frozen={POLICY: start.frozen},
        loss=parts.replicate(choices.loss_params(parts.config)))
    sampler.follow(self)

  @process_state.narrow()
  def step(self, batch: Batch) -> dict[str, float]:
    """Takes `updates` optimiser steps on a batch, in each of `epochs`.

    Args:
      batch: at most `prompts_per_step` x `samples_per_prompt` rows. Rows of an
        earlier policy have their log-probs from `score`.

    Returns:
      Metrics by the names that a run has for them, such as 'update/loss'.

    Raises:
      ValueError: the batch has too many rows, or rows of another policy.
      FloatingPointError: three optimiser steps in a row had a loss or gradient
        that is not finite.
    """
    config = self.parts.config
    if batch.tokens.old_logprobs is None:
      done = int(self.state.step)
      late = batch.trained & (batch.policy_step != done)
      if late.any():
        raise ValueError(
            f'Row {late.argmax()} was sampled after '
            f'{batch.policy_step[late.argmax()]} optimiser steps, but there '
            f'have been {done}: take learner.score(batch) before the next '
            'step, and train on that.')
    _, heats = zip(*schedules.pieces(config.sampling.temperature, float))
    heat = batch.trained & ~np.isin(
        batch.temperature, np.array(heats, np.float32))
    if heat.any():
      raise ValueError(
          f'Row {heat.argmax()} was drawn at temperature='
          f'{batch.temperature[heat.argmax()]:g}, but the learner trains at '
          f'{" or ".join(f"{x:g}" for x in heats)}: leave it out.')
    table = self._table(batch)
    batch = self._scored(batch, table, {*self.parts.stages.needs.columns})
    # Of one size, since plans of other numbers of rows are other programs.
    rows = scores.masked_indices(
        batch.trained, config.prompts_per_step * config.samples_per_prompt)
    outcome = step_lib.run_rounds(
        self.parts, self._fixed, {POLICY: self.state},
        rows_lib.Buffer(table, batch.tokens), [rows],
        self.parts.stages.selection.select, None, step_lib.RunCounts(
            self.steps, self.steps, int(self.state.step)))
    self.state = outcome.learners[POLICY]
    self.steps += 1
    cpu.return_memory()
    return step_metrics.of_updates(outcome.metrics)

  @process_state.narrow()
  def score(self, batch: Batch) -> Batch:
    """Adds the log-probs of the policy as it is now.

    Later steps compute their ratios to these. So a batch may be trained on
    after other steps.
    """
    return self._scored(batch, self._table(batch), {
        'old_logprobs', *self.parts.stages.needs.columns})

  def _scored(self, batch: Batch, table: Table, needed: set[str]) -> Batch:
    """Adds those log-probs of these columns that the batch lacks."""
    tokens, names = batch.tokens, ('old_logprobs', 'anchor_logprobs')
    missing = {
        name: np.zeros(tokens.response.shape, np.float32)
        for name in names if name in needed and getattr(tokens, name) is None}
    asked: dict[str, Any] = {**dict.fromkeys(names), **missing}
    scored = scores.with_scores(
        self.parts, self._fixed, table, tokens.replace(**asked),
        scores.masked_indices(
            batch.trained, self.parts.programs.scored_rows),
        {POLICY: self.state}, timing.Timer())
    return batch._replace(tokens=tokens.replace(
        **{name: getattr(scored, name) for name in missing}))

  def _table(self, batch: Batch) -> Table:
    """Returns the table of a batch's rows."""
    config, tokens = self.parts.config, batch.tokens
    rows, most = len(batch.advantages), (
        config.prompts_per_step * config.samples_per_prompt)
    if rows > most:
      raise ValueError(
          f'The batch has {rows} rows, more than prompts_per_step='
          f'{config.prompts_per_step} x samples_per_prompt='
          f'{config.samples_per_prompt} of the sampler: raise one of them, or '
          'leave rows out.')
    widths = tokens.prompt.shape[1], tokens.response.shape[1]
    if widths != (config.max_prompt, config.max_response):
      raise ValueError(
          f'The rows have max_prompt, max_response={widths}, but the learner '
          f'has {config.max_prompt, config.max_response}: train on samples of '
          'its own sampler.')
    # Numbers of one prompt that its rows share, whatever calls they come from.
    known: dict[Any, int] = {}
    group = [known.setdefault((int(n), ids.tobytes()), len(known))
             for n, ids in zip(tokens.prompt_length, tokens.prompt)]
    table = rows_lib.empty(rows, self.parts.stages).table
    if table.temperature is not None:
      table.temperature[:] = batch.temperature
    return table.replace(
        group=np.array(group, np.int64), trained=batch.trained,
        advantage=batch.advantages, policy_step=batch.policy_step,
        prompt_length=tokens.prompt_length, length=tokens.length,
        generated=tokens.length, valid=np.ones(rows, bool))


def save(
    folder: str, learner: Learner, extra: Mapping[str, Any] | None = None,
) -> None:
  """Saves a learner, so that its loop goes on bit for bit.

  The folder is then like that of a run: its last two states are in
  `checkpoints`, and `jaxrl-export --workdir=FOLDER --out=OTHER` writes a model
  that transformers loads.

  Args:
    folder: on disk or in a bucket; made if needed.
    learner: with the samplers that follow it, whose counts of calls are saved
      too.
    extra: values that the loop itself has to keep, JSON-able; `load` returns
      them.

  Raises:
    OSError: the state could not be written.
    ValueError: the folder holds a run, a learner with other options, or a later
      state that was not loaded. Nothing is written.
  """
  parts, path = learner.parts, paths.absolute(folder)
  if path != learner.folder:
    there = _restore(path, learner, {})
    if there and there.step > learner.steps:
      raise ValueError(
          f'{folder} holds step {there.step}, and the learner is at step '
          f'{learner.steps}: load it before the first step, or choose another '
          'folder.')
  with contextlib.closing(checkpoint.Checkpointer(
      path / 'checkpoints', describe.described(parts))) as saver:
    describe.write(parts, path)
    saver.save(
        learner.steps, {'learners': (learner.state,)},
        dict(calls=[sampler.calls for sampler in learner.samplers],
             extra=dict(extra or {})), again=True)
    saver.check(learner.steps)
  learner.folder = path


@process_state.narrow()
def load(folder: str, learner: Learner) -> dict[str, Any] | None:
  """Loads the last saved state into a learner and its samplers.

  Args:
    folder: of `save`.
    learner: made with the same options as the one that was saved, and followed
      by as many samplers in the same order; more begin anew.

  Returns:
    `extra` of `save`, or None if nothing is saved there yet.

  Raises:
    ValueError: the state is of a run, of another model, of other options, or of
      more samplers.
  """
  path = paths.absolute(folder)
  found = _restore(path, learner, {
      'learners': (learner.parts.programs.learner.state[POLICY],)})
  if found is None:
    return None
  calls = found.host['calls']
  calls = calls if isinstance(calls, list) else [calls]  # of older versions
  if len(calls) > len(learner.samplers):
    raise ValueError(
        f'{folder} was saved with {len(calls)} samplers that followed the '
        f'learner, and {len(learner.samplers)} do: call other.follow(learner) '
        'before load.')
  learner.state, = found.state['learners']
  learner.steps, learner.folder = found.step, path
  for sampler, count in zip(learner.samplers, calls):
    sampler.calls = count
  return found.host['extra']


def _restore(
    path: paths.Path, learner: Learner, like: Any,
) -> checkpoint.Restored | None:
  """Reads the last state of a loop, of the part of it that `like` has."""
  found = checkpoint.restore(
      path / 'checkpoints', like, partial=True,
      differs=lambda saved: config_lib.resume_conflicts(
          saved, describe.described(learner.parts)))
  if found and 'calls' not in found.host:
    raise ValueError(
        f'{path} is the workdir of a run, not the folder of a loop: choose '
        'another folder.')
  return found


def _changed(
    config: ConfigDict, allowed: Mapping[str, str], who: str,
    options: Mapping[str, Any]) -> ConfigDict:
  """Sets fields of a config by the last part of their names.

  Args:
    config: whole.
    allowed: fields and sections to the text before their last name.
    who: their class, for errors.
    options: last name to value; a function stands for its name.
  """
  for first in True, False:  # files that others depend on come first
    names = {}
    for field in config_lib.flatten(config):
      if field in _OF_RUN:
        continue
      section, _, last = field.rpartition('.')
      for key in {field, f'{section}.'} & allowed.keys():
        if field not in _OF_SAMPLER or allowed is _OF_SAMPLER:
          names[allowed[key] + last] = field
    changes = {}
    for name, value in options.items():
      if (name in _CHOOSING) != first:
        continue
      if name not in names:
        said = f' {names_lib.unknown(name, names.values())}' if (
            names_lib.meanings(name)) else own_code.closest(name, [*names])
        raise ValueError(f'{who} has no option {name!r}.{said}')
      changes[names[name]] = (
          own_code.give(value) if callable(value) else value)
    config = config_lib.complete(config, changes, '')
  stages.validate(config)
  return config


def _text(prompt: Prompt, number: int, tokenizer: Tokenizer) -> str:
  """Returns the text that the model reads."""
  if not isinstance(prompt, (str, list, tuple)):
    raise ValueError(
        f'Prompt {number} is {plain.shown(prompt)}: give a text, or a list of '
        'messages.')
  if not isinstance(prompt, str):
    if not hasattr(tokenizer, 'chat'):
      raise ValueError(
          f'Prompt {number} is a list of messages, but the tokeniser has no '
          'chat format: give a text.')
    return tokenizer.chat(prompt)
  if plain.text(prompt) != prompt:
    raise ValueError(
        f'Prompt {number}, {plain.shown(prompt)}, is no valid text: correct '
        'it.')
  return tokenizer.start + prompt.removeprefix(tokenizer.start)


def _column(
    name: str, values: Any, rows: int, prompts: int, kind: Any) -> np.ndarray:
  """Returns values [R] or [P, n] of rows as an array [R]."""
  values = np.asarray(values, kind)
  if values.shape[1:] and len(values) != prompts:
    raise ValueError(
        f'{name} has the shape {values.shape}, but there are {prompts} '
        'prompts: give [rows], or [prompts, samples].')
  if values.size != rows:
    raise ValueError(
        f'{name} has the shape {values.shape}, but there are {rows} rows: give '
        'one value for each.')
  return values.reshape(rows)
