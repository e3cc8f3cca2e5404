"""The sets with answers that lie in ../shared/data."""

import gzip
import json
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[3] / 'shared/data'
SETS = ('math_train', 'math500', 'gsm8k_train', 'gsm8k_test', 'aime24',
        'aime25', 'amc23')


def problems(name):
  """Reads the rows of a set; returns [] if the file does not exist."""
  path = FOLDER / f'{name}.jsonl.gz'
  if not path.exists():
    return []
  with gzip.open(path) as file:
    return [json.loads(line) for line in file]


def references(*names):
  """Returns the bare references of sets, all of them by default."""
  from jaxrl_llm.tasks.references import reference
  return [reference(str(row['answer'])) for name in names or SETS
          for row in problems(name)]
