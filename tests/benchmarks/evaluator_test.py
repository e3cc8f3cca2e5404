"""Tests of the evaluator that says whether a change left an answer equal."""

import pytest

from benchmarks.judge import evaluator, parser

EQUAL = [
    (r'\frac{1}{2}', '0.5'), (r'\dfrac43', '4/3'), (r'2\frac{1}{3}', '7/3'),
    ('x+y', 'y+x'), ('(x-1)(x+2)', 'x^2+x-2'), (r'\sqrt{12}', r'2\sqrt3'),
    (r'\sqrt[3]{-8}', '-2'), (r'2\sin x\cos x', r'\sin 2x'), ('i^2', '-1'),
    (r'\frac{\pi}{4}', r'45\cdot\frac{\pi}{180}'), (r'\log_2 8', '3'),
    ('2^{2008}-2', '2(2^{2007}-1)'), (r'5!', '120'), (r'\binom{5}{2}', '10'),
    ('1,2', r'\{2, 1\}'), (r'1\pm\sqrt2', r'1-\sqrt{2}, 1+\sqrt{2}'),
    ('[1,2)', r'\left[1, 2.0\right)'), ('1{,}000', r'1,\!000'),
    (r'(3,4) \cup [0,1)', r'[0,1) \cup (3,4)'), ('y=2x-1', '2y - 4x + 2 = 0'),
    ('x<5', '5>x'), ('-x<5', '-5<x'), (r'|-3|', '3'),
    ('0^\\circ', '0.0^\\circ'),
    (r'\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}',
     r'\begin{bmatrix}0.5\\3\end{bmatrix}'),
    (r'3\text{ cm}', r'3.0\mbox{ cm}'), (r'\text{(D)}', r'\text{D}'),
    ('43_5', '43_{5}'), ('x^21', 'x^2'), ('0.5=0.5', r'\frac12=0.5')]
DIFFERENT = [
    ('3', '4'), ('2^{2008}-2', '2^{2008}'), ('x+y', 'x-y'), ('x', 'X'),
    (r'\sqrt{2}', r'\sqrt[3]{2}'), ('(1,2)', '(2,1)'), ('[1,2)', '(1,2)'),
    ('[1,2)', '[1,2]'), ('1,2', '1,2,3'), ('1,1', '1,2'), ('43_5', '43_6'),
    ('x<5', r'x \le 5'), ('x<5', 'x>5'), ('x^2+50=0', 'x^2+60=0'),
    (r'\log_6(216)=3', '0=1'), ('0=1', '0=2'),
    ('1<2<x', '0<2<x'), ('x=5', 'y=5'), ('x=5', '6'),
    ('x+y=0', '0'), (r'5\text{ cm}', r'5\text{ m}'), (r'\$30', r'30^\circ'),
    (r'\begin{pmatrix}1\\2\end{pmatrix}', r'\begin{pmatrix}1\\3\end{pmatrix}'),
    (r'\begin{pmatrix}1\\2\end{pmatrix}', r'\begin{pmatrix}1&2\end{pmatrix}'),
    (r'\text{east}', r'\text{fast}'), ('3:1', '1:3'), ('5', r'\ge 5'),
    (r'5\%', '500'), ('a_1', 'a_2'), (r'\sin x', r'\cos x')]
CONVENTIONS = [
    (r'5\text{ cm}', '5', 'unit omitted'), ('x=5', '5', 'name omitted'),
    (r'5\%', '0.05', 'percent as a number'), ('(1,2)', '1,2',
                                              'brackets omitted'),
    ('43_5', '43', 'base omitted'), (r'\{7\}', '7', 'set of one element'),
    (r'x=5\text{ cm}', '5', 'name, unit omitted')]
UNKNOWN = [r'\frac{1}{0}', r'\frac{1', r'\int_0^1 x dx', '5+', r'\frac4', '5)',
           '']


@pytest.mark.parametrize('first, second', EQUAL)
def test_equal_answers_in_both_directions(first, second):
  assert evaluator.compare(first, second) == 'equal'
  assert evaluator.compare(second, first) == 'equal'


@pytest.mark.parametrize('first, second', DIFFERENT)
def test_different_answers_in_both_directions(first, second):
  assert evaluator.compare(first, second) == 'differs'
  assert evaluator.compare(second, first) == 'differs'


@pytest.mark.parametrize('first, second, name', CONVENTIONS)
def test_conventions_are_named(first, second, name):
  assert evaluator.compare(first, second) == name


@pytest.mark.parametrize('text', UNKNOWN)
def test_what_is_not_understood_is_unknown(text):
  assert evaluator.compare(text, '5') == 'unknown'


def test_the_shape_keeps_all_of_a_text():
  assert parser.parse('[0, 1)')[::3] == ('sequence', ')')
  assert parser.parse(r'3\text{ square feet}')[2] == 'square feet'
