"""Tests of what a config makes of functions: their fields, from outside too."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl_llm import config
from jaxrl_llm.config import plugs
from jaxrl_llm.launch import hyper, run
from jaxrl_llm.prepare import choices, methods, stages
from tests.helpers import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
METHODS = ROOT / 'tests/outside/methods.py'
FILE = f'''
from jaxrl_llm import config

def get_config(arg=None):
  c = config.base()
  c.advantage = 'methods.py:sharper'
  c.sharper.power = 2.0
  c.loss.objective = 'methods.py:soft'
  c.loss.importance = 'methods.py:gate'
  c.curriculum = 'methods.py:lively'
  c.lively.least = 0.25
  return c

def get_hyper(hyper):
  return hyper.product([
      hyper.sweep('sharper.power', [1.0, 3.0]),
      hyper.sweep('advantage', ['{METHODS}:sharper'])])
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The user's folder, the current one."""
  monkeypatch.setattr(sys, 'path', [*sys.path])
  (tmp_path / 'methods.py').write_text(METHODS.read_text())
  (tmp_path / 'mine.py').write_text(FILE)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_fields_come_from_signature_and_docstring(folder):
  c = config.load('mine.py', {'loss.tau': '.5', 'sharper.best': '0:2,8:1'})
  assert c.advantage == f'{folder}/methods.py:sharper'
  assert c.sharper.to_dict() == {'power': 2.0, 'best': '0:2,8:1'}
  assert (c.loss.tau, c.loss.shape, c.loss.importance_width) == (.5, 'tanh', 3.)
  assert c.lively.to_dict() == {'least': .25, 'most': 1.0, 'rest': 0}
  config.validate(c)
  for name in ('loss.clip_low', 'loss.dual_clip', 'grpo.ddof'):
    assert name not in config.flatten(c)
  # What a run saves works in any folder.
  (folder / 'saved.json').write_text(config.to_json(c))
  again = config.load(str(folder / 'saved.json'))
  assert again == c and config.resume_conflicts(config.flatten(c), again) == []


def test_what_a_run_may_change_when_it_goes_on(folder):
  old = config.flatten(config.load('mine.py'))
  for given, line in (
      ({'lively.rest': 3}, None), ({'loss.tau': 2}, 'loss.tau: 1.0 -> 2.0'),
      ({'sharper.power': 3}, 'sharper.power: 2.0 -> 3.0')):
    assert config.resume_conflicts(old, config.load('mine.py', given)) == (
        [line] if line else [])
  other = config.resume_conflicts(
      old, config.load('mine.py', {'advantage': 'grpo'}))
  assert other[0].startswith('advantage: ') and 'grpo.ddof: - -> 1' in other


@pytest.mark.parametrize('given, said', [
    ({'sharper.power': 9}, r'sharper.power=9.0 must lie in \\(0, 8\\]'),
    ({'sharper.powr': 1}, 'did you mean sharper.power'),
    ({'loss.shape': 'step'}, 'loss.shape=step is not known.*tanh, sigmoid'),
    ({'sharper.best': '3:1'}, 'sharper.best=3:1 must be a whole number'),
    ({'loss.clip_low': .1}, 'loss.clip_low has no effect without loss.object'),
    ({'advantage': 'methods.py:sharp'}, "no function 'sharp'. Did you mean"),
    ({'advantage': 'method.py:f'}, 'no file .*method.py. Did you mean'),
    ({'advantage': 'grop'}, "grop is not known. Did you mean 'grpo'"),
])
def test_mistakes_are_one_sentence(folder, given, said):
  with pytest.raises(ValueError, match=said.replace('\\\\', '\\')) as error:
    config.load('mine.py', given)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('text, said', [
    ('def f(r, *, where, x): pass', 'Option x of advantage=.* has no default'),
    ('def f(r, *, where, x: dict = None): pass', 'the type dict: use bool'),
    ('def loss(r, *, where, kl_coef: float = 0.0): pass',
     'would be the field loss.kl_coef, which there is already: rename it'),
    ('def f(r, *, where, x: Nothing = 3): pass', 'NameError'),
    ('def f(r, *, where, x: __import__("sys").exit(3) = 3): pass',
     'The signature of advantage=.*bad.py:f fails .SystemExit: 3.: correct '),
    ('def f(r, *, where, x: Annotated[float, "schedule"] = 2.0): pass',
     'Option x of .* is a schedule, but no int'),
])
def test_functions_that_are_no_plugs(folder, text, said):
  (folder / 'bad.py').write_text(
      'from __future__ import annotations\nfrom typing import Annotated\n'
      f'{text}')
  name = text.split()[1].partition('(')[0]
  with pytest.raises(ValueError, match=said) as error:
    config.load('mine.py', {'advantage': f'bad.py:{name}'})
  assert '\n' not in str(error.value)


