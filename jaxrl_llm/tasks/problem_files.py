"""Problems read from JSON lines, Parquet files or the Hugging Face hub.

A source is either the path of a file that ends in `.jsonl`, `.jsonl.gz`,
`.json` (a list) or `.parquet`; or a data set on the hub: `org/name`,
`org/name:split` or `org/name/subset:split`. The default split is `train`.
"""

import gzip
import json
import pathlib
from typing import Any, Iterator, Mapping
import zlib

from jaxrl_llm.storage import paths
from jaxrl_llm.tasks import modules

FORMATS = ('.jsonl', '.jsonl.gz', '.json', '.parquet')

Row = Mapping[str, Any]


def rows(source: str) -> Iterator[tuple[str, Row]]:
  """Reads the rows of a source.

  Args:
    source: see the top of this file.

  Yields:
    Pairs: the location of a row, for error messages ('a.jsonl, line 3'), and
    its fields by name.

  Raises:
    ValueError: the source does not exist, its format is not known, or a row
      cannot be read. The message names the file and the line.
    OSError: the source is in a bucket, and cannot be fetched.
  """
  if paths.in_bucket(source):
    with paths.local(source) as copy:
      try:
        for where, row in rows(str(copy)):
          yield where.replace(str(copy), source), row
      except ValueError as error:
        raise ValueError(str(error).replace(str(copy), source)) from None
    return
  path = pathlib.Path(modules.expanded(source))
  if path.is_file():
    if path.name.endswith(('.jsonl', '.jsonl.gz')):
      yield from _json_lines(path)
    elif path.suffix == '.json':
      yield from _json(path)
    elif path.suffix == '.parquet':
      yield from _parquet(path)
    else:
      raise ValueError(
          f'{source} has an unknown format: use {", ".join(FORMATS)}.')
  elif path.exists():
    raise ValueError(f'{path} is not a file: give the path of a file in it.')
  elif source.endswith(FORMATS) or source.count('/') not in (1, 2) or (
      source.startswith(('/', '.', '~'))):
    raise ValueError(f'There is no file {source}.')
  else:
    yield from _hub(source)


def _parsed(where: str, text: bytes) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{where}: not valid JSON ({error}).') from None


def _checked(where: str, row: Any) -> tuple[str, Row]:
  if not isinstance(row, dict):
    raise ValueError(
        f'{where}: {str(row)[:40]!r} is not a JSON object with named fields.')
  return where, row


def _json_lines(path: pathlib.Path) -> Iterator[tuple[str, Row]]:
  opened = gzip.open if path.suffix == '.gz' else open
  line = 0
  try:
    with opened(path, 'rb') as file:
      for line, text in enumerate(file, 1):
        where = f'{path}, line {line}'
        if text.strip():
          yield _checked(where, _parsed(where, text))
  except (EOFError, OSError, zlib.error) as error:
    raise ValueError(
        f'{path} cannot be read after line {line} ({error}): fetch it '
        'again.') from None


def _json(path: pathlib.Path) -> Iterator[tuple[str, Row]]:
  try:
    text = path.read_bytes()
  except OSError as error:
    raise ValueError(f'{path} cannot be read ({error}).') from None
  found = _parsed(str(path), text)
  if not isinstance(found, list):
    raise ValueError(f'{path} must contain a list of problems.')
  for i, row in enumerate(found, 1):
    yield _checked(f'{path}, entry {i}', row)


def _parquet(path: pathlib.Path) -> Iterator[tuple[str, Row]]:
  try:
    from pyarrow import ArrowException, parquet
  except ImportError:
    raise ValueError(
        f'{path}: Parquet files need the extra `data`: pip install '
        "'jaxrl_llm[data]'.") from None
  try:
    number = 0
    with parquet.ParquetFile(path) as file:
      for batch in file.iter_batches():
        for row in batch.to_pylist():
          number += 1
          yield f'{path}, row {number}', row
  except (ArrowException, OSError) as error:
    raise ValueError(
        f'{path} cannot be read ({error}): fetch it again.') from None


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
  try:
    found = datasets.load_dataset(f'{org}/{name}', *subset, split=split)
  except Exception as error:  # many types: wrong names, access, network
    reason = str(error).strip().split('\n')[0]
    raise ValueError(
        f'There is no file {source}, and the hub has no such data set '
        f'({type(error).__name__}: {reason}).') from None
  for i, row in enumerate(found):
    yield f'{source}, row {i}', row
