"""Tests of a field that holds texts with any characters: sampling.stop."""

import json

import pytest

from jaxrl_llm import config


def stops(value):
  return config.complete(
      config.base(), {'sampling.stop': value}, 'x').sampling.stop


@pytest.mark.parametrize('text, value', [
    ('x', ('x',)), (' User:', (' User:',)), ('a,b', ('a,b',)),
    ('\n\nQuestion:', ('\n\nQuestion:',)), ('["a"', ('["a"',)),
    ('["a", "b,\\n"]', ('a', 'b,\n')), ('[1]', ('[1]',)), ('[', ('[',)),
    ('\\boxed{}', ('\\boxed{}',)), ('', ()), ('none', ()), (None, ()),
    (('a', ' '), ('a', ' ')), (['z'], ('z',)), ([], ())])
def test_texts_stay_as_they_are(text, value):
  got = stops(text)
  assert got == value
  # As on the command line of a sweep's trial, and in a saved config.
  assert stops(config.to_text(got)) == value
  saved = config.to_json(config.complete(
      config.base(), {'sampling.stop': text}, 'x'))
  assert stops(json.loads(saved)['sampling.stop']) == value


@pytest.mark.parametrize('value, said', [
    (3, 'sampling.stop=3 must be a text or a JSON list of texts'),
    ([''], 'none of them empty'), ('["a", ""]', 'none of them empty'),
    (['a', 1], 'must be a text'), ({}, 'must be a text'),
    ('\ud800', 'not valid Unicode'), (['a', 'b\0'], 'NUL character')])
def test_what_can_be_no_text(value, said):
  with pytest.raises(ValueError, match=said) as error:
    stops(value)
  assert '\n' not in str(error.value)
