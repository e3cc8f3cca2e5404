r"""Tests of the extraction of answers and their comparison with references."""

import itertools
import json
import pathlib
import subprocess
import sys
import time

import pytest

from jaxrl_llm.rewards import answers, math
from jaxrl_llm.rewards.pool import Pool

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = 'jaxrl_llm.rewards.math:judge'
LIMIT = 2.0  # A megabyte of braces takes a busy machine more than one.


def item(reference, response, take='boxed'):
  return dict(answer=reference, response=response, take=take)


def box(text):
  return rf'\boxed{{{text}}}'


def equal(reference, found):
  return math.compare(reference, found)['kind'] == 'correct'


@pytest.mark.parametrize('text, want', [
    (r'So \boxed{5}.', '5'),
    (r'\boxed{1} and \boxed{2}', '2'),
    (r'\boxed{1} and $\boxed{ \frac{1}{2} }$', r'\frac{1}{2}'),
    (r'\boxed{\text{a}, \{1\}}', r'\text{a}, \{1\}'),
    (r'\boxed {5}', '5'),
    ('\\boxed\n{5}', '5'),
    (r'\boxed 5.', '5'),
    (r'\boxed5', '5'),
    (r'\fbox{5}', '5'),
    (r'\boxed{\boxed{5} x}', '5'),
    (r'\boxed{1 \boxed{2} 3} \boxed{4}', '4'),
    (r'\\\boxed{5}', '5'),  # behind a line break
    (r'\{ { \boxed{5}', '5'),
    (r'} \boxed{5} }', '5'),
    (r'\boxed{5} \boxed{', '5'),  # cut off
    (r'\boxed{5} \boxed{\text{6}', '5'),
    (r'\boxed{a\}', None),
    (r'\boxed{5', None),
    (r'\boxed{5} \boxed{}', None),  # the last is what counts
    (r'\boxed{ }', None),
    (r'\boxedly{5}', None),
    (r'\\boxed{5}', None),
    ('boxed{5}', None),
    ('', None),
])
def test_the_last_box(text, want):
  assert answers.boxed(text) == want


@pytest.mark.parametrize('text, want', [
    ('is 42.', '42'), ('1 and 2', '2'), ('**7**', '7'), ('18%', '18'),
    ('$1,234,567.50', '1234567.50'), ('x=-5', '-5'), ('is \u22125', '-5'),
    ('7-5', '5'), ('(7)-5', '5'), ('7 - -5', '-5'), ('+5', '+5'),
    ('-3/4', '-3/4'), ('.5', '.5'), ('1,2', '2'), ('1,2345', '2345'),
    ('12,345,6', '6'), ('3.', '3'), ('none', None), ('', None), ('-.', None),
    ('\u0665', None),
])
def test_the_last_number(text, want):
  assert answers.last_number(text) == want


@pytest.mark.parametrize('text, boxed, number, either', [
    (r'\boxed{x} is 7', 'x', '7', 'x'), ('is 7', None, '7', '7'),
    (r'7 or \boxed{}', None, '7', '7'), ('none', None, None, None)])
def test_what_is_taken(text, boxed, number, either):
  got = [answers.answer(text, take) for take in ('boxed', 'number', 'either')]
  assert got == [boxed, number, either]


# Each line: ways to write the same.
SAME = [
    ['1/2', '0.5', '.50', r'\frac{1}{2}', r'\frac12', r'\dfrac{1}{2}', '2/4',
     r'x = \tfrac12', r'50\%', '$\\frac{1}{2}$', '1 / 2'],
    ['1234', '1,234', '1{,}234', r'1,\!234', '1234.0', '01234', r'\$1234',
     '+1234', r'1234\text{ cm}', r'1.234\times 10^3', 'n=1234'],
    ['-5', '\u22125', '- 5', '(-5)', r'-\frac{10}{2}'],
    ['(1,2)', '( 1, 2 )', r'\left(1,\,2\right)', r'(1,\frac{4}{2})'],
    ['2,-3', '-3, 2', r'2 \text{ and } -3', r'\{-3,2\}'],
    [r'\text{Evelyn}', 'Evelyn', r'\textbf{evelyn}', r'\mathrm{Evelyn}'],
    ['A', r'\text{A}', r'\text{(A)}', '(A)', r'\textbf{(A)}'],
    ['x^2+2x+1', '(x+1)^2', '1+2x+x^{2}', 'y = x^2+2x+1'],
    [r'\sqrt{2}', r'\sqrt2', '2^{1/2}', r'\frac{2}{\sqrt{2}}'],
    [r'75^\circ', '75', r'75^{\circ}', r'75\text{ degrees}', '75°'],
    [r'\begin{pmatrix}1\\2\end{pmatrix}',
     r'\begin{bmatrix} 1 \\ 2 \end{bmatrix}'],
    ['[0,1)', '[0, 1)', r'x \in [0,1)'],
    ['3+2i', '2i + 3'],
    [r'\infty', r'+\infty'],
    ['12, 345', r'12,\ 345'],
    [r'11\frac{1}{2}', '11.5'],
    ['123456789012345678901234567890', '123456789012345678901234567890.0'],
]


