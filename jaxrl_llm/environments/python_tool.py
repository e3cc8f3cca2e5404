"""A Python interpreter in a sandbox, as a tool; see docs/sandbox.md."""

import functools

from jaxrl_llm.rewards import sandbox

_LIMITS = sandbox.ProgramLimits(
    seconds=5, wall=8, memory=256 << 20, output=4096)
_executor = functools.cache(sandbox.make)  # that of this process


def python(code: str) -> str:
  """Runs a Python program and returns what it prints.

  Args:
    code: The program. Only what it prints is seen.
  """
  result = _executor('bubblewrap').run(code, limits=_LIMITS)
  shown = result.stdout.decode('utf8', 'replace')
  if result.status == 'ok':
    return shown
  if result.status == 'exit':
    last = result.stderr.decode('utf8', 'replace').strip().splitlines()[-1:]
    return f'{shown}Error: {"".join(last)}'
  return f'{shown}Error: {result.status}'
