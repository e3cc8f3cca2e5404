r"""Tests of the comparison of answers: what is the same, and what is not."""

import itertools

import pytest

from jaxrl_llm import answers


def item(reference, response, take='boxed'):
  return dict(answer=reference, response=response, take=take)


def equal(reference, found):
  return answers.compare(reference, found)['kind'] == 'correct'


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
  assert len({answers.compare(texts[0], t)['answer'] for t in texts}) == 1


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
    ('12', 'n(n+1)=12'), ('3', '2x=3'), ('9', 'x^2=9'), ('5', '|x|=5'),
    ('5', r'\frac{d+1}{d}=5'), ('fg(x)', 'gf(x)'), ('f(2)', '2f'),
    ('60', r'2\theta=60'), ('x=3', r'\tan A=3'), ('5', 'P(A)=6'),
    (r'P(A)=\frac12', r'P(B)=\frac12'), ('2', r'\sum_{k=1}^{2}1'),
    ('2n+1', '2k+1'), (r'2\pi n', r'2\pi k'), ('IX', 'XI'), ('PV', 'Pv'),
    (r'x=\frac{\pi}{6}+k\pi', r'x=\frac{\pi}{6}+2k\pi'), ('ACB', 'ABC'),
    (r'x=k\pi,k\in\mathbb{Z}', r'x=k\pi,k\in\mathbb{N}'), ('3:05', '3/5'),
    (r'AB\cdot CD', r'AC\cdot BD'), ('A^{-1}B^{-1}', 'B^{-1}A^{-1}'),
    ('AB-BA', '0'), ('(AB)^T', 'A^TB^T'), ('f(x+1)', 'f(x)+f(1)'),
    (r'\frac{12}{5}', r'\frac12 5'), ('y^{(4)}', 'y^4'), ('2^{nd}', '2'),
    (r'5\text{ MPa}', r'5\text{ mPa}'), (r'5\text{ m/s}', r'5\text{ m/s}^2'),
    ('5m', '5'), ('5', r'5\mu'), (r'2\Omega t', '2t'), ('mgh', 'mg'),
    (r'\frac12', r'\frac12\text{ or }\frac13'), ('10236', '10 23 6'),
    (r'\text{October 30}', r'\text{Octobea 30}'),
    (r'S=(n-2)\pi', r'S=n\pi'), (r'S=(n-2)\pi', r'S=(k-2)\pi'),
    (r'\omega=2\pi n', r'\omega=2\pi k'), (r'x=\pi t', r'x=-\pi t'),
    (r'f(n)=n+1\text{ for all }n\in\mathbb{Z}', 'f(n)=n'), ('V=kx', 'V=nx'),
    (r'a_n=2n+1,n\in\mathbb{Z}', r'a_n=2n-1,n\in\mathbb{Z}'),
    (r'\frac\pi4+k\pi', r'\frac\pi4-k\pi'),
    (r'z=2k\pi i,k\in\mathbb{Z}', r'z=2k\pi,k\in\mathbb{Z}'),
    (r'z=(1+i)k,k\in\mathbb{Z}', r'z=(1-i)k,k\in\mathbb{Z}'),
    (r'x=\arg(k)\pi,k\in\mathbb{Z}', r'x=k\pi,k\in\mathbb{Z}'),
    ('(1,2)', r'(x>1)\cap(y<2)'), ('(2,5)', r'(0,5)\cap(1,6)\cap[2,7]'),
    ('1:2', '0:0'), ('1:2:3', '0:0:0'), ('0:1:2', '0:5:7'), ('a:b', '0:0'),
    (r'x=k\pi,k\in\mathbb{Z}', r'x=|k|\pi,k\in\mathbb{Z}'),
    (r'x=k\pi,k\in\mathbb{Z}', r'x=k\pi+k(k-1)(k-2)(k-3)\pi,k\in\mathbb{Z}'),
    (r'x=k\pi,k\in\mathbb{Z}',
     r'x=k\pi+\lfloor\frac{k}{10}\rfloor\pi,k\in\mathbb{Z}'),
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
    (r'\frac12', r'P(A|B)=\frac12'), ('12', r'n(A\cup B)=12'), ('5', '|z|=5'),
    (r'\frac12', r'\frac{AB}{CD}=\frac12'), ('24', r'\text{Area of }ABC=24'),
    ('10', r'\sum_{k=1}^4k=10'), (r'\frac34', r'\frac{dy}{dx}=\frac34'),
    (r'P(A)=\frac12', r'\frac12'),
    (r'x=\frac\pi2+k\pi', r'x=-\frac\pi2+n\pi,\ n\in\mathbb{Z}'),
    ('2n+1,n\\in\\mathbb{Z}', r'2k+1\text{ where }k\text{ is an integer}'),
    (r'I^2R', r'RI^2'), ('PV', 'VP'), (r'\frac{V}{R}', 'VR^{-1}'),
    (r'AB\cdot CD', r'CD\cdot BA'), ('mg(1-f)', 'mg-mgf'), ('g(m+n)', 'gm+gn'),
    ('12', r'12^{\text{th}}'), ('10236', '10 236'), ('1, 234', '1,234'),
    ('x^{10}', 'x^{(10)}'), ('4+6i', '4+i6'), (r'\frac34', r'{3\over4}'),
    ('10^n', '2^n5^n'), ('3:10', '3/10'), ('1:2', r'1\text{ to }2'),
    (r'1+\sqrt3i', r'2\operatorname{cis}60^\circ'),
    (r'\frac13', r'.\overline{3}'),
    (r'\frac12', r'\frac12\ (\text{or }0.5)'), ('12', '12\u200b'),
    ('n\\ge2', r'\text{all integers }n\ge2'), ('f(x)=1', r'f(x)\equiv1'),
    (r'f(n)=n+1\text{ for all }n\in\mathbb{Z}', 'f(n)=1+n'),
    ('f(x)=cx', r'f(x)=cx,\text{ where }c\text{ is a constant}'),
    ('x', r'\text{The polynomial is }x'), (r'2\ln(x-5)', r'\ln(x-5)^2'),
    ('5', r'5\ \mu\text{m}'), ('5', '5 GeV'), ('5', r'5\ M_\odot'),
    ('5', r'5\,^\circ C'), (r'5\text{ m/s}', r'5\ \frac{\text{m}}{\text{s}}'),
    (r'5\text{ J/(mol K)}', r'5\ \mathrm{J\,mol^{-1}\,K^{-1}}'),
    ('1e16', r'10^{16}\text{ atoms/cm}^3'), ('5', '5Å'), ('5', r'5\ \Omega'),
    (r'z=1+2k\pi i,k\in\mathbb{Z}', r'z=1+4\pi i-2n\pi i,n\in\mathbb{Z}'),
    ('(1,2)', r'(x>1)\cap(x<2)'), ('(2,5)', r'(0,5)\cap(1,6)\cap(2,7)'),
    (r'\$5\text{ million}', r'5\text{ million dollars}'),
    (r'5\text{ million dollars}', r'\$5,000,000'),
    ('|f(2|x|)|', '|f(|x|+|x|)|'), ('0:1:2', '0:2:4'), ('a:b:0', '2a:2b:0'),
]


