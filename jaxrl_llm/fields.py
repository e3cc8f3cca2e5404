"""Every field of a config: its name, default, range and meaning.

This table is the only place where a field is declared. `config.base()` is
built from it, `--help` prints it, and a value outside its range is refused by
it. The fields of a model and the options of a task come from their dataclasses,
whose docstrings give the meanings.
"""

import dataclasses
import difflib
import importlib
import inspect
import math
import operator
import re
import typing
from typing import Any, Iterable, NamedTuple

from jaxrl_llm import schedules, tasks
from jaxrl_llm.models.config import ModelConfig, RopeScaling


class Field(NamedTuple):
  """One field.

  Attributes:
    name: dotted, as on the command line after `--config.`.
    default: the value in `config.base()`.
    range: interval that numbers (or each number of a tuple) must lie in, such
      as '(0, 1]'; '' for any.
    meaning: one line, with the unit.
    kind: type of the value, where the default does not tell: `float | None`
      or `tuple[int, ...]`.
  """
  name: str
  default: Any
  range: str
  meaning: str
  kind: Any = None


_SOME, _ANY = '[1, inf)', '[0, inf)'
_INTS = tuple[int, ...]

_FIELDS = (
    ('seed', 0, '[0, 4294967295]', 'seed of parameters, data order and '
     'samples'),
    ('workdir', None, '', "folder of all that a run writes (none: runs/ and "
     "the config's name)", str | None),
    ('steps', 100, _ANY, 'steps of sampling, verifying and updating'),
    ('prompts_per_step', 32, _SOME, 'problems in a step; one comes twice '
     'where an epoch ends'),
    ('samples_per_prompt', 8, _SOME, 'responses to each problem: its group'),
    ('max_prompt', 64, _SOME, 'tokens a prompt may have'),
    ('max_response', 64, _SOME, 'tokens a response may have, stop token '
     'included; a longer one is truncated'),
    ('advantage', 'grpo', '', "how rewards become advantages: reinforce, "
     'rloo, grpo, dr_grpo, reinforce_pp or pkpo'),
    ('eval_k', (1, 2, 4, 8, 12, 16), _SOME, 'k of the pass@k that every step '
     'reports of its own prompts; those above samples_per_prompt are left out',
     _INTS),

    ('task.name', 'countdown', '', 'which task; the fields below are its own'),

    ('model.hf', None, '', 'Hugging Face model, a folder or a name on the hub: '
     'its weights, tokeniser and type, in place of the preset', str | None),
    ('model.preset', 'tiny', '', 'which model; a field below that is none is '
     "the preset's, and 0 switches an optional one off"),

    ('lora.rank', 0, _ANY, 'rank of the matrices that are trained beside '
     'frozen weights, at 10 to 100 times the learning rate (0: all weights are '
     'trained)'),
    ('lora.alpha', 16.0, '(0, inf)', 'their product is multiplied by this / '
     'rank'),
    ('lora.targets', 'q|k|v|o|gate|up|down', '', 'regular expression of the '
     'weights that get them'),

    ('sampling.temperature', 1.0, '(0, inf)', 'divides the logits, in '
     'sampling and in training alike'),
    ('sampling.top_k', 0, '[0, 2147483647]', 'draw from this many likeliest '
     'tokens (0: all)'),
    ('sampling.top_p', 1.0, '(0, 1]', 'draw from the likeliest tokens that '
     'hold this much probability (1: all)'),
    ('sampling.min_p', 0.0, '[0, 1]', "draw from tokens at least this "
     "fraction as likely as the likeliest (0: all)"),
    ('sampling.slots', 64, _SOME, 'responses decoded side by side on each '
     'data shard'),
    ('sampling.steps_per_refill', 2, _SOME, 'decode steps between two '
     'refills of free slots'),
    ('sampling.chunk', None, _SOME, 'cache positions per block of decode '
     'attention (none: all at once)', int | None),
    ('sampling.unroll', False, '', 'unroll the layers of a decode step: '
     'faster, but a slower compile and a second copy of the weights'),
    ('sampling.prompts_per_round', None, _SOME, 'prompts whose keys and '
     'values each data shard keeps at a time, beside those of its slots: less '
     'memory, more and smaller prefills (none: all)', int | None),

    ('pkpo.k', '4', '', 'k of the pass@k to optimise, with advantage=pkpo: a '
     'number, or step:value pairs such as 0:8,1500:1', schedules.Steps),
    ('pkpo.transform', 'sloo_minus_one', '', 'estimator of its gradient: '
     'sloo_minus_one, sloo or s'),
    ('pkpo.batch_std', False, '', "divide the advantages by the batch's "
     'standard deviation'),

    ('selection.signal_only', False, '', 'leave rows whose advantage is 0 out '
     'of the update: faster, and no bonus or penalty acts on them'),

    ('loss.objective', 'clip', '', 'the surrogate: clip (per token), gspo '
     '(per sequence), cispo or no_clip'),
    ('loss.aggregation', 'token_mean', '', 'how token losses are averaged: '
     'sequence_mean (GRPO), token_mean (DAPO) or constant (Dr. GRPO)'),
    ('loss.clip_low', 0.2, '[0, 1]', 'ratios below 1 minus this are clipped'),
    ('loss.clip_high', 0.2, '[0, inf]', 'ratios above 1 plus this are clipped'),
    ('loss.dual_clip', None, '(1, inf)', 'bound of the ratio where the '
     'advantage is negative, for clip and gspo (none: no bound)', float | None),
    ('loss.entropy_bonus', 0.0, '(-inf, inf)', 'weight of the entropy, in '
     'nats per token'),
    ('loss.kl_coef', 0.0, _ANY, 'weight of the KL to the policy that RL '
     'started from (0: it is not computed)'),
    ('loss.kl_estimator', 'k3', '', 'estimator of that KL: k1, k2 or k3'),
    ('loss.importance', 'none', '', 'weight for old unlike behaviour: none '
     '(1), identity (their ratio), tis, icepop or sequence_tis'),
    ('loss.importance_low', 0.5, '[0, 1]', 'icepop drops tokens with a weight '
     'below this'),
    ('loss.importance_cap', 2.0, '[1, inf]', 'tis and sequence_tis cut weights '
     'here; icepop drops tokens above'),

    ('overlong.mode', 'none', '', 'truncated responses: none (judged like any '
     'other), mask (not trained on) or penalty (soft, of DAPO)'),
    ('overlong.window', 0, _ANY, 'tokens before max_response over which the '
     'penalty grows from 0 to 1'),

    ('optimizer.learning_rate', 1e-6, _ANY, 'peak learning rate of AdamW'),
    ('optimizer.schedule', 'constant', '', 'after the warm-up: constant, '
     'linear or cosine (both to 0)'),
    ('optimizer.warmup_steps', 0, _ANY, 'optimiser steps of linear warm-up'),
    ('optimizer.b1', 0.9, '[0, 1)', 'decay of the first moment'),
    ('optimizer.b2', 0.99, '[0, 1)', 'decay of the second moment'),
    ('optimizer.eps', 1e-8, '(0, inf)', "added to the second moment's root"),
    ('optimizer.weight_decay', 0.0, _ANY, 'decoupled, times the learning '
     'rate; not on norms and biases'),
    ('optimizer.max_grad_norm', 1.0, '(0, inf)', 'longer gradients are scaled '
     'down to this global norm (none: they are not)', float | None),

    ('learner.epochs', 1, _SOME, "passes over a step's responses"),
    ('learner.updates', 1, _SOME, 'optimiser steps of each pass'),
    ('learner.microbatch', 32, _SOME, 'responses in one forward and backward '
     'pass'),
    ('learner.buckets', (), _SOME, 'row lengths (prompt and response, tokens) '
     'to compile below the full one', _INTS),
    ('learner.vocab_chunk', None, _SOME, 'tokens whose logits exist at a '
     'time (none: as many as fit in 512 MB)', int | None),
    ('learner.remat', 'none', '', 'what the backward pass computes again, for '
     'less memory: none, matmuls (all but matrix products and attention), '
     'attention (all but attention) or full (all: a third more time)'),
    ('learner.attention', 'auto', '', 'in training and prefill: xla, splash '
     '(TPU), cudnn (NVIDIA, 16-bit) or auto (splash for rows of 256 tokens '
     'or more on a TPU, else xla)'),
    ('learner.unroll', 1, _SOME, 'layers unrolled in the scan over layers: '
     'faster, but a slower compile'),

    ('mesh.data', -1, '', 'shards of the responses (-1: all devices that are '
     'left)'),
    ('mesh.fsdp', 1, '', 'shards of responses, parameters and vocabulary'),
    ('mesh.tensor', 1, '', 'shards of heads, MLP and vocabulary'),
    ('mesh.cpu_devices', None, _SOME, 'devices that a CPU counts as; one per '
     'core is fastest while matrices are small (none: 1, or what the '
     'environment says)', int | None),

    ('warm_start.steps', 0, _ANY, 'supervised steps on demonstrations before '
     'RL'),
    ('warm_start.batch', 64, _SOME, 'demonstrations in a step'),
    ('warm_start.learning_rate', 3e-3, _ANY, 'peak learning rate; cosine to 0'),
    ('warm_start.cache', 'runs/warm_start', '', 'folder that keeps the result '
     'for runs with the same warm start (none: off)', str | None),

    ('eval.every', 50, _ANY, 'steps between evaluations (0: only before and '
     'after)'),
    ('eval.problems', 0, _ANY, 'held-out problems (0: all)'),
    ('eval.samples', 8, _SOME, 'responses to each, and a greedy one'),
    ('eval.k', (1, 8), _SOME, 'k of the pass@k to report', _INTS),

    ('checkpoint.every', 50, _ANY, 'steps between checkpoints (0: only before '
     'the first and at the end)'),
    ('checkpoint.keep', 2, _SOME, 'newest checkpoints kept, beside the best'),

    ('log.every', 1, _SOME, 'steps between rows of metrics'),
    ('log.samples', 4, _ANY, 'responses written to samples.jsonl with each '
     'row'),
    ('log.tensorboard', True, '', 'write TensorBoard event files'),
    ('log.wandb', None, '', 'Weights & Biases project to send metrics to '
     '(none: nothing is sent)', str | None),
    ('log.display', True, '', 'show live progress'),
)


