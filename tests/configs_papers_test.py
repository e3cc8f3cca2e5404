"""Tests of the papers' configs against the papers' values.

Every config of a paper is built, with each of its arguments and as each trial
of its sweep, and each field is compared with `configs/papers/values.py`.
"""

import functools
import pathlib

import pytest

from configs.papers import values
from jaxrl_llm import config
from jaxrl_llm.config import files as config_files
from jaxrl_llm.config.table import table
from launch import hyper

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What a run's own choice is in every experiment.
FREE = {'seed', 'workdir'}
ABSENT = object()


@functools.cache
def modules():
  """Returns {experiment without argument: (path, module)} of the configs."""
  found = {}
  for path in sorted((ROOT / 'configs').rglob('*.py')):
    module = config_files.load_file(str(path))
    if hasattr(module, 'PAPER'):
      found.setdefault(module.PAPER, []).append((path, module))
  return found


def specs():
  """Yields (experiment, module, argument or None)."""
  for name, [(_, module)] in modules().items():
    for arg in dict.fromkeys((None, *getattr(module, 'ARGS', ()),
                              *getattr(module, 'VARIANTS', ()))):
      yield (f'{name}:{arg}' if arg else name), module, arg


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
  named = {path for found in modules().values() for path, _ in found}
  assert files <= named and len(files) == 27
  assert all(len(found) == 1 for found in modules().values())
  assert {name for name, _, _ in specs()} == values.EXPERIMENTS.keys()


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