def test_two_functions_with_one_name_and_hyperparameter(folder):
  (folder / 'bad.py').write_text(
      'def lively(rewards, *, where, least: float = 0.0): pass')
  with pytest.raises(ValueError, match='Two .* have the field lively.least'):
    config.load('mine.py', {'advantage': 'bad.py:lively'})


def test_a_sweep_over_a_hyperparameter(folder):
  trials = run.plan(
      'mine.py', sweep=True, workdir='runs', overrides={}, program=['train'])
  powers = [json.loads(trial.config)['sharper.power'] for trial in trials]
  assert powers == [1.0, 3.0]
  assert hyper.sweep('loss.tau', [1, 2]) == [{'loss.tau': 1}, {'loss.tau': 2}]


def test_help_prints_the_fields(folder):
  done = subprocess.run(
      [sys.executable, '-m', 'jaxrl_llm.train', '--config=mine.py',
       '--help=all'],
      capture_output=True, text=True, env={
          **os.environ, 'PYTHONPATH': str(ROOT)})
  assert not done.returncode, done.stderr
  words = ' '.join(done.stdout.split())
  for said in ('sharper.power 2.0 exponent of the difference',
               'loss.importance_width 3.0 largest log-ratio',
               'lively.least 0.25 a group'):
    assert said in words, done.stdout


def test_what_the_device_code_gets(folder):
  c = config.load('mine.py', {'loss.tau': 2, 'sharper.best': '0:2,8:1'})
  numbers = choices.loss_params(c)
  assert numbers.objective == {'tau': np.float32(2)}
  assert numbers.importance == {'width': np.float32(3)}
  cfg = choices.learner_config(c, remat='none', tokens=100)
  assert cfg.objective.keywords == {'shape': 'tanh'}
  advantage = methods.advantage(c)
  rewards = np.float32([[0, 1, 3, 1]])
  where = np.ones((1, 4), bool)
  # The two best have the mean 2 before step 8, the best is 3 from then on.
  for step, baseline in ((0, 2), (8, 3)):
    values, metrics = jax.jit(advantage)(rewards, where, step)
    gap = rewards - baseline
    np.testing.assert_allclose(values, np.sign(gap) * gap ** 2)
    assert metrics['sharper/best'] == (2 if step < 8 else 1)


def test_none_is_passed_where_it_is_not_the_default(folder):
  (folder / 'own.py').write_text(
      'def f(log_ratio, mask, *, cap: float | None = 2.0):\n'
      '  return mask * (1.0 if cap is None else cap)\n')
  ones = np.ones((2, 3), np.float32)
  for value, want in (('none', 1.0), ('5', 5.0)):
    c = config.load('mine.py', {
        'loss.importance': 'own.py:f', 'loss.importance_cap': value})
    cfg = choices.learner_config(c, remat='none', tokens=100)
    numbers = choices.loss_params(c).importance
    np.testing.assert_array_equal(
        cfg.importance(ones, ones, **numbers), want * ones)


def test_a_function_that_fails_names_its_line(folder):
  (folder / 'bad.py').write_text(
      'def f(rewards, *, where):\n  return rewards.sum()\n'
      'def g(rewards, *, where):\n  return rewards + None\n'
      'def h(rewards, *, where):\n  return rewards, {}, rewards\n')
  rewards = np.ones((2, 4), np.float32)
  for name, said in (
      ('f', r'bad.py:f returns an array of the shape \(\) for rewards of the'),
      ('h', r'bad.py:h returns an array .*: return .* .advantages, metrics.'),
      ('g', 'bad.py:g failed .TypeError.*bad.py, line 4')):
    c = config.load('mine.py', {'advantage': f'bad.py:{name}'})
    with pytest.raises(ValueError, match=said):
      methods.advantage(c)(rewards, rewards > 0, 0)


