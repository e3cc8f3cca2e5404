"""Tests of curricula and selections by name, and of those from outside."""

import pathlib

import numpy as np
import pytest

from jaxrl_llm import checkpoint, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.monitoring import metrics
from jaxrl_llm.prepare import build, stages
from jaxrl_llm.types import Curriculum, Selection
from tests.helpers import tables, tiny

OUTSIDE = pathlib.Path(__file__).parents[1] / 'outside'
# The current folder of the tests is not theirs: every path is whole.
CURRICULUM, SELECTION = (
    str(OUTSIDE / name) for name in ('halves.py', 'strongest.py'))


@pytest.mark.parametrize('fields, capacity, rows', [
    (dict(selection='all_rows'), 0, 16),
    (dict(selection='random'), 0, 16),
    (dict(selection='random', random__rounds=3), 32, 16),
    (dict(selection='random', random__rounds=3, random__rows=40), 32, 40),
    (dict(selection='newest', newest__rounds=2), 16, 16),
    (dict(selection='newest', newest__rows=5), 0, 5),
    (dict(selection='replay', replay__rounds=3), 32, 48),
    (dict(selection='replay', replay__rounds=2, replay__rows=9), 16, 9),
    (dict(selection='replay', replay__rounds=2, replay__rows=90), 16, 32),
    (dict(selection='largest_advantage'), 16, 16),
    (dict(selection='largest_advantage', largest_advantage__rounds=4), 48, 16),
    (dict(selection='largest_advantage',
          largest_advantage__scope='intra_group', largest_advantage__keep=.5),
     0, 8),
    (dict(selection='cbs'), 16, 16),
    (dict(selection='cbs', cbs__rounds=4), 48, 16),
    (dict(selection='cbs', cbs__scope='intra_group', cbs__keep=.5), 0, 8),
    (dict(selection='cbs', cbs__scope='intra_group', cbs__pool=True), 0, 4),
], ids=str)
def test_a_selection_gets_the_fields_of_its_section(fields, capacity, rows):
  made = stages.make_stages(tiny.load(**fields)).selection
  assert (made.capacity, made.rows) == (capacity, rows)
  assert made.stale == (capacity > 0)


@pytest.mark.parametrize('fields, prompts, capacity, most', [
    (dict(), 4, 0, 1), (dict(curriculum_prompts=6), 6, 2, 2),
    (dict(curriculum='dynamic'), 4, 3, 1),
    (dict(curriculum='dynamic', curriculum_prompts=9), 9, 3, 3),
    (dict(curriculum='dynamic', curriculum_prompts=2), 2, 3, 1)], ids=str)
def test_a_curriculum_gets_the_sizes_of_the_run(
    fields, prompts, capacity, most):
  config = tiny.load(seed=5, samples_per_prompt=6, **fields)
  made = stages.make_stages(config, 40).curriculum
  assert (made.max_prompts, made.max_requests) == (prompts, 6 * prompts)
  assert (made.capacity, made.max_rounds) == (capacity, most)
  _, ask = made.propose(made.init())
  order = np.random.default_rng((5, 0)).permutation(40)
  np.testing.assert_array_equal(ask.problem, order[:prompts])
  # Sizes do not depend on the problems: they are compiled without them.
  assert stages.make_stages(config).curriculum[5:] == made[5:]


@pytest.fixture
def outside(monkeypatch):
  """Parts with stages from outside; every run uses their programs."""
  parts = build.parts(tiny.load(
      curriculum=CURRICULUM, selection=SELECTION))
  watched = tiny.watch(parts, tiny.by_length).parts
  monkeypatch.setattr(
      build, 'parts',
      lambda config, **_: tiny.changed(watched, config=config))
  # What has no part in this costs most of the time.
  monkeypatch.setattr(heldout, 'evaluate', lambda *_: {})
  monkeypatch.setattr(train.summary.plots, 'curves', lambda *_: None)


