"""The files on this machine that a config names, for a run on another one."""

import ast
import importlib.util
import io
import json
import os
import pathlib
import tarfile
import typing
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.base import declared, own_code
from jaxrl_llm.config import nested, table
from jaxrl_llm.models import hf
from jaxrl_llm.monitoring import trackers
from jaxrl_llm.prepare import sft_data, stages
from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import problem_files

_MOST = 1 << 30  # bytes to send
# Folders that a run writes; each machine has its own.
_WRITTEN = 'workdir', 'compilation_cache', 'sft.cache'
_SOURCES = 'task.path', 'task.heldout', 'sft.path', 'sft.heldout'
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

  def too_large(self) -> str:
    """Returns what to do about the largest file."""
    largest = max(self.files.values(), key=_size)
    return f'copy {largest} to a bucket, and give its gs:// address.'


def load(
    spec: str, overrides: Mapping[str, Any], *, hub: bool = False,
    devices: int | None = None) -> ConfigDict:
  """Loads and checks a config, and that the files that it names are here.

  Args:
    spec: as for `config.load`.
    overrides: dotted field name to value, or to its text.
    hub: whether the hub may be asked for the models.
    devices: number of those that the run will have, if it is known.

  Raises:
    ValueError: a value does not fit, or a file is not there.
  """
  config = config_lib.load(spec, overrides)
  stages.validate(config, hub=hub)
  if devices:
    sharding.axis_sizes(
        *(config.mesh[axis] for axis in sharding.AXES), devices)
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
        if path and path.is_dir() and name in _SOURCES and (
            flat['task.name'] in _WITH_FILES[1:]):
          raise ValueError(f'{text} is a folder: give the path of a file.')
      except ValueError as error:
        raise ValueError(f'{name}: {error}') from None
      if path:
        found.setdefault(name, {})[text] = path.absolute()
  return found


def _element(kind: Any) -> Any:
  """Returns the type of a field's value that is no None, or of its elements."""
  _, kind = declared.optional(kind)
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
  if kind is own_code.Name:
    return _module(text, name in nested.CHOOSING)
  if name.endswith('model.hf'):
    return hf.on_disk(text, name)
  if name == 'sft.path' and text == sft_data.DEMONSTRATIONS:
    return None
  is_file = pathlib.Path(text[:4096]).expanduser().is_file()
  if name in _SOURCES or kind is own_code.Path or name.startswith('task.') and (
      kind is str and (is_file or text.endswith(problem_files.FORMATS))):
    if problem_files.on_disk(text):
      return pathlib.Path(own_code.expanded(text))
  return None


def _module(text: str, is_plug: bool) -> pathlib.Path | None:
  """Returns the file or package of a function of the user's own, checked.

  Args:
    text: its name.
    is_plug: whether it may be a plug of this package, or a module.
  """
  if is_plug and not {*'.:'} & {*text}:
    return None
  if ':' in text or not is_plug:
    own_code.function(text)
  if own_code.file_of(text):
    return pathlib.Path(text if text.endswith('.py') else (
        text.rpartition(':')[0]))
  found = _found(_top(text))
  return found if found and _is_own(found) else None


def _found(name: str) -> pathlib.Path | None:
  """Returns the file or folder of the module that Python finds, or None."""
  spec = importlib.util.find_spec(name) if (
      name.isidentifier() and name != '__main__') else None
  if not spec:
    return None
  # A package without __init__.py has only places.
  origin = pathlib.Path(
      spec.origin or [*(spec.submodule_search_locations or [''])][0])
  return origin.parent if origin.name == '__init__.py' else origin


def _is_own(path: pathlib.Path) -> bool:
  """Returns whether a module is of the user; one within Python has no path."""
  return path.is_absolute() and not own_code.is_installed(path / 'x')


def _top(name: str) -> str:
  """Returns the outermost package of PACKAGE.MODULE:NAME."""
  return name.partition(':')[0].partition('.')[0]


