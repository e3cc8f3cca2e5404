"""Tests of schedules of numbers."""

import json

import jax
import jax.numpy as jnp
import pytest

from jaxrl_llm import config
from jaxrl_llm.base import schedules
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
  value = jax.jit(schedules.make_schedule('0:8,3:4,4:1'))
  got = [value(jnp.uint32(step)) for step in (0, 1, 2, 3, 4, 5, 10**6)]
  assert got == [8, 8, 8, 4, 1, 1, 1]
  assert schedules.make_schedule(6)(jnp.int32(9)) == 6


@pytest.mark.parametrize('given, kept', [
    (.5, .5), ('.5', .5), (1, 1.0), ('0:.5', .5),
    ('0:1, 20:.5', '0:1.0,20:0.5'), ("'0:1,20:5e-1'", '0:1.0,20:0.5')])
def test_the_temperature_is_a_number_or_a_schedule(given, kept):
  c = tiny.load(sampling__temperature=given)
  assert c.sampling.temperature == kept
  assert isinstance(c.sampling.temperature, type(kept))
  again = json.loads(config.to_json(c))['sampling.temperature']
  assert tiny.load(sampling__temperature=again) == c
  assert schedules.at(kept) == .5 or kept == 1
  assert [schedules.at('0:1.0,20:0.5', step) for step in (0, 19, 20, 99)] == [
      1, 1, .5, .5]


@pytest.mark.parametrize('given, said', [
    ('0:1,5:0', '0.0 must lie in'), ('0:-1,5:1', '-1.0 must lie in'),
    ('0:1,5:inf', 'inf must lie in'), ('0:1,5:1e-300', '0 in float32'),
    ('0:1,5:nan', 'step:value'), ('1:1,5:2', 'begin at step 0'),
    ('0:1,5:2,5:3', 'ascend'), ('0:1;5:2', 'step:value'), ('0:', 'step:value'),
    ('0:1,', 'step:value'), (True, 'number'), ((0, 1), 'number')])
def test_what_is_no_schedule_of_temperatures(given, said):
  with pytest.raises(ValueError, match=f'sampling.temperature.*{said}'):
    tiny.load(sampling__temperature=given)


@pytest.mark.parametrize('given, kept', [
    (3, '3'), ('3', '3'), ('0:3', '3'), ('0:3, 9:1', '0:3,9:1')])
def test_a_config_keeps_them_as_text(given, kept):
  c = tiny.load(advantage='pkpo', pkpo__k=given)
  assert c.pkpo.k == kept
  assert json.loads(config.to_json(c))['pkpo.k'] == kept
