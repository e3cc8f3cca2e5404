"""The state of a run whose folder is gone, saved in another place."""

import contextlib
from typing import Any, Callable, Mapping

from jaxrl_llm.checkpoint import files
from jaxrl_llm.checkpoint import saver as saver_lib
from jaxrl_llm.storage import paths
from jaxrl_llm.storage import workdir as workdir_lib


def rescue(
    workdir: paths.Text, describe: Callable[[paths.Path], None],
    config: dict[str, Any], step: int, state: Any, host: Mapping[str, Any],
    channel: Any = files.ALONE) -> str:
  """Saves the state of a run whose workdir is gone: there again, or beside it.

  Args:
    workdir: folder that is gone.
    describe: writes the other files that a run needs to go on into a folder.
    config: see `Checkpointer`.
    step: see `Checkpointer.save`, as `state` and `host`.
    state: to be saved.
    host: saved with it.
    channel: see the function `restore`.

  Returns:
    A sentence that says where the state is.
  """
  gone = f'workdir={workdir} was removed or moved during the run'
  folder = paths.absolute(workdir)
  for place in (folder, paths.place(f'{folder}-saved')):
    with contextlib.ExitStack() as lock, contextlib.suppress(
        OSError, ValueError):
      free = False
      with contextlib.suppress(OSError, ValueError):
        if channel.first:
          lock.enter_context(workdir_lib.held(place))
          free = not files.steps(place / 'checkpoints')  # else of another run
          if free:
            describe(place)
      if not channel.gather(free)[0]:
        continue
      with contextlib.closing(saver_lib.Checkpointer(
          place / 'checkpoints', config, channel=channel)) as saver:
        saver.save(step, state, host)
    if files.steps(place / 'checkpoints'):
      return (f'{gone}: the state of step {step} is saved, continue with '
              f'--config.workdir={place}.')
  return (f'{gone}, and the state of step {step} could not be saved beside it: '
          'start again in a folder that stays.')
