"""The command line of the programs, for every launcher."""

import shlex
from typing import Any, Mapping, Sequence

from jaxrl_llm import config as config_lib


def argv(
    config: str, overrides: Mapping[str, Any], more: Sequence[str] = (),
) -> list[str]:
  """Returns the arguments of a program that runs a config.

  Args:
    config: FILE.py, FILE.py:ARG or FILE.json.
    overrides: dotted field name to value, or to its text. No value is left
      out: none, false and tuples are written as the command line reads them.
    more: other flags of the program.

  Returns:
    A list for `subprocess`; quote it with `shlex.join` for a shell.
  """
  return [f'--config={config}', *(
      f'--config.{name}={config_lib.to_text(value)}'
      for name, value in overrides.items()), *more]


def finished(python: str, workdir: str) -> str:
  """Returns the shell command that succeeds if a run is finished.

  A run that was asked to stop exits with 0 as well, but writes no summary.

  Args:
    python: command of Python with the package.
    workdir: of the run.
  """
  return (f'{python} -c "import sys; from jaxrl_llm.storage import paths; '
          "sys.exit(not paths.place(sys.argv[1]).expanduser().exists())\" "
          f'{shlex.quote(f"{workdir}/summary.json")}')
