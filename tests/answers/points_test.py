r"""Tests of the equality of expressions at points: domains, bends, errors."""

import random

import pytest

from jaxrl_llm import answers


def equal(reference, found):
  return answers.compare(reference, found)['kind'] == 'correct'


@pytest.mark.parametrize('seed', range(8))
def test_a_domain_is_found_wherever_it_begins(seed):
  """Roots and logarithms of x - c and c - x, for c up to a million."""
  rng = random.Random(seed)
  c = round(10 ** rng.uniform(0, 6)) * rng.choice([1, -1])
  for inside in (f'x-({c})', f'{c}-x'):
    root = rf'\sqrt{{{inside}}}'
    assert equal(root, f'({inside})^{{1/2}}')
    assert equal(rf'\frac1{{{root}}}', rf'\frac{{{root}}}{{{inside}}}')
    assert equal(rf'\ln({inside})', rf'\log_2({inside})\ln 2')
    assert equal(rf'\sqrt{{({inside})^2}}', f'|{inside}|')
    for other in (inside, f'({inside})^2', rf'\sqrt[3]{{{inside}}}',
                  rf'\sqrt{{|{inside}|}}', rf'\sqrt{{{inside}+1}}'):
      assert not equal(root, other), (root, other)
    for other in (inside, f'-({inside})'):
      assert not equal(rf'\sqrt{{({inside})^2}}', other)
    assert not equal(rf'\ln({inside})', rf'\ln|{inside}|')


SAME = [
    (r'\sqrt{x-40}+\sqrt{41-x}', r'\sqrt{1+2\sqrt{(x-40)(41-x)}}'),
    (r'\arcsin(x-12)', r'\frac{\pi}{2}-\arccos(x-12)'),
    (r'\sqrt{1-\sqrt{x-40}}', r'(1-(x-40)^{1/2})^{1/2}'),
    (r'\max(x,500)', r'\frac{x+500+|x-500|}{2}'),
    (r'\sqrt{x-1000}\sqrt{y-2000}', r'(x-1000)^{1/2}\sqrt{y-2000}'),
    (r'\sqrt{a^2-b^2}', r'\sqrt{(a-b)(a+b)}'), (r'2\ln x', r'\ln x^2'),
    # Several letters mostly stand for positive quantities.
    (r'\sqrt{xy}', r'\sqrt{x}\sqrt{y}'), (r'\cos n\pi', '(-1)^n'),
    (r'\ln\frac{x-5}{x-6}', r'\ln(x-5)-\ln(x-6)'), ('x^ax^b', 'x^{a+b}'),
    (r'\sqrt{12x^3}', r'2x\sqrt{3x}'), ('x^{2/3}', r'\sqrt[3]{x^2}'),
    (r'|x|+|y|+|z-w|', r'|y|+|x|+|w-z|'), ('n!', 'n(n-1)!'),
    ('10^{10^{10}}', '10^{10000000000}'),
    ('(x-544761)^{3/2}', '(x-544761)(x-544761)^{1/2}')]
# Where they differ stands behind each.
DIFFERENT = [
    (r'\sqrt{x}\sqrt{x}', 'x'), (r'\sqrt{x^2}', 'x'),  # x < 0
    (r'\sqrt{x^2-9}', r'\sqrt{x-3}\sqrt{x+3}'),  # x < -3
    (r'\sqrt{x^2-9}', r'\sqrt7(x-3)'),  # but at 3 and 4
    (r'\sqrt{x-40}+\sqrt{41-x}', r'\sqrt{x-40}+41-x'),  # between 40 and 41
    (r'\arctan(\tan\frac x{100})', r'\frac x{100}'),  # x > 50 pi
    (r'\arcsin(\sin\frac x3)', r'\frac x3'),  # x > 1.5 pi
    (r'\sqrt{1-\sin^2x}', r'\cos x'),  # x > pi / 2
    (r'\max(x,500)', '500'),  # x > 500
    ('1', r'\cos(10^{-3000})'), ('1', r'\tanh(10000)'),  # by 10^-6000, 10^-8686
    ('7', r'7\cos(10^{-600})'), ('x', r'x+10^{-3000}'),
    (r'e^{10^{-3000}}', '1'), ('10^{10^{10}}', '10^{10000000001}')]


@pytest.mark.parametrize('a, b', SAME)
def test_what_is_equal_where_both_have_values(a, b):
  assert equal(a, b) and equal(b, a)


@pytest.mark.parametrize('a, b', DIFFERENT)
def test_what_differs_far_away_or_by_little(a, b):
  assert not equal(a, b) and not equal(b, a)


def test_too_few_points_are_no_evidence():
  """The roots have a value at 7 alone, the logarithms nowhere."""
  assert not equal(r'\sqrt{-(x-7)^2}', r'2\sqrt{-(x-7)^2}')
  assert not equal(r'\ln(-x^2)', r'\ln(-2x^2)')
  # Equal at 1, 2 and 3, and too large for a ball from 4 on.
  assert not equal('(-2)^{2(x!)!}', '2^{2(x!)!}')
