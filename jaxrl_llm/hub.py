"""The card of an exported model, and its way to the Hugging Face hub."""

import json
import os
import pathlib
import re
import shlex
from typing import Any

import huggingface_hub
from ml_collections import ConfigDict

import jaxrl_llm
from jaxrl_llm import config as config_lib
from jaxrl_llm.config.table import table
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.rewards import plain
from jaxrl_llm.storage import paths

_SITE = 'https://github.com/jaxrl-llm/jaxrl_llm'
_METHODS = ('advantage', 'loss.objective', 'loss.importance', 'curriculum',
            'selection', 'off_policy')
_ESTIMATE = r'eval/(pass@\d+|maj@\d+|greedy|mean)'
# A path that is a whole value, and the folders of one in a text. `/no_think` is
# none, and an address of the web stays.
_PATH = re.compile(r'(?!https?:)(/|~|\w+://)[^<>\n]*/(?P<name>[^/<>\n]+)')
_FOLDERS = re.compile(
    r'(?<![\w.:/<~])(?!https?:)(?:\w+:/)?(?:~[\w.-]*|/[^\s/\'"<>]+)'
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
  base, on_hub = _base(config)
  data = huggingface_hub.ModelCardData(
      base_model=base if on_hub else None, pipeline_tag='text-generation',
      library_name='gguf' if form == 'gguf' else 'transformers',
      tags=['jaxrl_llm', 'reinforcement-learning', 'rlvr'])
  start = f'[{base}](https://huggingface.co/{base})' if on_hub else (
      f'`{base}`' if config.model.hf else 'random weights')
  fields = json.dumps({
      name: _public(name, flat[name]) for name, field in table(flat).items()
      if field.affects and flat[name] != field.default}, indent=1)
  lines = [
      '---', data.to_yaml(), '---', '',
      f'# {paths.absolute(config.workdir).name}', '',
      f'Trained with [jaxrl_llm]({_SITE}) {jaxrl_llm.__version__} by '
      f'reinforcement learning with verifiable rewards, from {start}, on the '
      f'task `{_public("", config.task.name)}`. These are the weights of the '
      f'{player} after step {step} of {config.steps}, from the {which} '
      'checkpoint.', '', '| part | method |', '|---|---|',
      *(f'| {name} | `{_public("", flat[name])}` |' for name in _METHODS), '',
      *(_estimates(config, step) if player == 'policy' else ()),
      'Settings other than the defaults, paths without their folders:', '',
      '```json', fields, '```', '',
      'Saved as run.json, they train again with `jaxrl-train '
      '--config=run.json`.', '']
  return '\n'.join(lines)


def _base(config: ConfigDict) -> tuple[str, bool]:
  """Returns the name of the model to start from, and whether the hub has it."""
  name = config.model.hf or ''
  on_hub = re.fullmatch(r'\w[\w.-]*(/[\w.-]+)?', name) and (
      not pathlib.Path(name).exists())
  return (name, True) if on_hub else (os.path.basename(name.rstrip('/')), False)


def _estimates(config: ConfigDict, step: int) -> list[str]:
  """Returns a table of held-out estimates at step 0 and of the checkpoint."""
  try:
    rows = {row['step']: row for row in metrics.read(
        paths.place(config.workdir) / 'metrics.jsonl')}
  except (OSError, ValueError):  # a damaged file must not cost an export
    rows = {}
  names = [name for name in rows.get(step, {})
           if re.fullmatch(_ESTIMATE, name)]
  if not names:
    return []

  def shown(row, name):
    value, error = (plain.number(row.get(n)) for n in (name, f'{name}_error'))
    return '-' if value is None else f'{value:.3f}' + (
        '' if error is None else f' ± {error:.3f}')

  return [
      '| held-out, ± standard error | before | these weights |', '|---|---|---|',
      *(f'| {name.removeprefix("eval/")} | {shown(rows.get(0, {}), name)} | '
        f'{shown(rows[step], name)} |' for name in names), '']


def _public(name: str, value: Any) -> Any:
  """Returns the value of a field without folders of this machine and secrets.
  """
  if isinstance(value, tuple):
    return [_public(name, item) for item in value]
  if not isinstance(value, str):
    return value
  if _SECRET_NAME.search(name) or _SECRET.search(value):
    return 'not shown'
  path = _PATH.fullmatch(value)
  return path['name'] if path else _FOLDERS.sub('', value)


def create(name: str, private: bool) -> str:
  """Makes a repository of the hub, unless it is there, and returns its name.

  Args:
    name: 'NAME' or 'OWNER/NAME'.
    private: whether others cannot see a new one.

  Raises:
    ValueError: there is no token, or the hub does not take the name.
  """
  if huggingface_hub.get_token() is None:
    raise ValueError(
        f'--push={name} needs a token of the Hugging Face hub that may write: '
        'run `hf auth login`, or set HF_TOKEN.')
  api = huggingface_hub.HfApi()
  try:
    made = api.create_repo(name, private=private or None, exist_ok=True).repo_id
    api.auth_check(made, write=True)  # one that is there may be another's
    return made
  except Exception as error:  # a dozen kinds: names, rights, network
    raise ValueError(
        f'--push={name} cannot be written to ({_reason(error)}): check the '
        'name, your rights there (`hf auth whoami`) and the network, or leave '
        '--push out.') from None


def upload(folder: pathlib.Path, repository: str, message: str) -> str:
  """Uploads a folder and returns its address.

  Args:
    folder: with the model and its card.
    repository: from `create`.
    message: of the commit.

  Raises:
    OSError: the hub does not take it; the folder stays.
  """
  try:
    return str(huggingface_hub.HfApi().upload_folder(
        repo_id=repository, folder_path=folder, commit_message=message,
        delete_patterns=_stale(folder)).repo_url)
  except Exception as error:  # a dozen kinds
    raise OSError(
        f'{folder} is written, but not uploaded ({_reason(error)}). '
        f'This command uploads it again: {again(folder, repository)}') from None


def again(folder: pathlib.Path, repository: str) -> str:
  """Returns the command that does the same as `upload`."""
  return shlex.join(
      ['hf', 'upload', repository, str(folder), '.', *(
          f'--delete={pattern}' for pattern in _stale(folder))])


def _stale(folder: pathlib.Path) -> list[str]:
  """Returns which files of an earlier upload must go where the folder has none.

  Weights in other files would be read in place of the new ones.
  """
  return ['model*.safetensors*'] * any(folder.glob('*.safetensors'))


def _reason(error: Exception) -> str:
  return plain.line(plain.error(error))[:300].rstrip('.')
