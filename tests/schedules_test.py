"""Tests of schedules of integers."""

import json

import jax
import jax.numpy as jnp
import pytest

from jaxrl_llm import config, schedules
from tests.helpers import tiny


@pytest.mark.parametrize('text, pieces, canonical', [
    (8, ((0, 8),), '8'), ('8', ((0, 8),), '8'), (' 8 ', ((0, 8),), '8'),
    ('0:8', ((0, 8),), '8'),
    ('0:8,1500:1', ((0, 8), (1500, 1)), '0:8,1500:1'),
    ("'0:8, 100:4, 1500:1'", ((0, 8), (100, 4), (1500, 1)),
     '0:8,100:4,1500:1')])
def test_reading(text, pieces, canonical):
  assert schedules.pieces(text) == pieces
  assert schedules.canonical(text) == canonical
  assert schedules.canonical(canonical) == canonical


@pytest.mark.parametrize('text', [
    '', 'x', '8,1', '0:8,', '5:8', '0:8,0:4', '0:8,9:4,5:1', '0:8:1', '0:1.5',
    '-1:8', '0:8,5', '0:8,2147483648:1'])
def test_what_is_no_schedule(text):
  with pytest.raises(ValueError):
    schedules.pieces(text)


@pytest.mark.parametrize('value', [True, 1.5, None, (0, 8)])
def test_other_types(value):
  with pytest.raises(TypeError):
    schedules.pieces(value)


def test_values_by_step():
  value = jax.jit(schedules.make('0:8,3:4,4:1'))
  got = [value(jnp.uint32(step)) for step in (0, 1, 2, 3, 4, 5, 10**6)]
  assert got == [8, 8, 8, 4, 1, 1, 1]
  assert schedules.make(6)(jnp.int32(9)) == 6


@pytest.mark.parametrize('given, kept', [
    (3, '3'), ('3', '3'), ('0:3', '3'), ('0:3, 9:1', '0:3,9:1')])
def test_a_config_keeps_them_as_text(given, kept):
  c = tiny.load(advantage='pkpo', pkpo__k=given)
  assert c.pkpo.k == kept
  assert json.loads(config.to_json(c))['pkpo.k'] == kept
