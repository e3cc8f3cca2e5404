"""The files on this machine that a config names, for a run on another one."""

import importlib.util
import io
import json
import modulefinder
import pathlib
import tarfile
import typing
from typing import Any, Iterator, Mapping, NamedTuple

from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import table
from jaxrl_llm.host import stages
from jaxrl_llm.models import hf
from jaxrl_llm.monitoring import trackers
from jaxrl_llm.plugs import modules, signature
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import problem_files

_MOST = 1 << 30  # bytes to send
# Folders that a run writes; each machine has its own.
_WRITTEN = 'workdir', 'compilation_cache', 'warm_start.cache'
_SOURCES = 'task.path', 'task.heldout'
_WITH_FILES = 'arc', 'code', 'math', 'tools'


class Sent(NamedTuple):
  """A config as another machine reads it.

  Attributes:
    config: JSON; it names files by their places there.
    files: place of a file or folder there, relative to the folder in which the
      program starts, to its path here.
    extras: extras of this package that the run needs.
  """
  config: str
  files: dict[str, pathlib.Path]
  extras: tuple[str, ...]

  def write(self, archive: tarfile.TarFile, name: str) -> None:
    """Adds the config, as `name`, and the files to an archive."""
    info = tarfile.TarInfo(name)
    info.size = len(self.config.encode())
    archive.addfile(info, io.BytesIO(self.config.encode()))
    archive.dereference = True  # The hub's folders are links to files.
    for place, path in self.files.items():
      archive.add(path, place, filter=lambda one: (
          None if '__pycache__' in one.name else one))


def load(
    spec: str, overrides: Mapping[str, Any], *, hub: bool = False,
) -> ConfigDict:
  """Loads and checks a config, and that the files that it names are here.

  Args:
    spec: as for `config.load`.
    overrides: dotted field name to value, or to its text.
    hub: whether the hub may be asked for the models.

  Raises:
    ValueError: a value does not fit, or a file is not there.
  """
  config = config_lib.load(spec, overrides)
  stages.validate(config, hub=hub)
  # Environments may make problems of their own.
  if config.task.name in _WITH_FILES and not config.task.path:
    raise ValueError(
        'task.path is empty: give a file of problems, or a data set on the '
        'hub.')
  find(config)
  return config


def find(config: ConfigDict) -> dict[str, dict[str, pathlib.Path]]:
  """Finds the files on this machine that a config names.

  Returns:
    Dotted name of each field that names some, to its texts, to their absolute
    paths.

  Raises:
    ValueError: a file is not there, or does not have the function.
  """
  flat = config_lib.flatten(config)
  found: dict[str, dict[str, pathlib.Path]] = {}
  for name, field in table.table(flat).items():
    value = flat[name]
    for text in value if isinstance(value, tuple) else (value,):
      if name in _WRITTEN or not isinstance(text, str) or (
          paths.in_bucket(text)):
        continue
      try:
        path = _path(name, _element(field.kind), text)
      except ValueError as error:
        raise ValueError(f'{name}: {error}') from None
      if path:
        found.setdefault(name, {})[text] = path.absolute()
  return found


def _element(kind: Any) -> Any:
  """Returns the type of a field's value that is no None, or of its elements."""
  _, kind = signature.optional(kind)
  return (*typing.get_args(kind), kind)[0]


def _path(name: str, kind: Any, text: str) -> pathlib.Path | None:
  """Returns the file or folder that a text names; None if it names none.

  Args:
    name: of the field.
    kind: type of the text.
    text: value of the field, or one of several.

  Raises:
    ValueError: it names one that is not there.
  """
  if kind is modules.Name:
    return _module(text)
  if name.endswith('model.hf'):
    return hf.on_disk(text, name)
  is_file = pathlib.Path(text[:4096]).expanduser().is_file()
  if name in _SOURCES or kind is modules.Path or name.startswith('task.') and (
      kind is str and (is_file or text.endswith(problem_files.FORMATS))):
    if problem_files.on_disk(text):
      return pathlib.Path(modules.expanded(text))
  return None