def send(
    config: ConfigDict, workdir: str, root: pathlib.Path,
    more: Sequence[str] = ()) -> Sent:
  """Returns a config for another machine, and the files that it needs there.

  Args:
    config: from `load`.
    workdir: of the run there.
    root: folder of which the other machine has a copy, in which the program
      starts. Files outside of it come to `files/` there.
    more: other files or folders. Files of Python find them beside themselves,
      and the program those below this folder by their paths.

  Raises:
    ValueError: the files are too large to send.
  """
  flat = json.loads(config_lib.to_json(config))
  files: dict[str, pathlib.Path] = {}
  for text in more:
    path = pathlib.Path(os.path.abspath(text))
    if not path.exists():
      raise ValueError(f'--send={text}: there is no such file or folder.')
    files[_place(path, root)] = path
    if path.is_relative_to(pathlib.Path.cwd()):
      files[path.relative_to(pathlib.Path.cwd()).as_posix()] = path
  home = f'{pathlib.Path.home()}/'
  for name in _WRITTEN:  # `~` is another folder there
    if (flat[name] or '').startswith(home):
      flat[name] = f'~/{flat[name].removeprefix(home)}'
  flat['workdir'] = workdir
  kinds = table.table(config_lib.flatten(config))
  for name, texts in find(config).items():
    new = {}
    for text, path in texts.items():
      is_name = _element(kinds[name].kind) is own_code.Name
      by_file = not is_name or text.startswith(str(path))
      # Python finds a module in the folder of the program.
      files[_place(path, root) if by_file else path.name] = path
      for one in path.rglob('*.py') if path.is_dir() else [path]:
        if is_name:
          _imported(one, files, root)
      if by_file:
        new[text] = _place(path, root) + (
            text.removeprefix(str(path)) if is_name else '')
    flat[name] = [new.get(v, v) for v in flat[name]] if (
        isinstance(flat[name], list)) else new.get(flat[name], flat[name])
  sent = Sent(json.dumps(flat, indent=1), files, tuple(_extras(flat, files)))
  if (size := sum(map(_size, files.values()))) > _MOST:
    raise ValueError(
        f'The files to send have {size / 2 ** 30:.1f} GiB, more than '
        f'{_MOST >> 30}: {sent.too_large()}')
  return sent


def _place(path: pathlib.Path, root: pathlib.Path) -> str:
  """Returns where a file comes to on the other machine."""
  if path.is_relative_to(root):
    return path.relative_to(root).as_posix()
  return f'files/{path.relative_to(path.anchor).as_posix()}'


def _imported(file: pathlib.Path, files: dict[str, pathlib.Path],
              root: pathlib.Path) -> None:
  """Adds what a file of Python imports to the files to send.

  A module beside the file stays beside it. Another one of the user's own, which
  Python finds here by its path, comes to the folder of the program.

  Args:
    file: to be read.
    files: place there to path here.
    root: as for `send`.
  """
  try:
    names = [*_names(ast.parse(file.read_bytes()))]
  except (SyntaxError, ValueError):  # a file of its package that nobody imports
    return
  for name in names:
    path = _found(name)
    if path and not _is_own(path):
      continue  # It also hides a module or a folder of data beside the file.
    beside = [place for place in (
        file.parent / f'{name}.py', file.parent / name) if place.exists()]
    path = beside[0] if beside else path
    place = path and (_place(path, root) if beside else path.name)
    if path and place not in files:
      files[place] = path
      for one in path.rglob('*.py') if path.is_dir() else [path]:
        _imported(one, files, root)


def _names(tree: ast.AST) -> Iterator[str]:
  """Yields the outermost packages that a program may import by name."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (_top(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
      yield _top(node.module or '')
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
        'import_module'):
      yield from (_top(x.value) for x in node.args[:1] if isinstance(
          x, ast.Constant) and isinstance(x.value, str))


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
  if any(f'{flat[f"{section}.hf"]}'.endswith('.gguf')
         for section in config_lib.MODELS.values()):
    yield 'gguf'
  if flat.get('task.judge') == 'math_verify':
    yield 'math_verify'
  yield from (name for name in trackers.TRACKERS if flat[f'log.{name}'])
