r"""Tests of the extraction of answers from responses."""

import pytest

from jaxrl_llm.answers import responses


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
  assert responses.boxed(text) == want


@pytest.mark.parametrize('text, want', [
    ('is 42.', '42'), ('1 and 2', '2'), ('**7**', '7'), ('18%', '18%'),
    ('$1,234,567.50', '1234567.50'), ('x=-5', '-5'), ('is \u22125', '-5'),
    ('7-5', '5'), ('(7)-5', '5'), ('7 - -5', '-5'), ('+5', '+5'),
    ('-3/4', '-3/4'), ('.5', '.5'), ('1,2', '2'), ('1,2345', '2345'),
    ('12,345,6', '6'), ('3.', '3'), ('none', None), ('', None), ('-.', None),
    ('\u0665', None),
])
def test_the_last_number(text, want):
  assert responses.last_number(text) == want


@pytest.mark.parametrize('text, boxed, number, either', [
    (r'\boxed{x} is 7', 'x', '7', 'x'), ('is 7', None, '7', '7'),
    (r'7 or \boxed{}', None, '7', '7'), ('none', None, None, None)])
def test_what_is_taken(text, boxed, number, either):
  got = [responses.answer(text, take) for take in ('boxed', 'number', 'either')]
  assert got == [boxed, number, either]


@pytest.mark.parametrize('text, want', [
    ('It is 7.\n#### 18', '18'), ('7 + 8 = 15 #### $1,234.50 each', '1234.50'),
    ('#### 1.5', '1.5'), ('#### 3:4', '3:4'), ('#### 1.2. Add\n7', None),
    ('####18', '18'), ('#### -3', '-3'), ('#### 18\n\n#### 19', '18'),
    (r'#### \boxed{18}', '18'), ('The answer is 18.', None),
    (r'\boxed{18}', None), ('#### Steps\n18', None), ('#### 1. Add\n7', None),
    ('#### 1. Add\n#### 7', '7'), ('### 18', None), ('18 ####', None),
    ('<think>#### 18', None), ('<think>#### 17</think>#### 18', '18'),
    ('', None)])
def test_the_number_after_a_mark(text, want):
  assert responses.answer(text, 'marked') == want


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
  assert responses.answer(text, 'either') == want


def test_fractions_are_numbers():
  assert responses.last_number(r'It is $\frac{3}{4}$') == r'\frac{3}{4}'
  assert responses.last_number(r'$-\frac34$, so') == r'-\frac34'


@pytest.mark.parametrize('text, want', [
    ('It is 11 6/7.', '11 6/7'), ('so 3½', r'3\frac{1}{2}'),
    (r'It is $1.2 \times 10^3$.', r'1.2 \times 10^3'),
    ('1.2 × 10³', r'1.2 \times  10^{3}'),
    (r'It is $\sqrt{3}$.', r'\sqrt{3}'), ('so $5!$', '5!'), ('so 5!', '5'),
    ('12 cm^2', '12'), ('12 cm2', '12'), ('CO2 is 7', '7'), ('CO2', None),
    ('at 18:00', '18:00'), ('x_3 = 7 and x_3', '7'), ('in 2023, 1/2 of', '1/2'),
    ('He ends with -$3.', '-3'), (r'with -\$3', '-3'), ('is –3', '-3'),
    ('12-5 = 7', '7'), ('- 3 apples', '3'), ('It is 42.[1]', '42'),
    ('It is 42.\n3.', '42'), ('1.234.567', '1234567'), ('４５', '45'),
    ('$x + 5$ is not 7 but 8, where $y=9x$', '8'), ('$5 and $6', '6')])
def test_a_last_number_has_all_that_belongs_to_it(text, want):
  assert responses.last_number(text) == want


@pytest.mark.parametrize('text, tags, want', [
    ('<think>1</think> 2', ('think',), ' 2'), ('<think>1', ('think',), ''),
    ('1</think>2</think>3', ('think',), '3'), ('1', ('think',), '1'),
    ('<plan>1</plan>2', ('think',), '<plan>1</plan>2'),
    ('<plan>1</plan>2', ('think', 'plan'), '2'),
    ('<think>1</think><think>2', ('think',), ''), ('<a>1', (), '<a>1')])
