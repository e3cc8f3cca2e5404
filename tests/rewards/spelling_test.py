r"""Tests of the spellings of answers: each rule, plain numbers and units."""

import fractions

import pytest

from jaxrl_llm.rewards import spelling


@pytest.mark.parametrize('text, want', [
    (r'\displaystyle x', 'x'), (r'{\bf v}', r'v'), (r'{\rm cm}', r'\text{cm}'),
    (r'a \text{ or } b', 'a , b'), (r'a\text{,}b', 'a , b'),
    ('Ann and Bob', 'Ann , Bob'), (r'a\!b', 'ab'),
    (r'a\;b~c\quad d', 'a b c d'),
    (r'\dfrac{1}{2}', r'\frac{1}{2}'), (r'x \leqslant 1', r'x \le 1'),
    ('x <= 1', r'x \le 1'), (r'x\geq 1', r'x\ge 1'), ('x >= 1', r'x \ge 1'),
    (r'x \lt 1', 'x < 1'), (r'x \gt 1', 'x > 1'),
    (r'\lbrace 1 \rbrace', r'\{ 1 \}'), (r'\langle 1,2\rangle', '( 1,2)'),
    (r'10\colon 30', '10: 30'), ('10{:}30', '10:30'),
    (r'5\text{ degrees}', r'5^\circ'), (r'5^{\circ}', r'5^\circ'),
    (r'\$5', r'5\text{ dollars}'), ('5%', r'5\%'), ('sqrt(2)', r'\sqrt{2}'),
    ('2pi', r'2\pi'), ('2 pi', r'2 \pi'), ('infinity', r'\infty'),
    (r'\sqrt(2)', r'\sqrt{2}'), (r'\sqrt2', r'\sqrt{2}'),
    (r'\phantom -1', '1'), (r'\phantom{-}1', '1'), (r'\frac12', r'\frac{1}{2}'),
    (r'\frac1{23}', r'\frac{1}{23}'), (r'\frac{12}3', r'\frac{12}{3}'),
    ('.5', '0.5'), ('5.', '5'), ('1,234', '1234'), ('(1,234)', '(1,234)'),
    ('1,234, 5', '1,234, 5'), ('$$5$$', '5'), (r'\(5\)', '5'), (r'\[5\]', '5'),
    ('{5}', '5'), (r'1\\ 2', r'1\\ 2'), (r'\left(1\right]', '(1]'),
    (r'\text{(A)}', '(A)'), (r'\mathrm{Ann}', r'\text{Ann}'),
    ('1.5e-3', r'1.5\cdot 10^{-3}'), ('2e', '2e'), ('1E3_{16}', '1E3_{16}')])
def test_clean(text, want):
  assert spelling.clean(text) == want


@pytest.mark.parametrize('text, want', [
    ('5', 5), ('-0.25', '-1/4'), (r'-\frac{1}{2}', '-1/2'), ('3/4', '3/4'),
    (r'1\frac{1}{2}', '3/2'), ('-1 1/2', '-3/2'), ('(5)', 5),
    (r'1.5\cdot 10^{3}', 1500), (r'2 \times 10^{-3}', '1/500'),
    ('10^{2}', 100), ('10^2', 100), (r'\frac{0.5}{2}', '1/4'),
    (r'\frac{1}{0}', None), ('1/0', None), ('x', None), ('', None),
    ('5!', None), ('1 2', None), ('10^{999999999}', None), ('2e', None)])
def test_number(text, want):
  got = spelling.number(text)
  assert got == (None if want is None else fractions.Fraction(want))


def test_a_number_can_be_written_out():
  """Python writes no integer of more than 4,300 digits."""
  for sign in ('', '-'):
    found = spelling.number('9' * 1990 + rf'\cdot 10^{{{sign}1990}}')
    assert len(str(found)) > 3900
    assert spelling.number('9' * 3000 + rf'\cdot 10^{{{sign}1990}}') is None


@pytest.mark.parametrize('text, want', [
    ('5', ('5', '', 1)), (r'5\%', ('5', '%', 1)), ('5 cm', ('5', 'cm', 1)),
    (r'5\text{ inches}', ('5', 'inch', 1)), ('5 feet', ('5', 'ft', 1)),
    (r'5\text{ m}^2', ('5', 'm^2', 1)), ('5 square meters', ('5', 'm^2', 1)),
    (r'5\text{ miles per hour}', ('5', 'mi/h', 1)), ('5 eggs', ('5', '?', 1)),
    (r'5\text{ million}', ('5', '', 10**6)), ('5 percent', ('5', '%', 1)),
    ('5 million dollars', ('5', 'dollar', 10**6)), ('5m', ('5m', '', 1)),
    (r'5^\circ', ('5', 'degree', 1)), (r'5^\circ C', ('5', 'degree C', 1)),
    (r'\sin 5^\circ', (r'\sin 5^\circ', '', 1)),
    (r'5\text{ is wrong}', (r'5\text{ is wrong}', '', 1)),
    ('5 less', ('5 less', '', 1)), ('5 times', ('5 times', '', 1)),
    ('5 is', ('5 is', '', 1))])
def test_unit(text, want):
  assert spelling.unit(text) == want