@pytest.mark.parametrize('texts', SAME, ids=lambda texts: texts[0])
def test_ways_to_write_the_same(texts):
  for reference, found in itertools.product(texts[:1], texts):
    assert equal(reference, found), (reference, found)
  # Votes of those that are right fall together.
  assert len({math.compare(texts[0], t)['answer'] for t in texts}) == 1


def test_different_lines_differ():
  """All pairs, so that none of the ways to write them goes too far."""
  firsts = [line[0] for line in SAME]
  for a, b in itertools.permutations(firsts, 2):
    assert not equal(a, b), (a, b)


@pytest.mark.parametrize('a, b', [
    ('1 1/2', '11/2'), ('1  1/2', '11/2'), ('12, 345', '12345'),
    ('12345', '12, 345'), ('1 2', '12'), ('(1,2)', '(2,1)'),
    ('[0,1)', '[0,1]'), ('(0,1)', '[0,1]'), ('2', '2.001'), ('2', '-2'),
    ('2', '2x'), ('2', r'2\pi'), ('0', '10^{-20}'), ('0', '0.001'),
    (r'\pi', '3.14'), (r'\frac13', '0.33'), ('3+2i', '3-2i'),
    (r'\infty', r'-\infty'), ('10:30', '10:31'), ('A', 'B'), ('5', r'5!'),
    (r'\text{Monday}', r'\text{Tuesday}'), ('1.000', '1000'), ('x', 'y'),
    ('x+1', 'x-1'), ('1', '1/0'), ('5', ''),
    ('123456789012345678901234567890', '123456789012345678901234567891'),
    (r'\begin{pmatrix}1\\2\end{pmatrix}', r'\begin{pmatrix}2\\1\end{pmatrix}'),
])
def test_what_is_not_the_same(a, b):
  assert not equal(a, b)


