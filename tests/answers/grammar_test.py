r"""Tests of the grammar: how a text is read, and that the rest is refused."""

import pytest

from jaxrl_llm.answers import grammar, tokens
from jaxrl_llm.answers.grammar import Node, Unread


def written(node):
  """Writes a tree with all its brackets."""
  if not isinstance(node, Node):
    return str(node) if not isinstance(node, tuple) else (
        '[' + ' '.join(map(written, node)) + ']')
  if node.op in ('number', 'name'):
    return str(node.args[0])
  return f'({node.op} {" ".join(map(written, node.args))})'


@pytest.mark.parametrize('text, want', [
    (r'\ln 2x', '(function ln [(* 2 x)])'),
    (r'\ln 2\cdot 3', '(* (function ln [2]) 3)'),
    (r'\ln 3/\ln 2', '(/ (function ln [3]) (function ln [2]))'),
    (r'2\sin x\cos x', '(* 2 (function sin [x]) (function cos [x]))'),
    (r'\sin^2 x', '(^ (function sin [x]) 2)'),
    (r'\sin^{-1} x', '(function arcsin [x])'),
    (r'\sin(x)y', '(* (function sin [x]) y)'),
    (r'\log_2 8\cdot 2', '(* (log 2 8) 2)'), (r'\lg 8', '(log 10 8)'),
    ('3/4x', '(* (/ 3 4) x)'), ('a/b/c', '(/ (/ a b) c)'),
    ('-x^2', '(neg (^ x 2))'), ('x^10', '(^ x 10)'), ('x^2y', '(* (^ x 2) y)'),
    ('2^{3^2}', '(^ 2 (^ 3 2))'), ('(2^3)^2', '(^ (^ 2 3) 2)'),
    ('5--3', '(+ 5 3)'), (r'2\cdot -3', '(* 2 -3)'),
    ('7!!', '(!! 7)'), ('3!^2', '(^ (! 3) 2)'), ('(3!)!', '(! (! 3))'),
    ('2a_1', '(* 2 a_1)'), ('1A_{16}', '(based 1A 16)'),
    ('2S_{10}', '(* 2 S_10)'), ('C_5^2', '(binomial 5 2)'),
    ('1 1/2', '3/2'), (r'1\frac12', '3/2'), (r'x\frac12', '(* x (/ 1 2))'),
    (r'\frac{d}{v}', '(/ d v)'),
    ('d(a+b)', '(* d (+ a b))'), ('h(t)', '(call h [t])'),
    ('f(a+b)', '(call f [(+ a b)])'), (r'0.1\overline{6}', '1/6'),
    ('|x|-|y|', '(+ (abs x) (neg (abs y)))'), (r'||x|-1|',
                                              '(abs (+ (abs x) -1))'),
    ('1:2', '(ratio 1 2)'), ('(1,2]', '(tuple (] [1 2])'),
    (']1,2[', '(tuple () [1 2])'), (r'\{1,2\}', '(set 1 2)'),
    (r'x=1\text{ or }x=2',
     '(either (relation [=] [x 1]) (relation [=] [x 2]))'),
    (r'\begin{pmatrix}1&2\\3&4\end{pmatrix}', '(matrix [1 2] [3 4])'),
    (r'5\text{ m/s}', '(quantity 5 m s^-1)'), ('5 cm^2', '(quantity 5 cm^2)'),
    ('9 (apples)', '(quantity 9 ?)'), (r'\$5', '(quantity 5 dollar)'),
    ('2 million', '(* 1000000 2)'), (r'30^\circ', '(degree 30)'),
    ("30^\\circ 15'", '(degree 121/4)'), ('3.5e2', '350')])
def test_a_text_is_read_as_mathematicians_read_it(text, want):
  assert written(grammar.read(text)) == want


@pytest.mark.parametrize('text', [
    'a/bc', r'\sin x(1+y)', '2^3^2', '1 2', 'x2', '5 nonsense', r'\frac{1}{',
    '(1', '1)', r'\frac{1}{0}', '1/0', r'6,\ldots,2', '= 5', r'\ge 5', '3!!!',
    '5 is wrong', r'\text{mass}+2', r'\frac{d}{dx}x', r'\vec a\times\vec b',
    r'\mathbf a\times\mathbf b', '2_', 'x^', '+', r'\unknown{2}', '[1]_2)',
    r'\begin{pmatrix}1&2\\3\end{pmatrix}', r'\int_0^1 x\,dx', "5'",
    r'\sum_{k=1}^3 k', r'\prod_{k=1}^3 k', r'\lim_{x\to 0} x', r'\frac{dy}{dx}',
    r'\{x \mid x>2\}', r'\{x : x>2\}', r'\begin{vmatrix}1&2\\3&4\end{vmatrix}',
    r'\begin{cases}x,&x\ge 0\\-x,&x<0\end{cases}', 'a^b^c',
    r'p\wedge q', '1,2)', r'\sqrt', '[0,1)]', 'A \\Rightarrow B +'])
def test_what_is_not_covered_is_refused(text):
  with pytest.raises(Unread):
    grammar.read(text)


@pytest.mark.parametrize('same', [
    [r'\frac12', r'\dfrac{1}{2}', r'\frac{1}2', r'\tfrac 1 2'],
    ['x^2', 'x^{2}', 'x²', 'x**2', r'x^{ 2}'], ['a_1', 'a_{1}', 'a₁'],
    [r'(1,2)', r'\left( 1, 2\right)', '（1，2）', r'\bigl(1,\,2\bigr)'],
    ["f'(x)", r'f^{\prime}(x)', r'f^\prime(x)'],
    [r'V_{max}', r'V_{\text{max}}'],
    [r'\sqrt{2}', r'\sqrt2', '√2', 'sqrt(2)', r'\sqrt 2'],
    [r'1234', '1,234', r'1{,}234', r'1\,234', '１２３４', '1.234e3'],
    [r'x\ge 1', r'x\geq1', 'x ≥ 1', 'x>=1', r'x \geqslant 1'],
    [r'\{1\}', r'\lbrace 1\rbrace', r'\left\{1\right\}'],
    [r'\textbf{5}', '5', '**5**', '$5$', r'\boxed{5}', r'\(5\)', '5.', '{5}'],
    [r'\theta', 'theta', 'θ'], ['30°', r'30^\circ', r'30\degree']])
def test_spellings_of_one_tree(same):
  assert len({grammar.read(text) for text in same}) == 1


@pytest.mark.parametrize('a, b, is_same', [
    (r'p \land {q}', r'p\wedge q', True), ('6, \\ldots, 2', '6,\\dots,2', True),
    ('1 2', '12', False), ('2^34', '2^{3}4', False), (r'\in t', r'\int', False),
    (r'\frac{1}{2}', r'\frac{1}2', True), (r'\frac{12}5', r'\frac12 5', False),
    (r'\int x dx', r'\int xdx', True), (r'{\pi}x', r'\pi x', True),
    ('x!!!', 'X!!!', False),
    (r'p\land q', r'p\lor q', False),
    (r'\vec{a}\times\vec{b}', r'\vec a \times \vec b', True)])
def test_text_that_is_not_read_is_compared_by_its_tokens(a, b, is_same):
  assert (tokens.spelled(a) == tokens.spelled(b)) == is_same
