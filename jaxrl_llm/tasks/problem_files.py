"""Problems read from JSON lines, Parquet files or the Hugging Face hub.

A source is either the path of a file that ends in `.jsonl`, `.jsonl.gz`,
`.json` (a list) or `.parquet`; or a data set on the hub: `org/name`,
`org/name:split` or `org/name/subset:split`. The default split is `train`.
"""

import contextlib
import gzip
import json
import pathlib
from typing import Any, Iterator, Mapping, Sequence
import zlib

from jaxrl_llm.base import own_code, plain
from jaxrl_llm.storage import paths

FORMATS = ('.jsonl', '.jsonl.gz', '.json', '.parquet')

Row = Mapping[str, Any]
Fault = tuple[str, str]  # where a bad row is, and what is wrong with it
_PATIENCE = 5.0  # seconds to wait for the hub
_SHOWN = 5  # bad rows that an error lists
_DEEPEST = 100  # lists and dictionaries within one another
_LONGEST = 10**4300  # the first number that Python does not read by default


def refuse(faults: Sequence[Fault]) -> None:
  """Raises a ValueError about bad rows: how many, and the first of them."""
  if not faults:
    return
  if len(faults) == 1:
    raise ValueError(': '.join(faults[0]))
  files = {where.rpartition(', ')[0] for where, _ in faults}
  alike: dict[str, list[str]] = {}
  for where, said in faults[:_SHOWN]:
    alike.setdefault(said.rstrip('.'), []).append(
        where if len(files) > 1 else where.rpartition(', ')[2])
  shown = '; '.join(
      f'{", ".join(places)}: {said}' for said, places in alike.items())
  more = len(faults) - _SHOWN
  raise ValueError(
      f'{" and ".join(sorted(files))} has {len(faults)} bad rows: {shown}'
      + (f'; and {more} more.' if more > 0 else '.'))


def lost(value: Any, depth: int = 0) -> str:
  """Returns the part of a value that JSON does not keep as it is, or ''.

  A tuple becomes a list. Numbers of NumPy and other types of numbers and texts
  are no longer of their type.

  Args:
    value: any.
    depth: of the value within others.
  """
  kind = type(value)
  if kind is dict and depth < _DEEPEST:
    keys = [key for key in value if type(key) is not str]
    if keys:
      return f'the key {plain.shown(keys[0])}'
    return lost([*value, *value.values()], depth)
  if kind in (list, tuple) and depth < _DEEPEST:
    return next(filter(None, (lost(part, depth + 1) for part in value)), '')
  if kind is str and plain.text(value) != value:
    return f'{plain.shown(value)}, a text with halves of surrogates,'
  kept = kind in (bool, float, str, type(None)) or (
      kind is int and abs(value) < _LONGEST)
  return '' if kept else f'{plain.shown(value)} ({kind.__name__})'


def names(sources: Sequence[str]) -> dict[str, str]:
  """Returns a short name for each source: '' for the only one.

  It is the file's, without folder and ending, where no other has it.
  """
  short = {source: pathlib.PurePath(source).name.partition('.')[0]
           for source in sources}
  if len(short) < 2:
    return dict.fromkeys(short, '')
  found = [*short.values()]
  return {source: name if found.count(name) == 1 else source
          for source, name in short.items()}


def on_disk(source: str) -> bool:
  """Returns whether a source is a file or folder, not a data set on the hub.

  Raises:
    ValueError: it can only be a path, and nothing is there.
  """
  path = pathlib.Path(own_code.expanded(source))
  if path.exists():
    return True
  if source.endswith(FORMATS) or source.count('/') not in (1, 2) or (
      source.startswith(('/', '.', '~'))) or any(
          path.with_name(path.name + form).exists() for form in FORMATS):
    raise ValueError(
        f'There is no file {path.absolute()}: correct the path.')
  return False


def rows(
    source: str, faults: list[Fault] | None = None,
) -> Iterator[tuple[str, Row]]:
  """Reads the rows of a source.

  Args:
    source: see the top of this file.
    faults: gets the rows that cannot be read; None raises an error at the first
      one.

  Yields:
    Pairs: the location of a row, for error messages ('a.jsonl, line 3'), and
    its fields by name.

  Raises:
    ValueError: the source does not exist, its format is not known, or a row
      cannot be read. The message names the file and the line.
    OSError: the source is in a bucket, and cannot be fetched.
  """
  # Messages name the object of a bucket, not its copy.
  name = source if paths.in_bucket(source) else str(
      pathlib.Path(own_code.expanded(source)))
  with paths.local(name) as path:
    if not path.is_file():
      if on_disk(source):
        raise ValueError(
            f'{name} is not a file: give the path of a file in it.')
      yield from _hub(source)
    elif path.name.endswith(('.jsonl', '.jsonl.gz')):
      yield from _whole(_json_lines(path, name), faults)
    elif path.suffix == '.json':
      yield from _whole(_json(path, name), faults)
    elif path.suffix == '.parquet':
      yield from _parquet(path, name)
    else:
      raise ValueError(
          f'{source} has an unknown format: use {", ".join(FORMATS)}.')