# Reference, and what math-verify or an earlier version took for the same.
FALSE = [
    ('6.63e-34', '1.05e-34'), ('1e-7', '2e-7'), ('1e-9', '0.0'),
    (r'10^{-20}', r'2\cdot 10^{-20}'), ('10^{-20}x', r'2\cdot 10^{-20}x'),
    (r'10^{-20}\sqrt{2}', r'10^{-20}\sqrt{3}'),
    ('4036082/4036081', '1.00'), ('0.333333', r'\frac13'),
    (r'\frac{\pi}{6}', '0.523598775598'), ('1e400', '1e401'),
    ('123_8', '123_7'), ('123_8', '123_{10}'), ('123', '123_7'),
    ('5', r'5\text{ million}'), ('5', r'5\text{ is wrong}'), ('5', '5 dozen'),
    ('5', '5 or 6'), ('5', r'5\text{ or }6'), ('5', '5 minus'), ('5', '(5'),
    ('0', r'0\text{ is wrong}'), ('0', '0 is wrong'), ('0', '0 nonsense'),
    ('x+y=0', r'x+y=0\text{ is wrong}'),
    ('2^{2008}-2', '2^{2008}-2+1'), ('0', r'x\text{ is wrong} - x'),
    ('5', '6=5'), ('5', 'x=6=5'), ('10', '2x=10'), ('5', r'6\to5'),
    ('5', '6→5'), ('5', r'\ge 5'), ('5', r'x \ge 5'), ('5', '5,5'),
    (r'x\ge5', 'x>5'), (r'x \ge 5', r'y \ge 5'), ('x=5', 'y=5'),
    ('m', 'M'), ('2x', '2X'), (r'\text{m}', 'M'), ('AB', 'ab'), ('a', '(A)'),
    ('6,-2', r'6,\ldots,-2'), ('6,-2', '6,...,-2'), ('(1,2)', '2,1'),
    ('(1,2)', r'\{2,1\}'), ('(1,2)', '(2,1)'), ('[1,2)', r'1<x\le 2'),
    (r'5\text{ m}', r'5\text{ cm}'), (r'5\text{ cm}^2', r'5\text{ cm}'),
    ('10:30 a.m.', '10:30 p.m.'), ('10:30 a.m.', '10:30'),
    ('March 5', 'March 6'), (r'\text{Bob, Ann}', r'\text{Bob, Alice}'),
    (r'\text{even}', r'\text{odd}'), (r'2\pm\sqrt3', r'2+\sqrt3'),
    ('2.5', r'25\%'), ('i', '-i'), ('x^2', 'x^3'), ('y=2x', 'y=2x+1'),
    (r'0.\overline{3}', r'0.\overline{4}'), (r'0.\overline{3}', '0.3'),
    (r'0.1\overline{6}', r'0.\overline{16}'), ('1:2:3', '1:3:2'),
    ('x', "x'"), ("y''", "y'"), ('5', "5'"), (r'\sin 30^\circ', r'\sin 30'),
    (r'\frac{dy}{dx}', r'\frac{dx}{dy}'), (r'\$5', r'5\text{ cents}'),
    (r'\$5', r'5\%'), (r'\$5', '€5'), ('100\\%', r'100\text{ cm}'),
    ('5', r'5\text{ twelfths}'), ('5', r'5\text{ quintillions}'),
    ('5', r'5\text{ exceeds}'), (r'\{0,1\}', '[0,1]'), (r'\pm1', '[-1,1]'),
    (r'\emptyset', r'\{\emptyset\}'), ('3', r'\log x=3'), ('10', 'x+y+2=10'),
    ('(x,y)=(1,2)', '(y,x)=(1,2)'), ('x+y=7', '7'),
    (r'\text{May 1, 20}', r'\text{May 20, 1}'),
    ('x=5,y=6', '6,5'), ('x=5,y=6', '(6,5)'), ('5', '5...'), ('5..', '5'),
    (r'\angle ABC', r'\angle ACB'), ('(x,y)=(1,2)', '(2,1)'),
    (r'\begin{pmatrix}10^{-20}\\1\end{pmatrix}',
     r'\begin{pmatrix}10^{-21}\\1\end{pmatrix}'),
]


@pytest.mark.parametrize('reference, found', FALSE)
def test_what_earlier_was_falsely_accepted(reference, found):
  assert not equal(reference, found)


