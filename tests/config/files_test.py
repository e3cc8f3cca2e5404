"""Tests of error messages for files that are not configs."""

import pytest

from jaxrl_llm import config


@pytest.mark.parametrize('name, text, said', [
    ('a.py', 'x = 1', 'no function get_config'),
    ('a.py', 'def get_config():\n  pass', 'gives no ConfigDict'),
    ('a.py', 'from jaxrl_llm import config\ndef get_config():\n'
     '  c = config.base()\n  c.model.update(widht=3)\n  return c',
     'widht is not a field'),
    ('a.json', '[1]', 'holds no config'),
    ('a.json', '{"steps": ', 'is no whole JSON file'),
    ('a.txt', '', 'neither .py nor .json'),
])
def test_a_file_that_is_no_config_is_said_to_be_none(
    tmp_path, name, text, said):
  path = tmp_path / name
  path.write_text(text)
  with pytest.raises(ValueError, match=said) as error:
    config.load(str(path))
  assert str(path) in str(error.value)