def _whole(
    found: Iterator[tuple[str, Any]], faults: list[Fault] | None,
) -> Iterator[tuple[str, Row]]:
  """Yields the rows that are JSON objects; the others are faults."""
  for where, row in found:
    if isinstance(row, dict):
      yield where, row
      continue
    said = f'not valid JSON ({row}).' if isinstance(row, Exception) else (
        f'{str(row)[:40]!r} is not a JSON object with named fields.')
    if faults is None:
      refuse([(where, said)])
    faults.append((where, said))


def _parsed(text: bytes) -> Any:
  """Returns the value of a JSON text, or the error."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    return error


def _json_lines(path: pathlib.Path, name: str) -> Iterator[tuple[str, Any]]:
  opened = gzip.open if path.suffix == '.gz' else open
  line = 0
  try:
    with opened(path, 'rb') as file:
      for line, text in enumerate(file, 1):
        if not text.strip():
          continue
        if text.lstrip().startswith(b'[') and line == 1:
          rest = _parsed(text + file.read())
          if isinstance(rest, list):
            raise ValueError(
                f'{name} holds a JSON array, not an object on each line: name '
                'it FILE.json.')
          file.seek(len(text))
        yield f'{name}, line {line}', _parsed(text)
  except (EOFError, OSError, zlib.error) as error:
    raise ValueError(
        f'{name} cannot be read after line {line} ({error}): fetch it '
        'again.') from None


def _json(path: pathlib.Path, name: str) -> Iterator[tuple[str, Row]]:
  try:
    text = path.read_bytes()
  except OSError as error:
    raise ValueError(f'{name} cannot be read ({error}).') from None
  found = _parsed(text)
  if isinstance(found, Exception):
    lines = ': name it FILE.jsonl if each line is an object' * (
        str(found).startswith('Extra data'))
    raise ValueError(f'{name}: not valid JSON ({found}){lines}.')
  if not isinstance(found, list):
    raise ValueError(f'{name} must contain a list of problems.')
  for i, row in enumerate(found, 1):
    yield f'{name}, entry {i}', row


def _parquet(path: pathlib.Path, name: str) -> Iterator[tuple[str, Row]]:
  try:
    from pyarrow import ArrowException, parquet
  except ImportError:
    raise ValueError(
        f'{name}: Parquet files need the extra `data`: pip install '
        "'jaxrl_llm[data]'.") from None
  try:
    number = 0
    with parquet.ParquetFile(path) as file:
      for batch in file.iter_batches():
        for row in batch.to_pylist():
          number += 1
          yield f'{name}, row {number}', row
  except (ArrowException, OSError) as error:
    raise ValueError(
        f'{name} cannot be read ({error}): fetch it again.') from None


def _unreachable() -> str:
  """Returns what keeps this machine from the hub; '' if nothing does."""
  from huggingface_hub import constants, utils
  try:
    utils.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    return ''
  except Exception as error:  # one of httpx, requests or the system
    return f'{constants.ENDPOINT}: {type(error).__name__}: {error}'


@contextlib.contextmanager
def _offline() -> Iterator[None]:
  """Makes `datasets` look on the disk alone; it would try for half a minute."""
  import datasets
  from huggingface_hub import constants
  before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
  datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
  try:
    yield
  finally:
    datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _hub(source: str) -> Iterator[tuple[str, Row]]:
  try:
    import datasets
  except ImportError:
    raise ValueError(
        f'There is no file {source}, and data sets of the hub need the extra '
        "`data`: pip install 'jaxrl_llm[data]'.") from None
  name, _, split = source.partition(':')
  org, name, *subset = name.split('/')
  split = split or 'train'
  away = _unreachable()
  try:
    with _offline() if away else contextlib.nullcontext():
      found = datasets.load_dataset(f'{org}/{name}', *subset, split=split)
  except Exception as error:  # many types: wrong names, access, network
    reason = str(error).strip().split('\n')[0]
    reason = f'{type(error).__name__}: {reason}'
    if away:
      raise ValueError(
          f'There is no file {source}, and the hub has no such data set here '
          f'({reason}) and cannot be reached ({plain.line(away)}): connect to '
          'it, or give a file.') from None
    raise ValueError(
        f'There is no file {source}, and the hub has no such data set '
        f'({reason}).') from None
  for i, row in enumerate(found):
    yield f'{source}, row {i}', row