def _meanings(cls: type) -> dict[str, str]:
  """Name to meaning, from the Attributes section of a class's docstring."""
  _, _, section = inspect.getdoc(cls).partition('Attributes:\n')
  entries = re.findall(
      r'^ {2}(\w+): (.*(?:\n {4}.*)*)', section, re.MULTILINE)
  return {
      name: ' '.join(text.replace('`', '').split()).rstrip('.')
      for name, text in entries}


def _model_fields() -> list[Field]:
  """An override for each field of a model; None is the preset's."""
  meanings = _meanings(ModelConfig)
  fields = []
  for f in dataclasses.fields(ModelConfig):
    optional, kind = _optional(f.type)
    if kind is RopeScaling:
      kind = tuple[float, ...]
      meanings[f.name] += '; its four numbers'
    bounds = '' if kind in (bool, str) else _ANY if optional else (
        _SOME if kind is int else '(0, inf)')
    fields.append(
        Field(f'model.{f.name}', None, bounds, meanings[f.name], kind | None))
  return fields


def task_options(name: str) -> type:
  """The `Options` of a task; ValueError if there is no such task."""
  if name not in tasks.NAMES:
    raise ValueError(
        f'task.name={name} is not known.{tasks.closest(name, tasks.NAMES)}')
  return importlib.import_module(f'jaxrl_llm.tasks.{name}').Options


