"""Tests of the table of fields: defaults, meanings, choices and effects."""

import ast
import dataclasses
import pathlib
import re

import pytest

from jaxrl_llm import config
from jaxrl_llm.base import declared
from jaxrl_llm.config import plugs, values
from jaxrl_llm.config import table as table_lib
from jaxrl_llm.config.sections import SECTIONS
from jaxrl_llm.models import attention, transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.ops import kl, obrs, pkpo, policy_losses, quantise
from jaxrl_llm.selection import bandit
from jaxrl_llm.tasks import math

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')


def test_base_is_the_table_valid_and_locked():
  c = config.base()
  for field in table_lib.table().values():
    assert config.flatten(c)[field.name] == field.default
  config.validate(c)
  with pytest.raises(AttributeError):
    c.learning_rate = 1.0
  with pytest.raises(AttributeError):
    c.loss.clip = 1.0


def test_every_field_has_a_meaning_of_one_line_and_a_valid_default():
  table = table_lib.table()
  for field in everything().values():
    # Besides a list of all choices.
    rest = field.meaning.replace(', '.join(field.choices or ('',)), '')
    assert 8 <= len(rest) <= 200 or field.meaning == 'V', field
    assert '\n' not in field.meaning
  defaults = {name: field.default for name, field in table.items()}
  assert values.check(defaults) == defaults


REGISTRIES = {
    'model.preset': PRESETS,
    'actor.model.preset': PRESETS,
    'teacher.model.preset': PRESETS,
    'reward.model.preset': PRESETS,
    'pkpo.transform': pkpo.TRANSFORMS,
    'loss.aggregation': policy_losses.AGGREGATIONS,
    'loss.kl_estimator': kl.KL_ESTIMATORS,
    'learner.attention': attention.IMPLEMENTATIONS,
    'learner.remat': (*transformer.REMAT, 'auto'),
    'sampling.weights': quantise.TYPES,
    'sampling.kv': quantise.TYPES,
    'cbs.ablate': bandit.ABLATIONS,
    'task.judge': math.JUDGES,
    'jackpot.target': obrs.TARGETS,
}
UNREGISTERED = (
    'overlong.mode', 'optimizer.schedule', 'loss.behaviour', 'off_policy',
    'speed.rule', 'cbs.scope', 'largest_advantage.scope', 'task.take',
    'task.markup', 'sft.turns', 'sft.too_long', 'sft.schedule',
    'teacher.kl',
    'jackpot.mask', 'jackpot.z', 'jackpot.alpha', 'jackpot.denominator')
# Choices with which all fields of the table appear, in turn.
CHOSEN = (
    {'advantage': 'pkpo', 'curriculum': 'speed', 'selection': 'cbs',
     'off_policy': 'jackpot', 'actor.model.preset': 'tiny',
     'teacher.model.preset': 'tiny', 'reward.model.preset': 'tiny'},
    {'task.name': 'math', 'loss.importance': 'icepop',
     'selection': 'largest_advantage'})


def everything():
  """Returns the fields of all choices."""
  return {name: field for chosen in CHOSEN
          for name, field in table_lib.table(chosen).items()}


def test_choices_are_those_that_are_implemented():
  """Texts in the table repeat what other modules implement."""
  table = everything()
  for name, registry in REGISTRIES.items():
    assert {*table[name].choices} == {*registry}, name
  for name, field in table.items():
    assert not field.choices or field.default in (*field.choices, None), name
    if field.choices and name not in {*REGISTRIES, *plugs.PLUG_FIELDS}:
      assert name in UNREGISTERED, name


@pytest.mark.parametrize('name', [*REGISTRIES, *UNREGISTERED])
def test_every_choice_is_explained_and_accepted(name):
  field = everything()[name]
  words = re.findall(r'\w+', field.meaning)
  for choice in field.choices:
    assert choice in words or name.endswith('model.preset')
    with_it = {
        'penalty': {'overlong.window': 3}, 'cudnn': {'model.dtype': 'bfloat16'},
        }
    if name.endswith('.model.preset'):
      with_it[choice] = {name.replace('preset', 'vocab_size'): 24}
    for section, field in (
        ('jackpot.', {'off_policy': 'jackpot'}), ('cbs.', {'selection': 'cbs'}),
        ('largest_advantage.', {'selection': 'largest_advantage'}),
        ('teacher.kl', {'teacher.model.preset': 'tiny'}),
        ('speed.', {'curriculum': 'speed'}), ('pkpo.', {'advantage': 'pkpo'}),
        ('task.', {'task.name': 'math', 'model.preset': 'qwen3-1.7b'})):
      if name.startswith(section):
        with_it[choice] = field
    config.validate(config.load(CONFIG, {
        name: choice, **with_it.get(choice, {})}))


def test_every_field_says_what_it_affects():
  table = everything() | table_lib.table()
  affects = {name: {*field.affects} for name, field in table.items()}
  assert all(found <= {*declared.AFFECTS} for found in affects.values())
  # What a run writes, and where it runs, may change at any time.
  for name in ('workdir', 'mesh.fsdp', 'eval.k', 'log.every', 'sampling.slots',
               'sft.cache', 'checkpoint.keep', 'compilation_cache'):
    assert not affects[name], name
  assert affects['learner.tokens_per_microbatch'] == {'rounding'}
  # Evaluations sample in the compute type.
  for name in 'sampling.weights', 'sampling.kv':
    assert affects[name] == {'weights'}
  assert affects['loss.clip_high'] == affects['steps'] == {'weights'}
  assert affects['sampling.top_p'] == {'weights', 'evaluation'}
  assert affects['seed'] == affects['model.width'] == affects[
      'task.kinds'] == {'weights', 'sft', 'evaluation'}
  # A problem that is evaluated is the same, however many there are.
  assert affects['task.train'] == {'weights', 'sft'}
  assert everything()['task.workers'].affects == ()


def test_a_field_is_declared_once():
  """No class has two fields of a section again, unless it inherits them.

  One alone may be another thing of the same name, as an array is. The sections
  left out hold numbers of the host, whose names are common words; `ops` has
  parameters of equations.
  """
  sections = {}
  for section in SECTIONS:
    sections.setdefault(section.name, set()).update(
        field.name for field in dataclasses.fields(section.declared))
  declarations = {cls.__name__ for section in SECTIONS
                  for cls in section.declared.__mro__}
  seen = 0
  for path in (ROOT / 'jaxrl_llm').rglob('*.py'):
    if path.parent.name == 'ops':
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if not isinstance(node, ast.ClassDef) or node.name in declarations:
        continue
      own = {line.target.id for line in node.body
             if isinstance(line, ast.AnnAssign)
             and 'Array' not in ast.unparse(line.annotation)}
      seen += bool(own)
      for name in sections.keys() - {'', 'task', 'sft', 'eval', 'log'}:
        again = own & sections[name]
        assert len(again) < 2, f'{path}: {node.name} declares {again} again'
  assert seen > 100


def test_model_fields_are_those_of_the_model():
  names = {f'model.{f.name}' for f in dataclasses.fields(ModelConfig)}
  table = {name for name in table_lib.table() if name.startswith('model.')}
  # A player is a reward model or none.
  assert table == names - {'model.scores'} | {'model.hf', 'model.preset'}