@pytest.mark.parametrize('reference, found', RESPELLED)
def test_what_earlier_was_falsely_refused(reference, found):
  assert equal(reference, found)


@pytest.mark.parametrize('reference, found', [
    ('C', '(C) 5'), ('C', r'\textbf{(C)}\ 5'), ('C', r'\text{C. } 5'),
    ('5', r'\textbf{(C)}\ 5'), (r'\frac12', r'\mathrm{(B)}\ 0.5'),
    (r'\textbf{(C)}\ 5', 'C'), (r'\textbf{(C)}\ 5', '(C)'),
    (r'\textbf{(C)}\ 5', '5'), (r'\textbf{(C)}\ 5', r'\text{(C)} 5')])
def test_a_choice_is_its_letter_or_its_value(reference, found):
  assert equal(reference, found)


@pytest.mark.parametrize('reference, found', [
    ('C', '(D) 5'), ('C', r'\textbf{(D)}\ C'), ('C', '(C) 5 (D) 6'),
    ('C', r'\text{(C) or (D)}'), ('C', 'C (5)'), ('C', '(C) (D)'),
    (r'\textbf{(C)}\ 5', '(D)'), (r'\textbf{(C)}\ 5', r'\textbf{(C)}\ 6'),
    (r'\textbf{(C)}\ 5', r'\textbf{(D)}\ 5'), (r'\textbf{(C)}\ 5', '6'),
    ('5', '(C) 5'), ('x', '(A) x'), (r'\mathbf{x}', r'\mathbf{A}\mathbf{x}'),
    ('5', r'\textbf{(C)}\ 5\ \textbf{(D)}\ 6')])
def test_another_choice_or_value_is_wrong(reference, found):
  assert not equal(reference, found)


def test_a_tolerance_is_relative():
  def near(reference, found, tolerance=0.01):
    return answers.compare(reference, found, tolerance)['kind'] == 'correct'
  assert near('1.05e-34', '1.06e-34') and not near('1.05e-34', '1.07e-34')
  assert near('100', '101') and near('100', '99') and not near('100', '101.1')
  assert near(r'\sqrt{2}', '1.41') and not near(r'\sqrt{2}', '1.38')
  assert near('(1,100)', '(1,101)') and not near('x', '1.001x')
  assert not near('0', '1e-9') and not near('100', '101', 0.0)


def test_tuples_in_any_order_are_an_option():
  for found in ('(2,1)', '2,1', r'\{2,1\}'):
    assert not equal('(1,2)', found)
    assert answers.compare('(1,2)', found, any_order=True)['kind'] == 'correct'
  assert equal('1,2', '2,1') and not equal('1,2', '(2,1)')


def test_wrong_answers_that_are_equal_share_a_form():
  def form(text):
    return answers.compare('7', text)['answer']
  assert form('1,000') == form('1000') == form('1000.0') == '1000'
  assert form(r'\frac{1}{2}') == form('0.5') == form(r'\dfrac12') == '1/2'
  assert form('(x + 1)') == form('x+1')
  assert len({form(t) for t in ('1', '-1', '1/3', 'x', 'y', r'\pi')}) == 6


def test_judge_says_what_it_found():
  assert answers.judge(item('5', r'\boxed{5.0}')) == dict(
      kind='correct', answer='5', detail='5.0')
  assert answers.judge(item('5', r'\boxed{6}')) == dict(
      kind='wrong', answer='6', detail='6')
  assert answers.judge(item('5', '5')) == dict(
      kind='no_answer', answer='', detail='')
  assert answers.judge(item('5', '5', 'number'))['kind'] == 'correct'