def _task_fields(name: str) -> list[Field]:
  """The options of a task, with the defaults of its `Options`."""
  options = task_options(name)
  meanings = _meanings(options)
  return [
      Field(f'task.{f.name}', f.default, '', meanings[f.name], f.type)
      for f in dataclasses.fields(options)]


def table(task: str | None = None) -> dict[str, Field]:
  """Every field of a config, section by section.

  Args:
    task: the task whose options to list as well; None leaves them out.

  Returns:
    Dotted name to Field, in the order of `--help`.

  Raises:
    ValueError: the task is not known.
  """
  rows = []
  for row in _FIELDS:
    field = Field(*row)
    rows.append(field._replace(kind=field.kind or type(field.default)))
    if field.name == 'task.name' and task is not None:
      rows += _task_fields(task)
    if field.name == 'model.preset':
      rows += _model_fields()
  return {field.name: field for field in rows}


def check(flat: dict[str, Any]) -> dict[str, Any]:
  """Checks every value by itself, and completes the options of the task.

  Args:
    flat: dotted name to value, or to its text as on the command line.

  Returns:
    Every field in the order of the table, each value of its field's type.

  Raises:
    ValueError: an unknown field, a value of the wrong type or out of range.
  """
  known = table(flat['task.name'])
  for name in flat:
    if name not in known:
      raise ValueError(unknown(name, known))
  return {
      name: _converted(field, flat.get(name, field.default))
      for name, field in known.items()}


