"""Tests of former names of fields, in every place that takes a name."""

import copy
import json
import pathlib

import pytest

from jaxrl_llm import config
from jaxrl_llm.config import fields

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')


@pytest.mark.parametrize('name', ['selection.signal_only=true',
                                  'sampling.prompts_per_round=3'])
def test_former_names_work_with_a_warning(name, tmp_path, caplog):
  old, _, text = name.partition('=')
  new = fields.RENAMED[old]
  python = tmp_path / 'old.py'
  python.write_text(
      'from jaxrl_llm import config\n\ndef get_config():\n'
      f'  c = config.base()\n  c.{old} = {text.capitalize()}\n'
      f'  assert c.{old} == {text.capitalize()}\n  return c\n')
  want = config.load(CONFIG, {new: text})
  value = config.flatten(want)[new]
  saved = tmp_path / 'old.json'
  saved.write_text(json.dumps({old: value, 'seed': 4}))
  for spec, given in ((str(python), {}), (str(saved), {}), (CONFIG, {
      old: text})):
    caplog.clear()
    got = config.load(spec, given)
    assert config.flatten(got)[new] == value
    assert old in caplog.text and new in caplog.text
    config.validate(got)
  caplog.clear()
  config.load(CONFIG, {new: text})
  assert not caplog.text
  # A checkpoint of a run with the former name is of the same config.
  before = config.flatten(want)
  before[old] = before.pop(new)
  assert config.difference(before, want) == {}
  with pytest.raises(ValueError, match=f'{old} is the former name of {new}'):
    config.load(CONFIG, {old: text, new: text})


def test_a_former_section_is_a_field_of_its_own_now(caplog):
  """`selection` is a field; `selection.signal_only` still reaches another."""
  c = config.base()
  assert c.selection == 'all_rows' and c['selection'] == 'all_rows'
  c.selection = 'newest'
  c.selection.signal_only = True
  assert c.selection == 'newest' and c.drop_zero_advantage is True
  assert 'selection.signal_only' in caplog.text
  flat = config.flatten(c)
  assert flat['selection'] == 'newest' and flat['drop_zero_advantage'] is True
  assert json.loads(config.to_json(c))['selection'] == 'newest'
  assert c.copy_and_resolve_references().selection == 'newest'
  with pytest.raises(AttributeError, match='other'):
    c.selection.other = 1
  c.selection.update(signal_only=False)
  assert c.drop_zero_advantage is False
  c['selection']['signal_only'] = True
  assert c.drop_zero_advantage is True
  c.selection = {'signal_only': False}
  assert c.drop_zero_advantage is False and c.selection == 'newest'
  assert copy.deepcopy(c.to_dict())['selection'] == 'newest'
  made = config.complete({'selection.signal_only': True}, {}, 'name')
  assert made.drop_zero_advantage is True and made.selection == 'all_rows'


def test_names_that_never_were_are_refused_in_files(tmp_path):
  python = tmp_path / 'bad.py'
  for name in ('selection.other', 'sampling.prompts'):
    python.write_text(
        'from jaxrl_llm import config\n\ndef get_config():\n'
        f'  c = config.base()\n  c.{name} = 1\n  return c\n')
    with pytest.raises(ValueError, match='is not a field of this config'):
      config.load(str(python))
