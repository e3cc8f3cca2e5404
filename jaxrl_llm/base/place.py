"""Place of a process among those of a run, as the command line gives it."""

from typing import Mapping, NamedTuple, Sequence

HELP = """One process of many also takes

  --process_count=N --process_id=I --coordinator=HOST:PORT   of process 0
  --process_count=auto   JAX finds the others: on a TPU pod, under SLURM

and every process

  --stopped_code=75      exit code of a run that was asked to stop (default: 0)
                         or lost a process (1), so that a controller starts it
                         again
"""
_FLAGS = ('process_count', 'process_id', 'coordinator')
_STOPPED = 'stopped_code'
AUTO = 'auto'


class Given(NamedTuple):
  """Place of this process among others, as the command line gives it.

  Attributes:
    count: number of processes; AUTO for the number that JAX finds; None if not
      given.
    index: number of this process.
    coordinator: host:port of process 0.
    stopped_code: exit code of a run that was asked to stop, or, unless it is
      0, that lost a process.
  """
  count: int | str | None = None
  index: int | None = None
  coordinator: str | None = None
  stopped_code: int = 0


def split(argv: Sequence[str]) -> tuple[Given, list[str]]:
  """Splits the flags of a process from the other arguments.

  Args:
    argv: --process_count=N --process_id=I --coordinator=HOST:PORT, or
      --process_count=auto; --stopped_code=N; and others.

  Returns:
    The place of this process, and the other arguments.

  Raises:
    ValueError: a flag is missing or has a wrong value.
  """
  given, rest = {}, []
  for arg in argv:
    name, equals, value = arg.removeprefix('--').partition('=')
    if arg.startswith('--') and equals and name in (*_FLAGS, _STOPPED):
      given[name] = value
    else:
      rest.append(arg)
  code = given.pop(_STOPPED, '0')
  if not code.isdecimal() or int(code) > 255:
    raise ValueError(f'--{_STOPPED}={code} must be a whole number up to 255.')
  return _placed(given)._replace(stopped_code=int(code)), rest


def _placed(given: Mapping[str, str]) -> Given:
  """Returns the place that the flags of a process give; see `split`."""
  if not given or given == {'process_count': AUTO}:
    return Given(*given.values())
  if given == {'process_count': '1'}:
    return Given(1, 0)
  missing = [name for name in _FLAGS if name not in given]
  if missing:
    raise ValueError(
        f'--{missing[0]} is missing: give --process_count=N, --process_id=I '
        'and --coordinator=HOST:PORT, or only --process_count=auto.')
  for name in _FLAGS[:2]:
    if not given[name].isdecimal():
      raise ValueError(f'--{name}={given[name]} must be a whole number.')
  count, index = int(given['process_count']), int(given['process_id'])
  if not index < count:
    raise ValueError(
        f'--process_id={index} must be less than --process_count={count}: '
        'processes are numbered from 0.')
  host, _, port = given['coordinator'].rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
    raise ValueError(
        f'--coordinator={given["coordinator"]} must be HOST:PORT of process 0.')
  return Given(count, index, given['coordinator'])
