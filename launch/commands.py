"""The command line of the programs, for every launcher."""

from typing import Any, Mapping, Sequence

from jaxrl_llm import config as config_lib

STOPPED = 75  # exit code of a program that was asked to stop

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


def train(config: str, *, several: bool = True) -> list[str]:
  """Returns the arguments of Python for a run on TPUs.

  A run that was asked to stop ends with the exit code STOPPED.

  Args:
    config: FILE.json there.
    several: whether there are other processes, which find each other.
  """
  return ['-m', 'jaxrl_llm.train', f'--config={config}', *(
      ['--process_count=auto'] if several else []),
          f'--stopped_code={STOPPED}']
