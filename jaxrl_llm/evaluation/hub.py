"""The card of an exported model, and its way to the Hugging Face hub."""

import io
import json
import os
import pathlib
import re
import shlex
from typing import Any

import huggingface_hub
from ml_collections import ConfigDict
from rich import box, console

import jaxrl_llm
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import plain
from jaxrl_llm.config.table import table
from jaxrl_llm.monitoring import metrics, progress
from jaxrl_llm.storage import paths

_METHODS = ('advantage', 'loss.objective', 'loss.importance', 'curriculum',
            'selection', 'off_policy')
# Folders of a path that is a whole value, and of one in a text. `/no_think` is
# none, and an address of the web stays.
_FOLDERS = re.compile(
    r'\A(?!https?:)(?:/|~|\w+://)[^<>\n]*/(?=[^/<>\n]+\Z)'
    r'|(?<![\w.:/<~])(?!https?:)(?:\w+:/)?(?:~[\w.-]*|/[^\s/\'"<>]+)'
    r'(?:/[^\s/\'"<>]+)*/(?=[^\s/])')
_SECRET_NAME = re.compile(r'key|secret|passw|credential|token$|auth', re.I)
_SECRET = re.compile(r'\b(hf_|sk-|gh\w_|AKIA)\w{8}|://[^/\s]*@')


def card(
    config: ConfigDict, which: str, step: int, player: str, form: str) -> str:
  """Returns the README.md of an exported model: how it was trained.

  It names no folder of this machine, and has no text that may be a secret.

  Args:
    config: of the run, for this player.
    which: 'best' or 'last' checkpoint.
    step: of the checkpoint.
    player: one of config.PLAYERS.
    form: 'safetensors' or 'gguf'.
  """
  flat = config_lib.flatten(config)
  tuned = config_lib.has_sft(config) and not config.steps
  base, on_hub = _base(config.model.hf or '')
  data = huggingface_hub.ModelCardData(
      base_model=base if on_hub else None, pipeline_tag='text-generation',
      library_name='gguf' if form == 'gguf' else 'transformers',
      tags=['jaxrl_llm', *(
          ['sft'] if tuned else ['reinforcement-learning', 'rlvr'])])
  fields = {name: _public(name, flat[name])
            for name, field in table(flat).items()
            if field.affects and flat[name] != field.default}
  # `jaxrl_llm.save` writes no metrics, and knows neither task nor advantage.
  place = paths.place(config.workdir)
  own_loop = (place / 'checkpoints').exists() and not (
      place / 'metrics.jsonl').exists()
  how = 'in a loop of its own (`Sampler`, `Learner`)' if own_loop else (
      f'on the task `{_public("", config.task.name)}`')
  by = 'reinforcement learning with verifiable rewards'
  if tuned:
    by, how = 'supervised fine-tuning', 'on ' + ', '.join(
        f'`{_public("", source)}`'
        for source in config.sft.path or ('demonstrations',))
  return '\n'.join([
      f'---\n{data.to_yaml()}\n---\n',
      f'# {paths.absolute(config.workdir).name}\n',
      f'Trained with [jaxrl_llm](https://github.com/jaxrl-llm/jaxrl_llm) '
      f'{jaxrl_llm.__version__} by {by}, from '
      f'{f"`{base}`" if base else "random weights"}, {how}. '
      f'These are the weights of the {player} after step {step}'
      f'{"" if tuned else f" of {config.steps}"}, from the {which} '
      'checkpoint.\n',
      *(f'- {name}: `{_public("", flat[name])}`' for name in _METHODS
        if not tuned and (not own_loop or name.startswith('loss.'))),
      f'\n{_estimates(config, step) if player == "policy" else ""}'
      'Settings other than the defaults, paths without their folders:\n',
      f'```json\n{json.dumps(fields, indent=1)}\n```\n',
      '' if own_loop else 'Saved as run.json, they train again with '
      f'`jaxrl-{"sft" if tuned else "train"} --config=run.json`.\n'])


def _base(name: str) -> tuple[str, bool]:
  """Returns a public name of `model.hf`, and whether the hub has the model."""
  on_hub = re.fullmatch(r'\w[\w.-]*(/[\w.-]+)?', name) and (
      not pathlib.Path(name).exists())
  return name if on_hub else os.path.basename(name.rstrip('/')), bool(on_hub)


def _estimates(config: ConfigDict, step: int) -> str:
  """Returns a table of held-out estimates at step 0 and of the checkpoint."""
  try:
    rows = {row['step']: row for row in metrics.read(
        paths.place(config.workdir) / 'metrics.jsonl')}
  except (OSError, ValueError):  # a damaged file must not cost an export
    rows = {}
  before, after = (
      {name.removeprefix('eval/'): float(value)
       for name, value in rows.get(at, {}).items()
       if name.startswith('eval/') and isinstance(value, (int, float))}
      for at in (0, step))
  shown = progress.results(before, after)
  shown.box, text = box.MARKDOWN, io.StringIO()
  console.Console(file=text, width=100, color_system=None).print(shown)
  return f'{text.getvalue()}\n' * bool(after)


def _public(name: str, value: Any) -> Any:
  """Returns a field's value without folders of this machine and secrets."""
  if isinstance(value, tuple):
    return [_public(name, item) for item in value]
  if not isinstance(value, str):
    return value
  is_secret = _SECRET_NAME.search(name) or _SECRET.search(value)
  return 'not shown' if is_secret else _FOLDERS.sub('', value)


def create_repository(name: str, private: bool) -> str:
  """Makes a repository of the hub, unless it is there, and returns its name.

  Args:
    name: 'NAME' or 'OWNER/NAME'.
    private: whether others cannot see a new one.

  Raises:
    ValueError: there is no token, or the hub does not take the name.
  """
  api = huggingface_hub.HfApi()
  try:
    if huggingface_hub.get_token() is None:
      raise ValueError('there is no token')
    made = api.create_repo(name, private=private or None, exist_ok=True).repo_id
    api.auth_check(made, write=True)  # one that is there may be another's
    return made
  except Exception as error:  # a dozen kinds: names, rights, network
    raise ValueError(
        f'--push={name} cannot be written to ({_reason(error)}): log in by '
        '`hf auth login`, and check the name, your rights there and the '
        'network.') from None


def upload(folder: pathlib.Path, repository: str, message: str) -> str:
  """Uploads a folder and returns the address of the repository.

  Args:
    folder: with the model and its card.
    repository: from `create`.
    message: of the commit.

  Raises:
    OSError: the hub does not take it, or the user interrupts; the folder stays.
  """
  # Weights of an earlier upload in other files would be read in place of these.
  old = ['model*.safetensors*'] * any(folder.glob('*.safetensors'))
  try:
    return str(huggingface_hub.HfApi().upload_folder(
        repo_id=repository, folder_path=folder, commit_message=message,
        delete_patterns=old).repo_url)
  except (Exception, KeyboardInterrupt) as error:
    again = shlex.join(['hf', 'upload', repository, str(folder), '.', *(
        f'--delete={pattern}' for pattern in old)])
    raise OSError(
        f'{folder} is written, but not uploaded ({_reason(error)}). This '
        f'command uploads it again: {again}') from None


def _reason(error: BaseException) -> str:
  return plain.line(plain.error(error))[:300].rstrip('.: ')