def test_stages_from_outside_train(outside, tmp_path, monkeypatch):
  """Three steps, then two more from the saved config in another folder."""
  states, take_step = [], train.take_step

  def spy(parts, state, *rest):
    state, report = take_step(parts, state, *rest)
    states.append(state)
    return state, report

  monkeypatch.setattr(loop, 'take_step', spy)
  monkeypatch.chdir(OUTSIDE)
  config = tiny.load(
      tmp_path / 'run', curriculum='halves.py', selection='./strongest.py',
      steps=3, log__tensorboard=False)
  assert (config.curriculum, config.selection) == (CURRICULUM, SELECTION)
  train.train(config)

  monkeypatch.chdir(tmp_path)
  saved = str(tmp_path / 'run' / 'config.json')
  assert config_lib.load(saved) == config
  train.train(config_lib.load(saved, {'steps': 5}))
  rows = metrics.read(tmp_path / 'run' / 'metrics.jsonl')[1:]
  assert [row['step'] for row in rows] == [1, 2, 3, 4, 5]
  # The first groups are complete in the second step.
  assert [row['batch/rounds'] for row in rows] == [0, 1, 1, 1, 1]
  assert [row['batch/rows'] for row in rows] == [0, 8, 8, 8, 8]
  assert [row['batch/held'] for row in rows] == [8] * 5
  # Later ones were begun an update before they are trained on.
  assert [row['batch/staleness_max'] for row in rows] == [None, 0, 1, 1, 1]
  assert all(0 < row['batch/staleness'] < 1 for row in rows[2:])
  assert not any(name.startswith('update/') for name in rows[0])
  assert [row['update/skipped'] for row in rows[1:]] == [0] * 4
  last = states[-1]
  assert (last.step, last.rounds, int(last.learner.step)) == (5, 4, 4)
  assert last.curriculum.begun.tolist() == [16, 17, 18, 19]
  assert last.selection.steps == 5
  assert last.selection.rewards[:5].tolist() == [
      row['reward/mean'] for row in rows]
  assert checkpoint.steps(tmp_path / 'run' / 'checkpoints')[-1] == 5
  # Without the stages the run is another one.
  for name in ('curriculum', 'selection'):
    plain = dict(
        curriculum=CURRICULUM, selection=SELECTION, log__tensorboard=False)
    plain.pop(name)
    with pytest.raises(ValueError, match=name):
      train.train(tiny.load(tmp_path / 'run', steps=6, **plain))


WRONG = {
    'def create(sizes):\n  return sizes.bach\n':
        r'mine.py failed \(AttributeError: .*bach',
    'def create(sizes):\n  return 3\n': r'mine.py gives int, but',
    'def make(sizes):\n  pass\n': "has no function 'create'",
    'import sys\n\ndef create(sizes):\n  sys.exit()\n':
        r'mine.py failed \(SystemExit\): correct .*mine.py, line 4',
    'import nothing_of_this_name\n': 'cannot be imported',
    'def create(sizes:\n': 'cannot be imported',
}


