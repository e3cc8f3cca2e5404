r"""Tests of what stands around formulas: dollars of markup, and of money."""

import pytest

from jaxrl_llm import answers


@pytest.mark.parametrize('reference, found', [
    ('f(x)=-1$,$f(x)=x+1', 'f(x)=x+1, f(x)=-1'),
    ('f(n)=n$, $g(n)=1', 'f(n)=n, g(n)=1'), ('8$,$4', '4, 8'),
    ('x=1$ or $x=2', 'x=2 or x=1'), ('x=1', '$x=1$'),
    (r'x\le2$\text{ or }$x\ge3', r'x\ge3 or x\le2'),
    ('1, 2, 3', '$1$, $2$, and $3$'), ('x+y', '$$y+x$$'),
    ('(1,2)$, $(3,4)', '(3,4), (1,2)'), ('x, y', '$$x$$, $$y$$'),
    (r'(-\infty, 0) \cup\{1\}$.', r'(-\infty,0)\cup\{1\}'),
    ('$(0,1)', '(0,1)'), (r'\{1,2\}$', r'\{2,1\}'),
    (r'2\cos(t)+$ $3\sin(t)', r'3\sin t+2\cos t'),
    ('3 cm', '$3$ cm'), (r'50\%', r'50$\%$'),
    (r'12\sqrt3', r'12$\sqrt{3}$'), ('f(x)=1, f(x)=x', 'f(x)=x$, $f(x)=1'),
    # Money.
    (r'\$5', '$5'), ('$5', '5 dollars'), (r'\$5', r'$\$5$'), ('5', '5$'),
    ('$5, $6', r'\$6, \$5'), ('$5,000', '5000'), ('$3$ dollars', r'\$3')])
def test_dollars_are_markup_but_of_money(reference, found):
  assert answers.compare(reference, found)['kind'] == 'correct'
  assert answers.readable(reference)


@pytest.mark.parametrize('reference, found', [
    ('f(x)=-1$,$f(x)=x+1', 'f(x)=x+1'), ('-1$,$2$,$-2', '-1, 2'),
    ('x', '$x$ or $y$'), ('5', '$5$ and $6$'), ('$5, $6', '5'),
    (r'\$5', '5 euros'), ('1234', '1$,$234'),
    # Side by side, or a range: no difference, product or number.
    ('-1', '$5$ $-6$'), ('-1', '5$ $-6'), ('-1', '$5$$-6$'), ('-2', '5$-$7'),
    ('-30', '$5$ $(-6)$'), ('10236', '$10$ $236$'), ('1.5', r'$1$ $\frac12$'),
    ('56', '$5$ $6$'), ('35', '3$5$'), ('11', '$5 + $x')])
def test_dollars_join_no_formulas(reference, found):
  assert answers.compare(reference, found)['kind'] == 'wrong'
  assert answers.compare(found, reference)['kind'] == 'wrong'


@pytest.mark.parametrize('reference, found', [
    (r'\frac12 OR 0.5', '0.5'), (r'\frac12 OR 0.5', r'\frac24'),
    (r'$\frac12$ OR $0.5$', r'0.5\text{ or }\frac12'),
    (r'\sin(2x)\text{ OR }2\sin x\cos x', r'2\cos x\sin x'),
    # Other values are listed, and other regions are united.
    ('x=2 OR x=3', 'x=3, x=2'), ('x<2 OR x>3', 'x>3 or x<2')])
def test_spellings_of_one_answer(reference, found):
  assert answers.compare(reference, found)['kind'] == 'correct'


@pytest.mark.parametrize('reference, found', [
    (r'\frac12 OR 0.5', '0.6'), ('x=2 OR x=3', 'x=2'), ('x<2 OR x>3', 'x<2'),
    ('1/3 OR 2/6 OR 3/8', '1/3'), ('y=2x OR y=3x', 'y=2x'),
    ('(1 OR 2, 3)', '(1,3)'), (r'\frac12 or 0.6', r'\frac12')])
def test_other_answers_do_not_stand_for_one_another(reference, found):
  assert answers.compare(reference, found)['kind'] == 'wrong'