# Reference, and another way to write it.
RESPELLED = [
    ('1.5e3', r'1.5\times 10^{3}'), ('1.5e3', '1500'), ('1.5E+3', '1.5e3'),
    ('6.63e-34', r'6.63\cdot10^{-34}'), ('6.02e23', r'6.02 \times 10^{23}'),
    ('32760', r'32\,760'), (r'32\,760', '32760'), ('32760', '32{,}760'),
    (r'5\sqrt{3}', '5√3'), (r'5\sqrt{3}', '5√(3)'), (r'\frac{\pi}{6}', 'π/6'),
    ('(1,2)', r'\bigl(1,2\bigr)'), ('(1,2)', r'\Big( 1, 2 \Big)'),
    ('5', r'\color{red}{5}'), ('5', r'\textcolor{red}{5}'), ('5', '**5**'),
    ('051', r'\textbf{(051)}'), (r'\textbf{(051)}', '51'), ('5', '5.'),
    ('2.5', r'2.5\%'), (r'2.5\%', '2.5'), (r'2.5\%', '0.025'),
    (r'\text{Bob, Alice}', 'Alice and Bob'),
    (r'\text{red}, \text{blue}', 'blue, red'), (r'\text{odd}', 'odd'),
    ('10:30', r'10\!:\!30'), (r'10:30\text{ a.m.}', '10:30 AM'),
    ('10:30', '10:30 a.m.'), (r'\text{March 5, 2020}', '5 March 2020'),
    (r'\text{March 5}', 'March 5th'), (r'-\frac14', '-1./4'),
    (r'1\le x<2', '[1,2)'), ('[1,2)', r'1\le x<2'), ('[1,2)', r'2 > x \geq 1'),
    (r'[5,\infty)', r'x \ge 5'), (r'(-\infty,5)', 'x<5'),
    (r'(-\infty,1)\cup(2,\infty)', r'x<1 \text{ or } x>2'),
    (r'\emptyset', r'\varnothing'), (r'\emptyset', r'\{\}'), ('5', 'x=5'),
    ('x=5', '5'), ('5', 'x=2+3=5'), ('5', '2+3=5'), ('x^2', 'f(x)=x^2'),
    ('5', '5 apples'), (r'5\text{ apples}', '5'), ('123_7', '123'),
    (r'9\text{ cm}^2', r'9\text{ square centimeters}'), ('66', '66_{10}'),
    (r'2\pm\sqrt3', r'2-\sqrt{3}, 2+\sqrt3'), ('1,-1', r'x=1\text{ or }x=-1'),
    ('2x-y+1=0', 'y=2x+1'), ('(1+i)^2', '2i'), ('1 1/2', '1.5'),
    (r'\log_2 3', r'\frac{\ln 3}{\ln 2}'), (r'\sin^2 x', r'1-\cos^2 x'),
    (r'\mathbb{R}', r'(-\infty,\infty)'), ('2^{1000}', r'2^{999}\cdot 2'),
    (r'\sqrt{10}', r'\sqrt{10} \approx 3.16'), ('(3,4),(1,2)', '(1,2), (3,4)'),
    (r'0.\overline{3}', r'\frac13'), (r'\frac{1}{6}', r'0.1\bar6'),
    ('x^4', 'x⁴'), ('10^{-3}', '10⁻³'), ('x_1', 'x₁'), (r'\sqrt[3]{2}', '∛2'),
    (r'\frac59', '5⁄9'), ('30', '30º'), ('x^2+1', 'x**2+1'), ('5', '5\\\\'),
    (r'50\%', r'50\text{\%}'), ('5', r'\fbox{5}'), ('5', r'\bf{5}'),
    (r'\begin{pmatrix}1\\2\end{pmatrix}',
     r'\begin{pmatrix}1\\[4pt]2\end{pmatrix}'),
    (r'\text{odd}', '"odd"'), (r'\text{parabola}', r'\text{a parabola}'),
    ('C', r'\text{C)}'), ('C', r'\text{Option C}'), ('18', 'USD 18'),
    (r'60\text{ mph}', r'60\text{ miles per hour}'), ('4', r'4\text{ sheep}'),
    ('3', '3 baseballs'),
    ('7', r'7\text{ pounds of flour}'), ('1.5e3', r'1500\text{ K}'),
    ('6.63e-34', r'6.63 \times 10^{-34}\text{ J s}'),
    ('4.5e33', '4.5 x 10^33'), ('5', 'f(2)=5'), ('5', '|AB|=5'),
    ('5', '[ABC]=5'), ('7', 'm+n=7'), ('101_2', r'101_{\text{two}}'),
    ('101_2', '(101)_2'), ('101_2', '101_{(2)}'),
    ('1010_2', r'1010\text{ base }2'), (r'\ln 2', r'\log_e 2'),
    (r'\frac{1}{2} m v^{2}', '0.5mv^2'), ('3+4i', r'3+4\mathrm{i}'),
    (r'\tan 75^\circ', r'2+\sqrt3'), (r'\sin 30^\circ', '0.5'),
    (r'(3,\frac{\pi}{2})', r'(r,\theta)=(3,\frac\pi2)'),
    ('1:2:3', '1 : 2 : 3'), ('x=5,y=6', '(5,6)'), ('x=5,y=6', '5,6'),
    (r'\angle ABC', r'\angle CBA'), ('(1,2)', '(x,y)=(1,2)'), ('0', '-0'),
    (r'18', r'18\text{ years old}'), ('(x,y)=(1,2)', '(1,2)'),
    (r'5\text{ million}', '5000000'), (r'2007+\frac\pi2', r'2007+\pi/2'),
]


@pytest.mark.parametrize('reference, found', RESPELLED)
def test_what_earlier_was_falsely_refused(reference, found):
  assert equal(reference, found)


