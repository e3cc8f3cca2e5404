"""Folder of a Hugging Face model that stands for a GGUF file.

It has the files that other code reads (config.json, tokenizer.json, ...) and a
link to the GGUF file, which keeps the weights. It is made once, in the user's
folder for caches.
"""

import atexit
import functools
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

from absl import logging

from jaxrl_llm.base import phases
from jaxrl_llm.models.gguf import header as header_lib
from jaxrl_llm.models.gguf import metadata, tensors, tokens

_VERSION = 1  # of what is written here


def unpacked(file: pathlib.Path) -> pathlib.Path:
  """Returns the folder of a file, and makes it if it is not there.

  Raises:
    ValueError: the file is damaged, or not of a kind that is supported.
  """
  file = file.expanduser().absolute()
  try:
    state = file.stat()
  except OSError as error:
    raise ValueError(
        f'{file} cannot be read ({error.strerror}): name a GGUF file.'
        ) from None
  version = f'{_VERSION} {file} {state.st_size} {state.st_mtime_ns}'
  name = hashlib.sha256(version.encode()).hexdigest()[:16]
  try:
    return _made(_cache(), name, file)
  except OSError as error:
    logging.log_first_n(
        logging.WARNING, '%s is unpacked for this process alone, since the '
        'folder for caches cannot be written (%s).', 1, file, error)
    return _made(_temporary(), name, file)


@functools.cache
def _temporary() -> pathlib.Path:
  """Returns a folder that is removed at the end of the process."""
  path = tempfile.mkdtemp(prefix='jaxrl_llm-')
  atexit.register(shutil.rmtree, path, ignore_errors=True)
  return pathlib.Path(path)


def _cache() -> pathlib.Path:
  base = os.environ.get('XDG_CACHE_HOME', '')
  base = base if os.path.isabs(base) else os.path.expanduser('~/.cache')
  path = pathlib.Path(base, 'jaxrl_llm', 'gguf')
  path.mkdir(parents=True, exist_ok=True)
  return path


def _made(base: pathlib.Path, name: str, file: pathlib.Path) -> pathlib.Path:
  """Makes the folder `name` in `base`, whole or not at all."""
  path = base / name
  if path.exists():
    return path
  with phases.phase(f'unpacking {file.name}'):
    header = header_lib.read(file)
    config = metadata.config(header, metadata.read_factors(header))
    content = {'config.json': json.dumps(config, indent=2),
               **tokens.files(header)}
    with tempfile.TemporaryDirectory(
        dir=base, ignore_cleanup_errors=True) as part:
      made = pathlib.Path(part, name)
      made.mkdir()
      for member, text in content.items():
        (made / member).write_text(text + '\n')
      (made / tensors.FILE).symlink_to(file)
      try:
        made.rename(path)
      except OSError:
        if not path.exists():  # Another process was first.
          raise
  return path
