"""A Python interpreter in a sandbox, as a tool; see docs/sandbox.md."""

import functools

from jaxrl_llm.rewards import sandbox

_LIMITS = sandbox.ProgramLimits(
    seconds=5, wall=8, memory=256 << 20, output=4096)


@functools.cache
def _executor() -> sandbox.Executor:
  """Returns the executor of this process.

  Raises:
    ValueError: it does not work here.
  """
  try:
    return sandbox.make('bubblewrap')
  except ValueError as error:
    cause = str(error).partition(', or choose a sandbox')[0]
    raise ValueError(
        f'The tool python needs bubblewrap: {cause}, or leave the tool out of '
        'task.tools.') from None


def python(code: str) -> str:
  """Runs a Python program and returns what it prints.

  Args:
    code: The program. Only what it prints is seen.
  """
  result = _executor().run(code, limits=_LIMITS)
  shown = result.stdout.decode('utf8', 'replace')
  if result.status == 'ok':
    return shown
  if result.status == 'exit':
    last = result.stderr.decode('utf8', 'replace').strip().splitlines()[-1:]
    return f'{shown}Error: {"".join(last)}'
  return f'{shown}Error: {result.status}'


python.ready = _executor