def test_a_tolerance_is_relative():
  def near(reference, found, tolerance=0.01):
    return math.compare(reference, found, tolerance)['kind'] == 'correct'
  assert near('1.05e-34', '1.06e-34') and not near('1.05e-34', '1.07e-34')
  assert near('100', '101') and near('100', '99') and not near('100', '101.1')
  assert near(r'\sqrt{2}', '1.41') and not near(r'\sqrt{2}', '1.38')
  assert near('(1,100)', '(1,101)') and not near('x', '1.001x')
  assert not near('0', '1e-9') and not near('100', '101', 0.0)


def test_tuples_in_any_order_are_an_option():
  for found in ('(2,1)', '2,1', r'\{2,1\}'):
    assert not equal('(1,2)', found)
    assert math.compare('(1,2)', found, any_order=True)['kind'] == 'correct'
  assert equal('1,2', '(2,1)')


@pytest.mark.parametrize('text, want', [
    (r'The answer is $\frac{3}{4}$.', r'\frac{3}{4}'),
    (r'So the final answer is: $5\sqrt{3}$.', r'5\sqrt{3}'),
    ('The answer is 5√3.', '5√3'), ('**Answer:** (1, 2)', '(1, 2)'),
    ('The answer is (B).', '(B)'), ('answer: C', 'C'),
    (r'Hence $x = \frac{\pi}{2}$.', r'\frac{\pi}{2}'),
    (r'We get \[ x = 2, \quad y = x+1. \] So \(\frac12\)', r'\frac12'),
    ('The answer is 18 dollars.', '18'), ('#### 18', '18'),
    ('The answer is a number, 5', '5'), ('5 of $x+1$ are 6', '6'),
    ('The answer is (B). Then 5 is left', '5'),
    (r'The answer is $5\sqrt{3} + 2$', r'5\sqrt{3} + 2'),
    (r'Final Answer: The final answer is $\pi/4$. I hope it is correct.',
     r'\pi/4'), ('It is 1.5e3.', '1.5e3'), (r'So 1{,}234', '1234'),
    ('The answer is 1,234.50', '1234.50'), ('7 + 8 = 15 eggs.', '15')])
def test_an_answer_without_a_box(text, want):
  assert answers.answer(text, 'either') == want


def test_fractions_are_numbers():
  assert answers.last_number(r'It is $\frac{3}{4}$') == r'\frac{3}{4}'
  assert answers.last_number(r'$-\frac34$, so') == r'-\frac34'


def test_wrong_answers_that_are_equal_share_a_form():
  def form(text):
    return math.compare('7', text)['answer']
  assert form('1,000') == form('1000') == form('1000.0') == '1000'
  assert form(r'\frac{1}{2}') == form('0.5') == form(r'\dfrac12') == '1/2'
  assert form('(x + 1)') == form('x+1')
  assert len({form(t) for t in ('1', '-1', '1/3', 'x', 'y', r'\pi')}) == 6


def test_judge_says_what_it_found():
  assert math.judge(item('5', r'\boxed{5.0}')) == dict(
      kind='correct', answer='5', detail='5.0')
  assert math.judge(item('5', r'\boxed{6}')) == dict(
      kind='wrong', answer='6', detail='6')
  assert math.judge(item('5', '5')) == dict(
      kind='no_answer', answer='', detail='')
  assert math.judge(item('5', '5', 'number'))['kind'] == 'correct'


@pytest.fixture(scope='module')
def pool():
  pool = Pool(TARGET, workers=2, seconds=LIMIT)
  pool.submit(item('5', '5')).result()
  yield pool
  pool.close()


