"""Tests of values made safe for files and for the screen."""

import decimal
import enum
import fractions
import json
import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxrl_llm.base import plain


class Bad:
  """Object that fails whatever is asked of it."""

  def __str__(self):
    raise GeneratorExit

  __repr__ = __str__


class Name(enum.StrEnum):
  A = 'a'


@pytest.mark.parametrize('value, want', [
    ('', ''), ('a\nb\x1b – 🙂\0', 'a\nb\x1b – 🙂\0'), (None, ''),
    ('\ud800', '\ufffd'), ('a\udfffb\ud83d', 'a\ufffdb\ufffd'),
    ('\ud83d\ude42', '🙂'), (Name.A, 'a'), (3, '3'), (Bad(), '<Bad>'),
    (['x'] * 1000, str(['x'] * 1000)[:200])])
def test_text(value, want):
  assert plain.text(value) == want
  assert type(plain.text(value)) is str
  plain.text(value).encode()


def test_a_number_of_too_many_digits():
  """Python refuses to write it."""
  assert plain.text(10 ** 5000) == plain.json(10 ** 5000) == '<int>'


def test_line():
  assert plain.line(' a\n\tb\x1b[2J\u2028\x85c\ud800') == 'a b [2J c\ufffd'


def test_shown():
  assert plain.shown('a\nb') == r"'a\nb'" and plain.shown(Bad()) == '<Bad>'
  assert plain.shown('x' * 100) == "'" + 'x' * 59


def test_error():
  class Mute(BaseException):
    __str__ = Bad.__str__

  assert plain.error(KeyError('a')) == "KeyError: 'a'"
  assert plain.error(Mute()) == 'Mute: <Mute>'
  assert plain.error(ValueError('\udc80')) == 'ValueError: \ufffd'


def test_an_interrupt_is_not_swallowed():
  class Slow:
    def __str__(self):
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    plain.text(Slow())


def test_json_of_what_has_no_end():
  endless, deep = [1], [1]
  endless.append(endless)
  for _ in range(5000):
    deep = [deep]

  class Deleted:
    def tolist(self):
      raise RuntimeError('Array has been deleted.')

    def __str__(self):
      return 'gone'

  family = {'children': [{'n': i} for i in range(10)]}
  for child in family['children']:
    child['parent'] = family
  assert len(json.dumps(plain.json(family))) < 10_000

  # What is beside it stays.
  found = plain.json({'a': endless, 'b': deep, 'c': Deleted(), 'd': 2})
  assert found['a'][:1] == [1] and found['c'] == 'gone' and found['d'] == 2
  assert plain.json([np.longdouble(.5)]) == ['0.5']
  assert 20 < len(json.dumps(found)) < 1000


@pytest.mark.parametrize('value, want', [
    ({'a': math.nan, 'b': [math.inf, -0.5, True, None]},
     {'a': None, 'b': [None, -0.5, True, None]}),
    ({'\ud800': '\udfff', 3: (1, 2), ('x',): {}},
     {'\ufffd': '\ufffd', '3': [1, 2], "('x',)": {}}),
    (np.float32(.1), float(np.float32(.1))), (np.int8(3), 3),
    (np.float64('nan'), None), (np.array([1.5, math.nan]), [1.5, None]),
    (jnp.float32(2), 2.0), (np.array(['\ud800']), ['\ufffd']),
    (2 ** 63, 2 ** 63), (2 ** 70, str(2 ** 70)),
    (object, "<class 'object'>"), ({1}, '{1}'), (Bad(), '<Bad>'), (1j, '1j')])
def test_json(value, want):
  found = plain.json(value)
  assert found == want
  text = json.dumps(found, allow_nan=False, ensure_ascii=False)
  assert json.loads(text.encode()) == want


@pytest.mark.parametrize('value, want', [
    (True, 1.0), (np.bool_(False), 0.0), (3, 3.0), (np.int64(-2), -2.0),
    (np.float16(0.5), 0.5), (jnp.bfloat16(0.5), 0.5), (np.array(2), 2.0),
    (np.array(True), 1.0), (np.array(4, object), 4.0), (jnp.array(2), 2.0),
    (decimal.Decimal('1.5'), 1.5), (fractions.Fraction(1, 4), 0.25),
    (torch.tensor(2), 2.0), (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    (torch.tensor(0.5, requires_grad=True), 0.5), (10 ** 400, math.inf),
    (None, None), ('1', None), (np.str_('1'), None), (np.array('1'), None),
    (b'1', None), (bytearray(b'1'), None), (1j, None), (Bad(), None),
    (np.complex64(1), None), (np.array(1j), None), (torch.tensor(1j), None),
    (np.timedelta64(1), None), (np.array(None, object), None), ([1.0], None),
    (np.ones(1), None), (np.ones((1, 1)), None), (torch.ones(1), None)])
def test_number(value, want):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert plain.number(value) == want
