"""Configs: made from the table in `fields.py`, a file, and the command line.

A config file is a document: at its top the command, the time it takes and what
it should reach, then

  from jaxrl_llm import config

  def get_config(arg=None):
    c = config.base()
    c.steps = 300
    c.loss.clip_high = 0.28
    return c

and, if it is to be swept, `get_hyper(hyper)` (see `launch/hyper.py`). The
command line overrides it field by field:

  python -m jaxrl_llm.train --config=configs/countdown.py \
      --config.steps=10 --config.loss.clip_high=.28

`--config=file.py:arg` calls `get_config(arg)`, `--config=run/config.json` takes
up the config that a run wrote down, and `--help` prints every field.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import sys
from typing import Any, Iterator, Mapping, Sequence

from ml_collections import ConfigDict
from rich import console, table

from jaxrl_llm import config_file, fields, schedules, tasks
from jaxrl_llm.models.config import ModelConfig, PRESETS, RopeScaling

Flat = dict[str, Any]

# What may change when a run is taken up again: it does not bear on what is
# learned, or only on how long.
FREE_TO_CHANGE = ('workdir', 'mesh', 'eval', 'eval_k', 'checkpoint', 'log')


# Fields of a model that its weights are made for.
SHAPING = (
    'vocab_size', 'width', 'layers', 'heads', 'kv_heads', 'head_dim',
    'mlp_width', 'qkv_bias', 'qk_norm', 'post_norms', 'tie_embeddings')


def free_to_change(config: ConfigDict) -> tuple[str, ...]:
  """`FREE_TO_CHANGE`, and the steps unless the learning rate goes by them."""
  constant = config.optimizer.schedule == 'constant'
  return (*FREE_TO_CHANGE, *(['steps'] if constant else []))


def base() -> ConfigDict:
  """Every field at its default; locked, except for the options in `task`."""
  config = _nested({f.name: f.default for f in fields.table().values()})
  config.task.unlock()
  return config


def load(spec: str, overrides: Mapping[str, Any] | None = None) -> ConfigDict:
  """Reads a config file and overrides some of its fields.

  Args:
    spec: 'file.py', 'file.py:arg' or 'file.json'.
    overrides: dotted field name to value, or to its text as on the command
      line. A section with a `name` takes it: {'task': 'countdown'}. Another
      task or `model.hf` leaves out what the file says of its own.

  Returns:
    The config, locked, with every option of its task.

  Raises:
    ValueError: one sentence: a missing file, an unknown field, a value of the
      wrong type or out of range.
  """
  path, _, arg = spec.partition(':')
  if path.endswith('.json'):
    given = config_file.from_json(path)
  else:
    given = config_file.get_config(path, arg)
  flat = {**flatten(base()), **flatten(given)}
  overrides = dict(overrides or {})
  if 'task' in overrides:
    overrides['task.name'] = overrides.pop('task')
  if overrides.get('task.name', flat['task.name']) != flat['task.name']:
    flat = {k: v for k, v in flat.items() if not k.startswith('task.')}
  theirs = str(flat['model.hf']).lower()  # 'none' is None
  if str(overrides.get('model.hf', theirs)).lower() != theirs:
    flat = {k: v for k, v in flat.items() if not k.startswith('model.')}
  flat = fields.check({**flat, **overrides})
  if flat['workdir'] is None:
    flat['workdir'] = f'runs/{name_of(spec)}'
  return _nested(flat)


def name_of(spec: str) -> str:
  """A name for runs of a config: 'configs/a.py:b' gives 'a-b'."""
  path, _, arg = spec.partition(':')
  stem = pathlib.Path(path).stem
  return re.sub(r'[^\w.=-]+', '-', f'{stem}-{arg}' if arg else stem)


def parse(argv: Sequence[str]) -> tuple[ConfigDict, str]:
  """Reads the command line of a program.

  Prints the fields and ends the program on `--help`; on a mistake, ends it
  with one sentence on stderr and exit code 2.

  Args:
    argv: the arguments, without the program's own name.

  Returns:
    The config, checked by `validate`, and its name.
  """
  try:
    spec, overrides = split(argv)
    if '--help' in argv:
      _print_help(spec, overrides)
      sys.exit(0)
    if spec is None:
      raise ValueError(
          'No config is given: add --config=FILE.py, such as '
          '--config=configs/countdown.py, or --help.')
    config = load(spec, overrides)
    validate(config)
  except ValueError as error:
    sys.stderr.write(f'{error}\n')
    sys.exit(2)
  return config, name_of(spec)


def flatten(config: ConfigDict | Mapping[str, Any]) -> Flat:
  """Dotted name to value."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, (ConfigDict, dict)):
      flat.update((f'{name}.{k}', v) for k, v in flatten(value).items())
    else:
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def to_json(config: ConfigDict) -> str:
  """The config as JSON, one field per line; `load` and `flatten` read it."""
  return json.dumps(flatten(config), indent=1)