MEGABYTE = 10**6
NEIGHBOUR = item('0.75', box(r'\frac{3}{4}'))
HOSTILE = {
    'tower of powers': (box('9^{9^{9^9}}'), 'timeout'),
    'factorial': (box('10000000!'), 'wrong or timeout'),
    'binomial': (box(r'\binom{10^9}{5\cdot 10^8}'), 'wrong or timeout'),
    'sum': (box(r'\sum_{i=1}^{10^{10}} \frac{1}{i^i}'), 'wrong or timeout'),
    'integral': (
        box(r'\int_0^1 \sin(x^{x^{x}}) e^{x^2} dx'), 'wrong or timeout'),
    'open braces': (r'\boxed' + '{' * MEGABYTE, 'no_answer'),
    'braces': (r'\boxed' + '{' * 200_000 + '}' * 200_000, 'wrong'),
    'open boxes': (r'\boxed{' * 150_000, 'no_answer'),
    'megabyte of LaTeX': (box(r'\frac{1}{2}+' * 80_000 + '1'), 'wrong'),
    'megabyte of digits': (box('1' * MEGABYTE), 'wrong'),
    'megabyte of spaces': (box('1' + ' ' * MEGABYTE + '2'), 'wrong'),
    'megabyte of backslashes': ('\\' * MEGABYTE, 'no_answer'),
    'parentheses': (box('(' * 900 + '1' + ')' * 900), 'wrong or timeout'),
    'fractions': (box(r'\frac{1}{' * 200 + '2' + '}' * 200), 'wrong'),
    'long number': (box('7' * 1900), 'wrong'),
    'division by zero': (box(r'\frac{1}{0}'), 'wrong'),
    'zero byte': (box('5\0'), 'wrong'),
    'lone surrogate': (box('5\ud800'), 'wrong'),
    'code': (box('__import__("os").abort()'), 'wrong'),
    'exit': (box('exit()'), 'wrong'),
    'a reply': (box('6') + '\n{"kind": "correct"}\n', 'wrong'),
}


@pytest.mark.long
def test_hostile_answers(pool):
  """Each costs its limit at most, and nothing of the row beside it."""
  start = time.monotonic()
  waits = [(pool.submit(item('5', response)), pool.submit(NEIGHBOUR))
           for response, _ in HOSTILE.values()]
  slow = 0
  for (name, (_, kind)), (hostile, neighbour) in zip(HOSTILE.items(), waits):
    assert hostile.result()['kind'] in kind, name
    assert neighbour.result()['kind'] == 'correct', name
    slow += 'timeout' in kind
  # Two workers; the others take .1 s or so.
  assert time.monotonic() - start < slow / 2 * (LIMIT + 1) + 5


@pytest.mark.long
def test_hostile_references_and_numbers(pool):
  rows = [item('9^{9^{9^9}}', box('5')), item(r'\frac{1}{', box('5')),
          item('5', '1' * MEGABYTE, 'number'),
          item('5', '9,999' * 200_000, 'either'), item('5', box('5'))]
  replies = [f.result() for f in [pool.submit(row) for row in rows]]
  assert [r['kind'] for r in replies] == [
      'timeout', 'wrong', 'wrong', 'wrong', 'correct']


@pytest.mark.parametrize('text, is_ordinary', [
    (r'\alpha' * 100 + '1=5', True),
    (r'\begin{bmatrix}1\end{bmatrix}' * 60 + '&', False),
    ('e ' * 900 + '?', False), ('(' * 1900, False), ('1,' * 900, True),
    (r'\text{' * 300, False), ('9^' * 900, False)])
def test_no_reference_takes_long_in_the_process_that_loads_it(
    text, is_ordinary):
  """A regular expression that tries all splits would never end."""
  assert math.readable(text, parse=False) == is_ordinary


def test_what_is_long_or_easy_is_not_parsed():
  math._parsed.cache_clear()
  assert not equal('5', '6') and equal('5', '5.0') and not equal('5', '-6.0')
  assert not equal('5', 'x+' * 1001)
  assert not equal(r'\frac{1}{2}', '1.05e-34') and equal('(1,2)', '(1.0,2)')
  assert math._parsed.cache_info().currsize == 0
  # One that is no longer than twice the reference is parsed.
  long = '0.' + '1' * 1200
  assert equal(long, long + '0' * 1000)


def test_the_worker_alone_says_only_its_replies():
  """No warning of the libraries on stderr, where progress is shown."""
  rows = [item('5', box(r'\frac{10}{2}')), item('5', box('x^2 = \\sin(')),
          item('5', box('(x+1)^{100000}-(x-1)^{99999}'))]
  done = subprocess.run(
      [sys.executable, '-m', 'jaxrl_llm.rewards.worker', TARGET, '0.5',
       '4000000000'], cwd=ROOT, capture_output=True, timeout=60,
      input=''.join(json.dumps(row) + '\n' for row in rows).encode())
  kinds = [json.loads(line)['kind'] for line in done.stdout.splitlines()]
  assert kinds == ['ready', 'correct', 'wrong', 'timeout']
  assert (done.returncode, done.stderr) == (0, b'')