def test_only_what_follows_the_reasoning_counts(text, tags, want):
  assert responses.final_part(text, tags) == want


@pytest.mark.parametrize('text, want', [
    ('I use no <think> block. 1', None), ('No `<think>` here.\n1', None),
    ('A ```\n<think>\n``` is none. 1', None), ('1, and no `</think>`', None),
    ('<think>`1`</think>2', '2'), ('<think>```\n1\n```</think>```2', '```2'),
    ('I use no <think></think> here. 1', ' here. 1'), ('\n <think>1', ''),
    ('Sure.\n<think>\n1', ''), ('<think>a <think> in `1', ''),
    ('<think>```1</think>2 ```', '2 ```')])
def test_a_tag_that_is_only_named_is_no_reasoning(text, want):
  assert responses.final_part(text) == (text if want is None else want)


RUN_ON = 'It is 18.\n#### 18\n\nQuestion: 3 pens?\nAnswer: 3.\n#### 3'
PENS = '\nQuestion: 3 pens?\nAnswer: 3'


@pytest.mark.parametrize('text, take, want', [
    (RUN_ON, 'number', '18'), (RUN_ON, 'either', '18'),
    (RUN_ON, 'marked', '18'), ('So 5.' + PENS, 'number', '5'),
    ('She sold 18 eggs.' + PENS, 'number', '18'),
    ('The answer is 5 when done.' + PENS, 'either', '5'),
    (r'The answer is $\frac{x}{y}$.' + PENS, 'either', r'\frac{x}{y}'),
    ('9 * 2 = 18 a day.\n\nQ: 1?\nA: 3', 'number', '18'),
    ('#### 18 dollars per day' + PENS, 'number', '18'),
    ('#### 18\n\nNow 3 pens.\n#### 3', 'number', '18'),
    ('#### 18' + PENS + r' \boxed{3}', 'either', '18'),
    (r'The answer is 18.' + PENS + r' \boxed{3}', 'either', '18'),
    (r'\boxed{x}' + '\n**Problem 2:** ' + r'\boxed{7}', 'boxed', 'x'),
    (r'\boxed{x}' + '\n**Problem 2:** ' + r'\boxed{7}', 'either', 'x'),
    (r'\boxed{1} or \boxed{2}' + PENS + r'\boxed{3}', 'boxed', '2'),
    ('#### \\boxed{18}\n\nNow 3 pens.\n#### \\boxed{3}', 'boxed', '18'),
    ('#### 1. First\nthen 5\n#### 7\n8', 'number', '7')])
def test_the_first_problem_of_several_is_judged(text, take, want):
  assert responses.answer(text, take) == want


@pytest.mark.parametrize('before', [
    '#### $n = 2$', '#### $x$-coordinate', '#### 2 cases remain',
    '#### 3D', '#### 2nd case', '#### 1. First', '1. Restate',
    '**Problem:** find x', 'In 2 steps.\nQuestion: x?',
    '## Step 1\n### Exercise 3: x?', 'Case 2.\nQ: x?'])
@pytest.mark.parametrize('take, rest', [
    ('boxed', r'It is \boxed{5}.'), ('either', r'It is \boxed{5}.'),
    ('number', 'It is 5.'), ('either', 'It is 5.')])
def test_headings_and_a_restated_problem_hide_no_answer(before, take, rest):
  assert responses.answer(f'{before}\n{rest}', take) == '5'


@pytest.mark.parametrize('text', [
    'I put it into \\boxed{answer}.\nProblem: x\n\\boxed{5}',
    'I put it into \\boxed{}.\nProblem: x\n\\boxed{5}',
    '\\boxed{3\n\nProblem: x\n\\boxed{5}',
    '#### 3\n\nProblem: x\n\\boxed{5}', '#### 2 cases\n\\boxed{5}'])
def test_a_cut_needs_a_complete_box_before_it(text):
  assert responses.answer(text, 'boxed') == '5'
