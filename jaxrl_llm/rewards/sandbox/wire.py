"""Arguments and results of an executor as JSON, for the service."""

import base64
import dataclasses
from typing import Any, Mapping

from jaxrl_llm.rewards.sandbox.protocol import (
  Outcome,
  ProgramLimits,
  Result,
  Suite,
)


def packed_run(
    program: str, stdin: bytes, files: Mapping[str, bytes],
    limits: ProgramLimits,
) -> dict[str, Any]:
  """Returns the arguments of `Executor.run`."""
  return {
      'program': program, 'stdin': _text(stdin),
      'files': {name: _text(data) for name, data in files.items()},
      'limits': dataclasses.asdict(limits)}


def run_arguments(
    data: Mapping[str, Any], most: ProgramLimits) -> dict[str, Any]:
  """Reads the arguments of `Executor.run`; limits are at most `most`.

  Raises:
    ValueError: they are not valid.
  """
  files = {_name(k): _bytes(v) for k, v in _dict(data.get('files')).items()}
  return dict(program=_string(data.get('program')), files=files,
              stdin=_bytes(data.get('stdin')), limits=_limits(data, most))


def packed_check(
    program: str, tests: Suite, limits: ProgramLimits) -> dict[str, Any]:
  """Returns the arguments of `Executor.check`."""
  return {'program': program, 'tests': dataclasses.asdict(tests),
          'limits': dataclasses.asdict(limits)}


def check_arguments(
    data: Mapping[str, Any], most: ProgramLimits) -> dict[str, Any]:
  """Reads the arguments of `Executor.check`; limits are at most `most`.

  Raises:
    ValueError: they are not valid.
  """
  tests = _dict(data.get('tests'))
  made = Suite(
      _strings(tests.get('tests')), _string(tests.get('setup')),
      _strings(tests.get('entries')))
  return dict(program=_string(data.get('program')), tests=made,
              limits=_limits(data, most))


def packed_result(result: Result) -> dict[str, Any]:
  """Returns a result."""
  return {**dataclasses.asdict(result), 'stdout': _text(result.stdout),
          'stderr': _text(result.stderr)}


def result(data: Mapping[str, Any]) -> Result:
  """Reads a result.

  Raises:
    ValueError, TypeError: it is none.
  """
  return Result(**{**data, 'stdout': _bytes(data['stdout']),
                   'stderr': _bytes(data['stderr'])})


def outcomes(data: Any) -> list[Outcome]:
  """Reads the outcomes of tests.

  Raises:
    ValueError, TypeError: they are none.
  """
  return [Outcome(_string(kind), _string(detail)) for kind, detail in data]


def _limits(data: Mapping[str, Any], most: ProgramLimits) -> ProgramLimits:
  given = _dict(data.get('limits'))
  bounds = dataclasses.asdict(most)
  for name, value in given.items():
    if name not in bounds or type(value) not in (int, float):
      raise ValueError(f'{name}={value!r} is no limit')
    bounds[name] = min(value, bounds[name])
  return ProgramLimits(**bounds)


def _name(name: Any) -> str:
  """Returns a file's name, which must lie in the program's folder."""
  if not name or '\0' in name or name.startswith('/') or (
      '..' in name.split('/')):
    raise ValueError(f'{name!r} is no name of a file in the folder')
  return name


def _text(data: bytes) -> str:
  return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
  return base64.b64decode(_string(text), validate=True)


def _checked(value: Any, kind: type, called: str) -> Any:
  if not isinstance(value, kind):
    raise ValueError(f'{called} is missing')
  return value


def _string(value: Any) -> str:
  return _checked(value, str, 'a text')


def _strings(value: Any) -> tuple[str, ...]:
  return tuple(map(_string, _checked(value, list, 'a list of texts')))


def _dict(value: Any) -> dict[str, Any]:
  return _checked(value, dict, 'an object')
