"""The command line of the programs, for every launcher."""

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