@pytest.mark.parametrize('text', WRONG)
@pytest.mark.parametrize('field', ['curriculum', 'selection'])
def test_a_module_that_makes_no_stage_is_one_sentence(field, text, tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(text)
  with pytest.raises(ValueError, match=WRONG[text]) as error:
    build.parts(tiny.load(**{field: file}))
  assert '\n' not in str(error.value) and str(file) in str(error.value)


def test_a_stage_in_the_other_s_place_is_one_sentence():
  for field, file, kinds in (
      ('curriculum', SELECTION, (Selection, Curriculum)),
      ('selection', CURRICULUM, (Curriculum, Selection))):
    given, needed = (kind.__name__ for kind in kinds)
    with pytest.raises(ValueError, match=(
        f'{field}={file}.* gives {given}, .*types.{needed} is needed')):
      build.parts(tiny.load(**{field: file}))


@pytest.mark.parametrize('field', ['curriculum', 'selection'])
@pytest.mark.parametrize('name, match', [
    ('missing.py', 'There is no file .*/missing.py'),
    ('no_such_package.module', 'There is no module .no_such_package.module'),
])
def test_a_module_that_is_not_there_is_one_sentence(field, name, match):
  with pytest.raises(ValueError, match=match) as error:
    build.parts(tiny.load(**{field: name}))
  assert '\n' not in str(error.value)


def test_a_module_is_looked_for_before_anything_else(capsys):
  with pytest.raises(SystemExit) as end:
    config_lib.parse([
        f'--config={tiny.FILE}', '--config.selection=missing.py'])
  assert end.value.code == 2
  assert 'There is no file' in capsys.readouterr().err


@pytest.mark.parametrize('field, wrong, meant', [
    ('curriculum', 'dynamics', 'dynamic'), ('selection', 'newst', 'newest')])
def test_a_wrong_name_is_one_sentence(field, wrong, meant):
  with pytest.raises(ValueError, match=(
      f'{field}={wrong} is not known.* mean .{meant}')):
    tiny.load(**{field: wrong})


def stage(tmp_path, field, text):
  """Makes a stage of a module that holds a text, with 4 groups of 4."""
  file = tmp_path / 'mine.py'
  file.write_text('import numpy as np\nfrom jaxrl_llm import types\n' + text)
  return getattr(stages.make_stages(tiny.load(**{field: file})), field)


@pytest.mark.parametrize('picked', [
    [0, 3], [2, 0], [1, -1], [9, 0], [0], [0, -1, -1], [0.0, -1.0]])
def test_rows_that_must_not_be_trained_on_are_one_sentence(picked, tmp_path):
  """Row 1 is free, row 2 failed, row 3 waits for another batch."""
  made = stage(tmp_path, 'selection', """
def create(sizes):
  return types.Selection(
      init=None, feedback=None, holds=None, capacity=0, rows=2, stale=False,
      select=lambda state, *_: (state, state))
""")
  table = tables.table(
      [0, -1, 0, 1], [0, 0, 1, 0], valid=[True, False, False, True],
      round=[0, -1, 0, -1])
  good = np.array([0, -1])
  assert made.select(good, table, None, None)[1] is good
  said = 'row that is not valid or has no round' if (
      len(picked) == 2 and picked != [0.0, -1.0]) else (
      r'selection=.*pick \[2\] integers')
  with pytest.raises(ValueError, match=said) as error:
    made.select(picked, table, None, None)
  assert '\n' not in str(error.value)


CURRICULUM_OF = """
def create(sizes):
  def propose(state):
    groups, samples = state
    zero = np.zeros(groups, np.int64)
    count = np.full(groups, samples)
    return state, types.GroupRequests(zero, zero, zero, count, zero)
  return types.Curriculum(
      init=None, update=None, holds=None, capacity=0, max_prompts=4,
      max_requests=16, max_rounds=1, stale=False, propose=propose, min_count=1,
      take=lambda state: (state, [np.arange(size) for size in state]))
"""


def test_a_curriculum_that_exceeds_its_capacities_is_one_sentence(tmp_path):
  made = stage(tmp_path, 'curriculum', CURRICULUM_OF)
  assert made.propose((4, 4)) and made.propose((2, 8)) and made.propose((0, 1))
  assert made.take([4]) and made.take([])
  for call, state, said in (
      (made.propose, (5, 1), '5 samples of 5 groups'),
      (made.propose, (4, 5), '20 samples of 4 groups'),
      (made.propose, (1, 0), 'at least 0 of each'),
      (made.take, [3], r'batches of \[3\] groups'),
      (made.take, [4, 4], r'batches of \[4, 4\] groups')):
    with pytest.raises(ValueError, match=said) as error:
      call(state)
    assert '\n' not in str(error.value)


def test_capacities_that_contradict_each_other_are_one_sentence(tmp_path):
  with pytest.raises(ValueError, match='curriculum=.*max_requests=16'):
    stage(tmp_path, 'curriculum', CURRICULUM_OF.replace(
        'min_count=1', 'min_count=5'))


@pytest.mark.parametrize('field, text', [
    ('curriculum', CURRICULUM_OF),
    ('selection', """
def create(sizes):
  return types.Selection(
      init=None, feedback=None, holds=None, select=None, capacity=0, rows=2,
      stale=False)
""")])
def test_held_rows_without_stale_are_one_sentence(field, text, tmp_path):
  """Their old log-probs would not be kept, and every ratio would be 1."""
  with pytest.raises(ValueError, match=f'{field}=.*stale=True'):
    stage(tmp_path, field, text.replace('capacity=0', 'capacity=1'))


class Own(BaseException):
  """Error that is no Exception."""


@pytest.mark.parametrize('raised, said', [
    (KeyError('x'), r"\(KeyError: 'x'\): correct .*mine.py, line 4"),
    (SystemExit(), r'\(SystemExit\): correct .*mine.py, line 4'),
    (Own('a\nb'), r'\(Own: a b\): correct .*mine.py, line 4'),
    (ValueError('\ud800'), r'\(ValueError: \ufffd\): correct .*, line 4')])
@pytest.mark.parametrize('field', ['curriculum', 'selection'])
def test_a_stage_that_fails_is_named_with_its_line(
    field, raised, said, tmp_path):
  text = """
def create(sizes):
  return types.Curriculum(
      init=None, update=None, holds=lambda state: np.sort(state), capacity=0,
      max_prompts=4, max_requests=16, max_rounds=1, stale=False, take=fail,
      propose=None)

def fail(state):
  raise state
""" if field == 'curriculum' else """
def create(sizes):
  return types.Selection(
      init=None, feedback=None, select=fail, capacity=0, rows=2, stale=False,
      holds=lambda state: np.sort(state))

def fail(state, *_):
  raise state
"""
  text = text[text.index('def fail'):] + text[:text.index('def fail')]
  made = stage(tmp_path, field, text)
  part, *more = ['take'] if field == 'curriculum' else ['select', None, [], ()]
  with pytest.raises(ValueError, match=f'^{field}=.*: {part} failed {said}'
                     ) as error:
    getattr(made, part)(raised, *more)
  assert '\n' not in str(error.value)
  with pytest.raises(KeyboardInterrupt):
    getattr(made, part)(KeyboardInterrupt(), *more)
  # An error in a library that the user's line calls.
  with pytest.raises(ValueError, match='holds failed .*AxisError.*mine.py'):
    made.holds(3)