def unknown(name: str, known: Iterable[str]) -> str:
  """The sentence about a field that does not exist, with the likeliest one."""
  inside = [other for other in known if other.startswith(name + '.')]
  if inside:
    return f'{name} is a section: set one of its fields, such as {inside[0]}.'

  def ratio(a, b):
    return difflib.SequenceMatcher(None, a, b).ratio()

  def likeness(other):
    a, b = name.split('.')[-1], other.split('.')[-1]
    initials = ''.join(word[:1] for word in b.split('_'))
    short = len(a) > 1 and (a == initials or b.startswith(a))
    return max(short, ratio(a, b)), ratio(name, other)

  nearest = max(known, key=likeness)
  hint = f'did you mean {nearest}? ' if likeness(nearest)[0] >= 0.6 else ''
  return f'{name} is not a field of this config: {hint}--help lists them all.'


def _converted(field: Field, value: Any) -> Any:
  """The value in its field's type and range."""
  try:
    value = _as_kind(value, field.kind)
  except (KeyError, TypeError, ValueError):
    raise ValueError(
        f'{field.name}={value} must be {_describe(field.kind)}.') from None
  if field.range and value is not None:
    low, high = map(float, field.range[1:-1].split(','))
    ends = {'[': low, ']': high}
    inside = [ends[b] for b in field.range if b in ends]
    for v in value if isinstance(value, tuple) else (value,):
      if not (low < v < high or v in inside):
        raise ValueError(f'{field.name}={v} must lie in {field.range}.')
  return value


def _optional(kind: Any) -> tuple[bool, Any]:
  """Whether None is allowed, and the type of what is not None."""
  args = typing.get_args(kind)
  if type(None) not in args:
    return False, kind
  return True, next(a for a in args if a is not type(None))


def _as_kind(value: Any, kind: Any) -> Any:
  """Converts a value, or its text; KeyError, TypeError, ValueError if wrong."""
  optional, kind = _optional(kind)
  if optional and str(value).lower() == 'none':
    return None
  if typing.get_origin(kind) is tuple:
    if isinstance(value, str):
      items = [v.strip('\'" ') for v in value.strip('()[] ,').split(',')]
      value = items if items != [''] else []
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_as_kind(v, typing.get_args(kind)[0]) for v in items)
  if kind is bool:
    return {'true': True, '1': True, 'false': False, '0': False}[
        str(value).lower()]
  if kind is schedules.Steps:
    return schedules.canonical(value)
  if kind is str:
    if not isinstance(value, str):
      raise TypeError
    return value
  if isinstance(value, bool):
    raise TypeError
  if kind is int:
    return int(value) if isinstance(value, str) else operator.index(value)
  number = float(value)
  if math.isnan(number):
    raise ValueError
  return number


def _describe(kind: Any) -> str:
  """A type, for an error."""
  optional, kind = _optional(kind)
  if typing.get_origin(kind) is tuple:
    element, = set(typing.get_args(kind)) - {...}
    text = f'{element.__name__} values with commas between them'
  elif kind is schedules.Steps:
    text = ('a whole number, or step:value pairs that begin at step 0 and '
            'ascend, such as 0:8,1500:1')
  else:
    text = {int: 'a whole number (int)', float: 'a number (float)',
            bool: 'true or false (bool)', str: 'a text (str)'}[kind]
  return f'{text}, or none' if optional else text