def test_sections_that_a_choice_brings_and_takes():
  c = config.base()
  loss = c.loss
  c.advantage = 'pkpo'
  assert c.pkpo.k == '4' and 'grpo' not in c
  loss.objective = 'gspo'
  assert c.loss is loss and loss.clip_low == 3e-4
  loss.clip_high = .28
  loss.objective = 'cispo'
  assert (loss.clip_low, loss.clip_high) == (.2, .28)
  c.selection = 'cbs'
  c.cbs.update(warmup=3, scope='intra_group')
  with pytest.raises(AttributeError, match='replay has no effect without'):
    c.replay.rounds = 2
  with pytest.raises(ValueError, match="Did you mean 'cbs'"):
    c.selection = 'cbss'
  assert c.selection == 'cbs' and c.cbs.warmup == 3
  c.update(task={'path': ('a',), 'name': 'math'}, off_policy='jackpot')
  assert c.task.path == ('a',) and c.jackpot.lam == 1.0
  c.off_policy = 'none'
  assert 'jackpot' not in c and c.is_locked


def test_a_function_itself_is_a_choice():
  def doubled(rewards, *, where, factor: float = 2.0):
    """Doubles.

    Args:
      factor: of the rewards.
    """
    del where
    return rewards * factor

  c = config.base()
  c.advantage = doubled
  c.doubled.factor = 3.0
  c = config.complete(c, {}, 'name')
  rewards = np.ones((1, 4), np.float32)
  values, _ = methods.advantage(c)(rewards, rewards > 0, 0)
  np.testing.assert_array_equal(values, 3 * rewards)
  assert config.flatten(c)['advantage'].startswith('python:')


def test_every_packaged_plug_can_be_chosen():
  for field in plugs.PLUG_FIELDS:
    for name in plugs.known(field):
      flat = config.flatten(config.complete(config.base(), {field: name}, 'x'))
      given = plugs.chosen(field, flat)[1]
      assert isinstance(given, dict)


def test_a_stage_gets_its_hyperparameters():
  made = stages.make_stages(tiny.load(curriculum='speed', speed__n_init=3))
  assert made.curriculum.min_count == 3 or made.curriculum.stale


@pytest.mark.parametrize('field, body, said', [
    ('loss.objective', 'return new.sum()', r'returns ShapeDtypeStruct of the '
     r'shapes \[\(\)\].*return an ops.policy_losses.PolicyLoss of arrays'),
    ('loss.objective', 'return L(new.sum(), new, mask, mask)',
     r'returns PolicyLoss of the shapes \[\(\), '),
    ('loss.objective', 'return L(*[new if tau > 1 else old] * 4)',
     'failed .TracerBool.*bad.py, line 3'),
    ('loss.objective', 'return L(new, new, mask, mask), {"a/b": advantages}',
     r'the metric a/b of the shape \(2,\).*a number'),
    ('loss.objective', 'return L(new, new, mask, mask), {"update/loss": new}',
     'metric update/loss .*not begin with'),
    ('loss.objective', 'return L(new, new, mask, mask), new',
     r'PolicyLoss of arrays, or \(that, metrics\)'),
    ('loss.objective', 'return new, {}', r'returns ShapeDtypeStruct of'),
    ('loss.importance', 'return new[:, :1]', 'return an array of that shape'),
])
def test_a_wrong_result_is_found_before_the_run(folder, field, body, said):
  (folder / 'bad.py').write_text(
      'from jaxrl_llm.ops.policy_losses import PolicyLoss as L\n'
      'def f(new, old, advantages=None, mask=None, *, tau: float = 1.0):\n'
      f'  {body}\n')
  given = {'curriculum': 'uniform', 'advantage': 'grpo', field: 'bad.py:f'}
  if field == 'loss.importance':
    (folder / 'bad.py').write_text(f'def f(new, mask):\n  {body}\n')
  c = config.load('mine.py', given)
  with pytest.raises(ValueError, match=said) as error:
    stages.validate(c)
  assert '\n' not in str(error.value)
  stages.validate(config.load('mine.py'))


def test_a_section_of_an_objective_names_its_fields(folder):
  c = config.load('mine.py')
  with pytest.raises(AttributeError, match='soft=?.* are loss.tau, loss.shape'):
    c.soft.tau = 1.0