def difference(
    old: ConfigDict | Mapping[str, Any], new: ConfigDict | Mapping[str, Any],
    ignore: Sequence[str] = FREE_TO_CHANGE) -> list[str]:
  """What differs between two configs, one readable line per field.

  Args:
    old: a config, or what `json.loads` made of `to_json`.
    new: the same.
    ignore: fields and sections to leave out.

  Returns:
    Lines like 'loss.clip_high: 0.2 -> 0.28'.
  """
  # A field that there was not yet when a config was saved acted as its default.
  a, b = flatten(old), flatten(new)
  task = b.get('task.name')
  for field in fields.table(task).values():
    a.setdefault(field.name, field.default)
    b.setdefault(field.name, field.default)
  missing = object()
  return [
      f'{name}: {to_text(a.get(name, "-"))} -> {to_text(b.get(name, "-"))}'
      for name in dict.fromkeys([*a, *b])
      if a.get(name, missing) != b.get(name, missing)
      and not _within(name, ignore)]


def fingerprint(config: ConfigDict, prefixes: Sequence[str]) -> str:
  """Sixteen hex digits that change when a field under `prefixes` does."""
  part = {k: v for k, v in flatten(config).items() if _within(k, prefixes)}
  text = json.dumps(part, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_text(value: Any) -> str:
  """A value as one would write it on the command line."""
  if isinstance(value, tuple):
    return ','.join(to_text(v) for v in value)
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return str(value)


def task_options(config: ConfigDict) -> dict[str, Any]:
  """The options for `tasks.get(config.task.name, **options)`."""
  return {k: v for k, v in config.task.items() if k != 'name'}


def model_config(config: ConfigDict) -> ModelConfig:
  """The preset or `model.hf`, with the fields that are not None in its place.

  Raises:
    ValueError: an unknown preset or model, or fields that do not go together.
  """
  preset = config.model.preset
  if config.model.hf:
    from jaxrl_llm.models import hf, hf_config  # --help need not wait for jax
    known = hf_config.read_config(hf.fetch(config.model.hf, weights=False))
  elif preset not in PRESETS:
    raise ValueError(
        f'model.preset={preset} is not known: use one of '
        f'{", ".join(PRESETS)}.')
  else:
    known = PRESETS[preset]
  optional = {
      f.name for f in dataclasses.fields(ModelConfig) if f.default is None}
  changes = {
      name: None if name in optional and value in (0, (0,), ()) else value
      for name, value in config.model.items()
      if name not in ('hf', 'preset') and value is not None}
  scaling = changes.get('rope_scaling')
  if scaling:
    if len(scaling) != 4:
      raise ValueError(
          f'model.rope_scaling={to_text(scaling)} must have 4 numbers: factor, '
          'low and high frequency factor, original length.')
    changes['rope_scaling'] = RopeScaling(*scaling)
  for field in SHAPING if config.model.hf else ():
    if changes.get(field, getattr(known, field)) != getattr(known, field):
      raise ValueError(
          f'model.{field}={changes[field]} is not that of '
          f'{config.model.hf}, {getattr(known, field)}: leave it out.')
  return dataclasses.replace(known, **changes)


def _nested(flat: Flat) -> ConfigDict:
  config = ConfigDict(type_safe=False)
  for name, value in flat.items():
    *section, leaf = name.split('.')
    if section and section[0] not in config:
      config[section[0]] = ConfigDict(type_safe=False)
    (config[section[0]] if section else config)[leaf] = value
  return config.lock()


def _within(name: str, prefixes: Sequence[str]) -> bool:
  return any(name == p or name.startswith(p + '.') for p in prefixes)


def split(argv: Sequence[str]) -> tuple[str | None, dict[str, str]]:
  """The config given by arguments, if one is, and the fields they override.

  Raises:
    ValueError: an argument of another form.
  """
  spec, overrides = None, {}
  for arg in argv:
    flag, equals, value = arg.partition('=')
    name = flag.removeprefix('--config.')
    if flag == '--help':
      continue
    if not equals or name == flag != '--config':
      raise ValueError(
          f'{arg} is not understood: write --config=FILE.py, '
          '--config.FIELD=VALUE or --help.')
    if flag == '--config':
      spec = value
    else:
      overrides[name] = value
  return spec, overrides


def _print_help(spec: str | None, overrides: Mapping[str, str]) -> None:
  """Every field, its value in this config and its meaning."""
  if spec:
    config = load(spec, overrides)
  else:
    config = _nested(fields.check({**flatten(base()), **overrides}))
  try:
    model = model_config(config)
  except ValueError:  # a model that is not here yet; its fields are its own
    model = None
  rows = table.Table(box=None, show_header=False, padding=(0, 1, 0, 0))
  rows.add_column(no_wrap=True, style='cyan')
  rows.add_column(max_width=16, overflow='fold')
  rows.add_column(overflow='fold')
  section = None
  for field in fields.table(config.task.name).values():
    head, _, leaf = field.name.partition('.')
    value = flatten(config)[field.name]
    text = to_text(value)
    if head == 'model' and value is None and hasattr(model, leaf):
      text = f'({to_text(getattr(model, leaf))})'
    if leaf and head != section:
      rows.add_row()
      section = head
    rows.add_row(field.name, text.replace(',', ', '), field.meaning)
  show = console.Console(highlight=False).print
  show('Usage: python -m jaxrl_llm.train --config=FILE.py[:ARG] '
       '[--config.FIELD=VALUE]\n', markup=False, soft_wrap=True)
  show(f'Fields, their values {f"in {spec}" if spec else "by default"}, and '
       'what they mean:\n', markup=False, soft_wrap=True)
  show(rows)


def validate(config: ConfigDict) -> None:
  """Checks the fields one by one and against each other.

  Args:
    config: from `load`, or made in code.

  Raises:
    ValueError: a sentence for each fault, with the field and the fix.
  """
  fields.check(flatten(config))
  fields.task_options(config.task.name)(**task_options(config))
  model = model_config(config)
  faults = list(_unknown_names(config)) or list(_conflicts(config, model))
  if faults:
    raise ValueError('\n'.join(faults))


def _unknown_names(c: ConfigDict) -> Iterator[str]:
  """A sentence for each field that names no known choice."""
  # Imported here so that --help need not wait for jax.
  from jaxrl_llm.models import attention, transformer
  from jaxrl_llm.ops import advantages, importance, kl, pkpo, policy_losses
  choices = {
      'advantage': (*advantages.ADVANTAGES, 'pkpo'),
      'pkpo.transform': pkpo.TRANSFORMS,
      'loss.objective': policy_losses.OBJECTIVES,
      'loss.aggregation': policy_losses.AGGREGATIONS,
      'loss.importance': importance.CORRECTIONS,
      'loss.kl_estimator': kl.KL_ESTIMATORS,
      'overlong.mode': ('none', 'mask', 'penalty'),
      'optimizer.schedule': ('constant', 'linear', 'cosine'),
      'learner.attention': attention.IMPLEMENTATIONS,
      'learner.remat': transformer.REMAT,
  }
  for name, value in flatten(c).items():
    known = choices.get(name)
    if known and value not in known:
      yield f'{name}={value} is not known.{tasks.closest(value, [*known])}'


def _conflicts(c: ConfigDict, model: ModelConfig) -> Iterator[str]:
  """A sentence for each pair of fields that do not go together."""
  from jaxrl_llm.ops.advantages import GROUP_RELATIVE
  if c.samples_per_prompt < 2 and c.advantage in {*GROUP_RELATIVE, 'pkpo'}:
    yield (f'samples_per_prompt=1 leaves advantage={c.advantage} nothing to '
           'compare: use 2 or more, or advantage=reinforce.')
  if c.advantage == 'pkpo' and c.samples_per_prompt > 1:
    most = c.samples_per_prompt - (c.pkpo.transform == 'sloo')
    for _, k in schedules.pieces(c.pkpo.k):
      if not 1 <= k <= most:
        yield (f'pkpo.k={k} does not fit samples_per_prompt='
               f'{c.samples_per_prompt}: {c.pkpo.transform} can use k of 1 to '
               f'{most}.')
  rows = c.prompts_per_step * c.samples_per_prompt
  if rows % c.learner.updates:
    yield (f'learner.updates={c.learner.updates} does not divide the {rows} '
           'responses of a step (prompts_per_step x samples_per_prompt): use '
           f'{_divisor(rows, c.learner.updates)}.')
  elif rows // c.learner.updates % c.learner.microbatch:
    rows //= c.learner.updates
    yield (f'learner.microbatch={c.learner.microbatch} does not divide the '
           f'{rows} responses of an optimiser step (prompts_per_step x '
           'samples_per_prompt / learner.updates): use '
           f'{_divisor(rows, c.learner.microbatch)}.')
  full = c.max_prompt + c.max_response
  for length in c.learner.buckets:
    if not 2 <= length < full:
      yield (f'learner.buckets has {length}, but row lengths below the full '
             f'one lie between 2 and {full - 1} (max_prompt + max_response - '
             '1): leave it out.')
  if c.overlong.mode == 'penalty' and not (
      1 <= c.overlong.window <= c.max_response):
    yield (f'overlong.window={c.overlong.window} must lie between 1 and '
           f'max_response={c.max_response} when overlong.mode=penalty.')
  for k in c.eval.k:
    if k > c.eval.samples:
      yield (f'eval.k={k} needs as many responses to each problem, but '
             f'eval.samples={c.eval.samples}: raise it, or leave out that k.')
  axes = (c.mesh.data, c.mesh.fsdp, c.mesh.tensor)
  if axes.count(-1) > 1 or any(size < 1 and size != -1 for size in axes):
    yield (f'mesh={to_text(axes)} (data, fsdp, tensor): use sizes of at least '
           '1, and -1 (all that are left) for one of them at most.')
  if c.learner.attention == 'cudnn':
    if model.dtype == 'float32':
      yield ('learner.attention=cudnn works on 16-bit types: set '
             'model.dtype=bfloat16, or learner.attention=xla.')
    if model.window or model.attention_softcap:
      yield ('learner.attention=cudnn has no sliding window or soft cap, which '
             f'{c.model.hf or c.model.preset} has: use learner.attention=xla.')


def _divisor(n: int, limit: int) -> int:
  """The largest divisor of n up to limit."""
  return next(d for d in range(min(n, limit), 0, -1) if n % d == 0)
