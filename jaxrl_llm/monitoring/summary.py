"""Files at the end of a run: `summary.json` and `curves.png`."""

import json
from typing import Any, Mapping, Sequence

from absl import logging

from jaxrl_llm.base import plain
from jaxrl_llm.monitoring import plots
from jaxrl_llm.monitoring.compiles import Compiles
from jaxrl_llm.monitoring.health import Symptom
from jaxrl_llm.storage import paths
from jaxrl_llm.storage import workdir as workdir_lib


def summary(
    start: Mapping[str, float], final: Mapping[str, float], seconds: float,
    steps: int, compiled: Compiles,
    symptoms: Sequence[Symptom] = ()) -> dict[str, Any]:
  """Returns the content of `summary.json`.

  Args:
    start: held-out estimates before the first step.
    final: held-out estimates after the last step.
    seconds: duration of the whole run.
    steps: number of steps done.
    compiled: programs since the latest start of the run.
    symptoms: warnings about the run.

  Returns:
    Dictionary from the name of each estimate to its 'start' and 'final' value,
    None if not known; and 'seconds', 'steps', 'compiled' and 'warnings', each
    with its 'kind', 'step' and 'text'.
  """
  names = [
      name for name in final
      if name.startswith(('pass@', 'greedy')) and not name.endswith('_error')]
  return plain.json({
      **{name: {'start': start.get(name), 'final': final[name]}
         for name in names},
      'seconds': seconds, 'steps': steps, 'compiled': compiled._asdict(),
      'warnings': [symptom._asdict() for symptom in symptoms]})


def check(steps: int, rounds: int) -> None:
  """Warns if a run of some steps had no train batch."""
  if steps and not rounds:
    logging.warning(
        'No train batch was full in %d steps, so nothing was learned: the '
        'curriculum dropped too many groups, or, with sampling.carry_over, '
        'not enough are complete yet.', steps)


def begin(workdir: workdir_lib.Folder, done: int, steps: int) -> None:
  """Removes the summary of a run that goes on: it would seem finished.

  Args:
    workdir: folder of the run.
    done: steps done before.
    steps: of the whole run.
  """
  if done < steps:
    (workdir.path / 'summary.json').unlink(missing_ok=True)


def end(
    workdir: workdir_lib.Folder, result: Mapping[str, Any], title: str,
    saved: Sequence[int]) -> tuple[str, str]:
  """Writes the files of a run that is done, or warns on a full disk.

  Args:
    workdir: folder of the run.
    result: from `summary`.
    title: of the curves.
    saved: steps of the whole checkpoints, in order.

  Returns:
    A line that names what is in the folder; and what could not be written, or
    ''.
  """
  written = []
  for name, make in (
      ('summary.json', lambda: paths.write_whole(
          workdir.local / 'summary.json', json.dumps(result, indent=1))),
      ('curves.png', lambda: plots.curves(workdir.local, title))):
    try:
      make()
      written.append(name)
    except Exception as error:  # The table that follows must still be printed.
      logging.warning(
          '%s could not be written to %s (%s).', name, workdir.path,
          getattr(error, 'strerror', None) or plain.line(plain.error(error)))
  whole = result['steps'] in saved
  line = f'{workdir.path}: ' + ', '.join(
      [*written, 'samples.jsonl', *['checkpoints/'] * whole])
  if whole and len(written) == 2:
    return line, ''
  last = f'of step {saved[-1]}' if saved else 'none'
  return line, (
      f'The run is done, but its end could not be written to '
      f'{workdir.path}; its last whole checkpoint is {last}: make room, and '
      'run the same command again.')
