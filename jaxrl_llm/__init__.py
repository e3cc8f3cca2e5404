"""Reinforcement learning from verifiable rewards for language models.

  import jaxrl_llm

  def exact(prompts, completions, answer, **columns):
    return [float(a in text) for a, text in zip(answer, completions)]

  if __name__ == '__main__':
    jaxrl_llm.run(
        'grpo/qwen3_1p7b_math', reward_fn=exact,
        problems=[{'problem': '1 + 1 =', 'answer': '2'}, ...],
        overrides={'model.hf': 'Qwen/Qwen3-0.6B-Base', 'steps': 100})

A loop of one's own is made of four calls, `Sampler`, `Sampler.sample`,
`Learner.step` and `save` or `load`: see `calls.py`. The parts below them can be
used alone too: see notebooks/loop.py.
"""

import hashlib
import json
import os
from typing import Any, Callable, Iterable, Mapping, Sequence, TYPE_CHECKING

if TYPE_CHECKING:
  from jaxrl_llm.calls import Learner, load, Sampler, save

__all__ = ('Learner', 'Sampler', 'load', 'run', 'save')

__version__ = '0.1.0'  # setup.py reads it here

# (prompts, completions, **columns) -> a number or None for each response.
Reward = Callable[..., Any]


def run(
    config: Any, *,
    reward_fn: Reward | Sequence[Reward] | None = None,
    problems: Sequence[Mapping[str, Any]] | None = None,
    heldout: Sequence[Mapping[str, Any]] | None = None,
    overrides: Mapping[str, Any] | None = None,
    name: str | None = None) -> dict[str, Any]:
  """Trains, as the program `jaxrl_llm.train` does.

  Problems are written to the workdir, and the config that is saved there names
  them and the reward function. `evaluate`, `export` and a second call thus find
  them again. A reward function of a notebook, or one that is defined inside
  another function, is known to this process alone; of several with one name the
  last one counts. In a script, call `run` under `if __name__ == '__main__'`:
  `evaluate` imports the script to find its function.

  Args:
    config: path of a config file, or the name of one of the package, or a
      config made in code from `jaxrl_llm.config.base()`.
    reward_fn: `(prompts, completions, **columns) -> [reward or None]`, called
      by keywords with all responses of a step, or several of them; see the
      options `task.reward` and `task.reward_weights`. None uses the task's own
      verifier.
    problems: training problems, one dictionary of columns each, or a data set
      of Hugging Face's `datasets`. Columns hold what JSON keeps: texts, numbers
      of Python, lists. None reads the files of `task.path`.
    heldout: held-out problems. With None, `task.heldout_count` of `problems`
      are held out; if `problems` is None too, `task.heldout` is read.
    overrides: field to value, such as {'steps': 10, 'loss.clip_high': 0.28}.
    name: name of the run, for the display; the workdir is runs/NAME if the
      config names none. None is the name of the config file, or 'run'.

  Returns:
    The content of `summary.json`: held-out figures before and after, seconds
    and steps.

  Raises:
    ValueError: one sentence that names the field, the file or the problem.
    FloatingPointError: the loss is no longer finite.
    OSError: the disk is full at the beginning or at the end, or the workdir was
      removed.
  """
  # Imported here, so that `import jaxrl_llm` need not wait for JAX.
  from jaxrl_llm import config as config_lib
  from jaxrl_llm.base import own_code
  from jaxrl_llm.jobs import train
  from jaxrl_llm.prepare import stages
  from jaxrl_llm.storage import paths, workdir

  if own_code.EXECUTING:
    raise ValueError(
        f'jaxrl_llm.run is called while {own_code.EXECUTING[-1]} is imported: '
        "put the call under `if __name__ == '__main__':`.")
  changes = dict(overrides or {})
  if isinstance(config, (str, os.PathLike)):
    name = name or config_lib.name_of(str(config))
    config = config_lib.load(str(config), changes)
  else:
    name = name or 'run'
    config = config_lib.complete(config, changes, name)
  folder = paths.absolute(config.workdir)
  given: dict[str, Any] = {'workdir': str(folder)}
  if reward_fn is not None:
    given['task.reward'] = _given(
        (reward_fn,) if callable(reward_fn) else tuple(reward_fn))
  if problems is not None and 'task.heldout' not in changes:
    given['task.heldout'] = ()  # not those that belong to the file's problems
  files = {}
  for field, stem, rows in (
      ('task.path', 'problems', problems),
      ('task.heldout', 'heldout', heldout)):
    if rows is not None:
      text = _lines(rows)
      # Other problems are another file, so that a run never loses its own.
      digest = hashlib.sha256(text.encode('utf8', 'replace')).hexdigest()[:8]
      file = folder / f'{stem}-{digest}.jsonl'
      given[field], files[file] = (str(file),), text
  missing = [field for field in given if field.startswith('task.')
             and field[5:] not in config.task]
  if missing:
    raise ValueError(
        f'task.name={config.task.name} has no option {missing[0][5:]!r}: take '
        'a task that reads problem files, such as task.name=math.')
  config = config_lib.complete(config, given, name)
  stages.validate(config)
  with workdir.held(folder):
    for file, text in files.items():
      paths.write_whole(file, text)
  return train.train(config, name)


def _given(functions: Sequence[Reward]) -> tuple[str, ...]:
  """Returns the names of reward functions in the config."""
  from jaxrl_llm.base import own_code
  names = tuple(map(own_code.give, functions))
  if twice := [name for name in names if names.count(name) > 1]:
    raise ValueError(
        f'reward_fn has two functions of the name {twice[0]}: define each with '
        'a name of its own.')
  return names


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
  """Returns rows as JSON lines.

  Raises:
    ValueError: a row is no dictionary, or a value would be another one when it
      is read again.
  """
  from jaxrl_llm.base import plain
  from jaxrl_llm.tasks import problem_files
  form = ('give a list of dictionaries; of a table its '
          "to_dict('records'), of a file its path as task.path.")
  if not isinstance(rows, Iterable):
    raise ValueError(f'Problems are {plain.shown(rows)}, not a list: {form}')
  lines = []
  for number, row in enumerate(rows):
    if not isinstance(row, Mapping):
      raise ValueError(
          f'Problem {number} is {plain.shown(row)}, not a dictionary: {form}')
    for column, value in row.items():
      if lost := problem_files.lost({column: value}):
        raise ValueError(
            f'Problem {number}: JSON does not keep {lost} in the column '
            f'{plain.shown(column)}: give texts, numbers of Python, True, '
            'False, None, or lists and dictionaries of them.')
    lines.append(json.dumps(dict(row), ensure_ascii=False) + '\n')
  return ''.join(lines)


def __getattr__(name: str) -> Any:
  """Imports the four calls when they are first named, since JAX takes seconds.
  """
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from jaxrl_llm import calls
  return getattr(calls, name)
