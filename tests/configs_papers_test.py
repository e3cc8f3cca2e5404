"""Tests of the papers' configs against the papers' values.

Every config of a paper is built, with each of its arguments and as each trial
of its sweep, and each field is compared with `configs/papers/values.py`.
"""

import collections
import pathlib
import re

import pytest

from jaxrl_llm import config
from jaxrl_llm.config import files as config_files
from jaxrl_llm.config.table import table
from jaxrl_llm.configs.papers import parts, text, values
from jaxrl_llm.launch import hyper

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What a run's own choice is in every experiment.
FREE = {'seed', 'workdir'}
ABSENT = object()


def specs():
  """Yields (experiment, module, argument or None)."""
  for _, module in text.modules():
    yield module.PAPER, module, None
    for arg, name in text.experiments(module).items():
      if arg:
        yield name, module, arg


def built(module, arg):
  """Returns all fields of a config."""
  made = module.get_config(arg) if arg else module.get_config()
  return config_files.overridden(config.flatten(made), {})


def trials(module):
  """Returns the trials of a sweep, each with one seed, and one without fields.
  """
  found = [{k: v for k, v in trial.items() if k not in FREE}
           for trial in module.get_hyper(hyper)]
  return [{}, *(trial for i, trial in enumerate(found)
                if trial not in found[:i])]


def same(found, wanted):
  """Returns whether a field has a value; one that may change has a text."""
  if isinstance(found, str):
    wanted = config.to_text(wanted)
  return found is not ABSENT and found == wanted


def expected(one, field):
  """Returns an experiment's value of a field: ours, or the paper's."""
  return one.ours.get(field, one.paper.get(field, (ABSENT, '')))[0]


def matches(one, arm, flat, base):
  """Returns whether a config is an arm, by the fields that arms set."""
  fields = table(flat)
  return all(
      same(flat.get(field, ABSENT), arm.fields[field])
      if field in arm.fields else field not in flat or
      flat[field] == base.get(field, fields[field].default)
      for field in {field for other in one.arms for field in other.fields})


def wrong_values(one, arm, flat):
  """Yields the fields whose values are not those of an experiment's arm."""
  for field in {**one.paper, **one.ours}:
    if field in arm.fields:
      continue
    found, wanted = flat.get(field, ABSENT), expected(one, field)
    # Without a choice its hyperparameters are no fields.
    if found is ABSENT and arm.fields:
      continue
    if not same(found, wanted):
      yield f'{field}={found} in {arm.name}, not {wanted}'


def test_every_config_of_a_paper_names_an_experiment():
  folders = 'pkpo', 'jackpot', 'cbs', 'speed'
  files = {path for folder in folders
           for path in (ROOT / 'configs' / folder).glob('*.py')}
  assert files <= {path for path, _ in text.modules()} and len(files) == 27
  count = collections.Counter(name for name, _, _ in specs())
  assert count == dict.fromkeys(values.EXPERIMENTS, 1)


def test_an_argument_that_is_no_experiment_is_refused():
  for path, module in text.modules():
    for arg in {'nonsense', 'pod', '4k', '8b', 'int8', 'dapo', 'hard'} - {
        *getattr(module, 'ARGS', ()), *getattr(module, 'VARIANTS', ())}:
      with pytest.raises(ValueError, match='no argument|not a variant'):
        config.load(f'{path}:{arg}')


def test_a_difference_differs_and_a_choice_has_no_value_in_the_paper():
  for name, one in values.EXPERIMENTS.items():
    for field, (value, why) in one.ours.items():
      assert why, f'{name}: {field} has no reason'
      if field in one.paper:
        assert value != one.paper[field][0], f'{name}: {field} is as there'
    for field, (_, source) in one.paper.items():
      assert source, f'{name}: {field} has no source'


@pytest.mark.parametrize('paper', ['pkpo', 'jackpot', 'cbs', 'speed'])
def test_configs_and_their_sweeps_have_the_papers_values(paper):
  checked, wrong = 0, []
  for name, module, arg in specs():
    if not name.startswith(paper):
      continue
    one, base, seen = values.EXPERIMENTS[name], built(module, arg), set()
    for trial in trials(module):
      flat = config_files.overridden(base, trial)
      arms = [arm for arm in one.arms if matches(one, arm, flat, base)]
      if len(arms) != 1:
        wrong.append(f'{name}: {trial} is {[arm.name for arm in arms]}')
        continue
      seen.add(arms[0].name)
      wrong += [f'{name}: {text}' for text in wrong_values(
          one, arms[0], flat)]
      checked += 1
    for arm in one.arms:
      if (arm.name in seen) == bool(arm.left_out):
        wrong.append(f'{name}: {arm.name} is {arm.left_out or "missing"}')
  assert not wrong, '\n'.join(wrong)
  assert checked > 20


def test_every_field_that_changes_the_weights_has_its_line():
  """A config sets nothing that neither the paper nor a line of ours says."""
  wrong = []
  for name, module, arg in specs():
    one, flat = values.EXPERIMENTS[name], built(module, arg)
    fields = table(flat)
    wrong += [
        f'{name}: {field}={value}' for field, value in flat.items()
        if config.WEIGHTS in fields[field].affects and not one.small
        and value != fields[field].default
        and field not in {*one.paper, *one.ours, *FREE}]
  assert not wrong, '\n'.join(wrong)


def test_the_texts_are_what_the_program_writes():
  again = 'run python -m configs.papers'
  for path, module in text.modules():
    source = path.read_text()
    assert text.with_header(source, module) == source, f'{path}: {again}'
  assert text.PAGE.read_text() == text.page(), again


# The last equation, table and figure of each.
LAST = {'PKPO': (49, 8, 8), 'Jackpot, v2': (8, 3, 5), 'Jackpot, v1': (11, 9, 4),
        'CBS': (32, 5, 12), 'SPEED': (14, 1, 6)}


@pytest.mark.parametrize('paper', LAST)
def test_every_equation_table_and_figure_has_one_row(paper):
  one, = (one for one in parts.PARTS if one.title.startswith(paper))
  for kind, last in zip(('Eq.', 'Table', 'Figure'), LAST[paper]):
    found = []
    for part in one.parts:
      if re.match(rf'{re.escape(kind)}s? ', part.name):
        for ends in re.findall(r'\d+(?: to \d+)?', part.name):
          first, *end = map(int, ends.split(' to '))
          found += range(first, end[0] + 1 if end else first + 1)
    assert sorted(found) == [*range(1, last + 1)], kind
