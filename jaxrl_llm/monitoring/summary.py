"""Files at the end of a run: `summary.json` and `curves.png`."""

import json
import math
import pathlib
from typing import Any, Mapping, Sequence

from absl import logging
import rich

from jaxrl_llm import workdir as workdir_lib
from jaxrl_llm.monitoring import plots, progress


def summary(
    start: Mapping[str, float], final: Mapping[str, float], seconds: float,
    steps: int) -> dict[str, Any]:
  """Returns the content of `summary.json`.

  Args:
    start: held-out estimates before the first step.
    final: held-out estimates after the last step.
    seconds: duration of the whole run.
    steps: number of steps done.

  Returns:
    Dictionary from the name of each estimate to its 'start' and 'final' value,
    None if not known; and 'seconds' and 'steps'.
  """
  def value(estimates, name):
    x = estimates.get(name, math.nan)
    return None if math.isnan(x) else x

  names = [
      name for name in final
      if name.startswith(('pass@', 'greedy')) and not name.endswith('_error')]
  return {
      **{name: {'start': value(start, name), 'final': value(final, name)}
         for name in names},
      'seconds': seconds, 'steps': steps}


def write(
    workdir: pathlib.Path, result: Mapping[str, Any], title: str) -> list[str]:
  """Writes the files, or warns on a full disk.

  Args:
    workdir: folder of the run.
    result: from `summary`.
    title: of the curves.

  Returns:
    Names of the files that were written.
  """
  written = []
  for name, make in (
      ('summary.json', lambda: workdir_lib.write_whole(
          workdir / 'summary.json', json.dumps(result, indent=1))),
      ('curves.png', lambda: plots.curves(workdir, title))):
    try:
      make()
      written.append(name)
    except OSError as error:  # The table that follows must still be printed.
      logging.warning(
          '%s could not be written to %s (%s).', name, workdir, error.strerror)
  return written


def end(
    workdir: pathlib.Path, title: str, result: Mapping[str, Any],
    start: Mapping[str, float], final: Mapping[str, float], *,
    saved: Sequence[int], said: str, show: bool) -> None:
  """Writes the files and prints the results of a run that is done.

  Args:
    workdir: folder of the run.
    title: of the curves.
    result: from `summary`.
    start: held-out estimates before the first step.
    final: held-out estimates after the last step.
    saved: steps of the whole checkpoints, in order.
    said: what the curriculum says at the end, or ''.
    show: whether to print.

  Raises:
    OSError: a file, or the last step's checkpoint, could not be written.
  """
  written = write(workdir, result, title)
  whole = result['steps'] in saved
  if show:
    rich.print(progress.results(start, final))
    if said:
      print(said)
    print(f'{workdir}: ' + ', '.join(
        [*written, 'samples.jsonl', *['checkpoints/'] * whole]))
  if not whole or len(written) < 2:
    last = f'of step {saved[-1]}' if saved else 'none'
    raise OSError(
        f'The run is done, but its end could not be written to {workdir}; its '
        f'last whole checkpoint is {last}: make room, and run the same command '
        'again.')