def _module(text: str) -> pathlib.Path | None:
  """Returns the file or package of a function of the user's own, checked."""
  if not {*'.:'} & {*text}:
    return None  # a plug of this package
  if ':' in text:
    modules.function(text)
  if modules.file_of(text):
    return pathlib.Path(text if text.endswith('.py') else (
        text.rpartition(':')[0]))
  spec = importlib.util.find_spec(_top(text))
  if not spec:
    return None
  # A package without __init__.py has only places.
  origin = pathlib.Path(
      spec.origin or [*(spec.submodule_search_locations or [''])][0])
  if not origin.is_absolute() or modules.is_installed(origin):
    return None  # A module within Python has no file.
  return origin.parent if origin.name == '__init__.py' else origin


def _top(name: str) -> str:
  """Returns the outermost package of PACKAGE.MODULE:NAME."""
  return name.partition(':')[0].partition('.')[0]


def send(config: ConfigDict, workdir: str, root: pathlib.Path) -> Sent:
  """Returns a config for another machine, and the files that it needs there.

  Args:
    config: from `load`.
    workdir: of the run there.
    root: folder of which the other machine has a copy, in which the program
      starts. Files outside of it come to `files/` there.

  Raises:
    ValueError: the files are too large to send.
  """
  flat = json.loads(config_lib.to_json(config))
  files: dict[str, pathlib.Path] = {}
  home = f'{pathlib.Path.home()}/'
  for name in _WRITTEN:  # `~` is another folder there
    if (flat[name] or '').startswith(home):
      flat[name] = f'~/{flat[name].removeprefix(home)}'
  flat['workdir'] = workdir
  kinds = table.table(config_lib.flatten(config))
  for name, texts in find(config).items():
    new = {}
    for text, path in texts.items():
      is_name = _element(kinds[name].kind) is modules.Name
      if is_name and not text.startswith(str(path)):
        files[path.name] = path  # Python finds it beside the program.
        continue
      for one in _with_imports(path) if is_name else [path]:
        files[_place(one, root)] = one
      new[text] = _place(path, root) + (
          text.removeprefix(str(path)) if is_name else '')
    flat[name] = [new.get(v, v) for v in flat[name]] if (
        isinstance(flat[name], list)) else new.get(flat[name], flat[name])
    size = sum(map(_size, files.values()))
    if size > _MOST:
      raise ValueError(
          f'The files that the config names have {size / 2 ** 30:.1f} GiB with '
          f'those of {name}, too much to send: copy them to a bucket, and give '
          f'--config.{name}=gs://...')
  return Sent(json.dumps(flat, indent=1), files, tuple(_extras(flat, files)))


def _place(path: pathlib.Path, root: pathlib.Path) -> str:
  """Returns where a file comes to on the other machine."""
  if path.is_relative_to(root):
    return path.relative_to(root).as_posix()
  return f'files/{path.relative_to(path.anchor).as_posix()}'


def _with_imports(file: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a file of Python, and those beside it that it may import."""
  finder = modulefinder.ModuleFinder([str(file.parent)])
  finder.run_script(str(file))
  for module in finder.modules.values():
    if module.__file__:
      yield pathlib.Path(module.__file__)


def _size(path: pathlib.Path) -> int:
  """Returns the bytes of a file, or of the files in a folder."""
  return sum(one.stat().st_size for one in (
      path.rglob('*') if path.is_dir() else [path]) if one.is_file())


def _extras(
    flat: Mapping[str, Any], files: Mapping[str, pathlib.Path],
) -> Iterator[str]:
  """Yields the extras of this package that a config needs.

  Args:
    flat: of `Sent.config`.
    files: of `Sent`.
  """
  lists = [flat.get(name) for name in _SOURCES]
  sources = [s for found in lists if isinstance(found, list) for s in found
             if isinstance(s, str)]
  if any(s.endswith('.parquet') or not (
      s in files or paths.in_bucket(s)) for s in sources):
    yield 'data'
  if any(f'{flat[name]}'.endswith('.gguf') for name in (
      'model.hf', 'actor.model.hf')):
    yield 'gguf'
  if flat.get('task.judge') == 'math_verify':
    yield 'math_verify'
  yield from (name for name in trackers.TRACKERS if flat[f'log.{name}'])
