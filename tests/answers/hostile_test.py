r"""Tests of answers made to hang or break the judge."""

import json
import pathlib
import subprocess
import sys
import time

import pytest

from jaxrl_llm import answers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 5.0  # of processor seconds; the default of task.timeout


def box(text):
  return rf'\boxed{{{text}}}'


MEGABYTE = 10**6
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
HOSTILE |= {name: (box(text), 'wrong') for name, text in {
    'calls': 'a(' * 200 + 'x' + ')' * 200, 'bars': '|' * 401,
    'functions': r'\sin ' * 300 + 'x', 'units': '5 ' + '(m ' * 200,
    'sums in sums': r'\sum_{i=1}^{1000}' * 5 + 'i',
    'integrals': r'\int_0^1 ' * 4 + 'x' + r'\,dx' * 4,
    'fractions in braces': r'\frac{' * 200 + '1' + '}{2}' * 200,
    'roots': ','.join(rf'\sqrt{{{i}}}' for i in range(200)),
    'powers of matrices': r'\begin{pmatrix}1&2\\3&4\end{pmatrix}^4' * 20,
    'signs': r'\pm ' * 300 + '1', 'letters': 'abcd ' * 300,
    'unions': r'\cup '.join(f'({i},{i + 1})' for i in range(150)),
    'mixed numbers': r'2\frac{' * 20 + 'x' + r'}{3}' * 20,
    'products of matrices': r'\begin{pmatrix}1&2\\3&4\end{pmatrix}' * 40,
    'braces': '{' * 900 + '6' + '}' * 900,
    'words': r'\text{' + 'x ' * 900 + '}',
    'sums of nothing': r'\sum_{i=1}^{1500}\sum_{j=2}^{1}(' + 'i+' * 300 + 'i)',
    'exponents': '1e000000000099999999', 'accents': r'\bar{x+y}=3',
    'members': r'\{x\in\mathbb{Z}: 0<x<10^{9}\}',
    'equations': 'x=1,' * 400, 'powers': 'e^{' * 300 + 'x' + '}' * 300}.items()}


@pytest.mark.parametrize('name', HOSTILE)
def test_a_hostile_answer_is_judged_in_time(name):
  response, kind = HOSTILE[name]
  for reference in ('5', r'\frac{x+1}{2}'):
    start = time.process_time()
    found = answers.judge(
        dict(answer=reference, response=response, take='boxed'))
    assert found['kind'] in ('wrong', 'no_answer') and (
        'timeout' in kind or found['kind'] in kind)
    assert time.process_time() - start < LIMIT


@pytest.mark.parametrize('more', [
    r'\sqrt{x+' * 80 + 'x' + '}' * 80, r'\binom{x}{9000}' * 60,
    '+'.join(f'|x-{i}y|' for i in range(150)), '99999!' * 200,
    '+'.join(rf'\sqrt{{x-{i}}}' for i in range(100))])
def test_what_agrees_at_first_and_takes_long_is_judged_in_time(more):
  start = time.process_time()
  assert answers.compare('x+y', rf'x+y+0\cdot({more})')['kind']
  assert time.process_time() - start < LIMIT


@pytest.mark.parametrize('text', [
    '9^{9^{9^9}}', r'\frac{1}{', '1' * 1900, '(' * 900, r'\text{' * 300,
    r'\alpha' * 100 + '1=5', 'e ' * 900 + '?', '9^' * 900, '1,' * 900])
def test_a_hostile_reference_is_read_in_time(text):
  start = time.process_time()
  assert answers.readable(text) in (True, False)
  assert answers.compare(text, '5')['kind'] == 'wrong'
  assert time.process_time() - start < LIMIT


# Texts that regular expressions search again from every place, if they may.
LONG = {
    'digits': '1' * MEGABYTE, 'commas': '9,999' * 20_000,
    'slashes': '1/' * 50_000,
    'mark': '####' + ' ' * 100_000 + 'x', 'marks': '####$' * 20_000 + 'x',
    'questions': '\nQ:' * 50_000, 'formulas': '\\[' * 50_000,
    'other formulas': '\\(' * 50_000, 'lines': '\n' * MEGABYTE,
    'dollars': '$1' * 50_000, 'reasoning': '<think>' * 50_000,
    'roots': 'sqrt(' * 50_000, 'notes': 'a[1]' * 50_000, 'answers': 'answer is '
    * 50_000}


@pytest.mark.parametrize('name', LONG)
def test_a_long_response_takes_linear_time(name):
  start = time.process_time()
  for take in ('number', 'either'):
    found = answers.judge(dict(answer='5', response=LONG[name], take=take))
    assert found['kind'] in ('wrong', 'no_answer')
  assert time.process_time() - start < LIMIT


def test_what_is_long_is_not_read():
  assert answers.compare('5', 'x+' * 1001)['detail'] == 'too long to be read'
  # One that is no longer than twice the reference is read.
  long = '0.' + '1' * 1200
  assert answers.compare(long, long + '0' * 1000)['kind'] == 'correct'


@pytest.mark.parametrize('a, b', [
    ('99999!', '99999!+1'), ('x^{9999999}', 'x^{9999999}+1'),
    ('2^{20000}+1', '2^{20000}+2'), ('e^{-1000}', '0'),
    (r'\sin(10^{1001})', r'\cos(10^{1001})'), ('e^{e^{20}}', 'e^{e^{20}}+1')])
def test_a_difference_below_the_error_is_no_equality(a, b):
  assert answers.compare(a, b)['kind'] == 'wrong'
  assert answers.compare(b, a)['kind'] == 'wrong'


def test_the_worker_alone_says_only_its_replies():
  """No warning of the libraries on stderr, where progress is shown."""
  rows = [dict(answer='5', response=box(text), take='boxed') for text in (
      r'\frac{10}{2}', 'x^2 = \\sin(', '(x+1)^{100000}-(x-1)^{99999}')]
  done = subprocess.run(
      [sys.executable, '-m', 'jaxrl_llm.rewards.worker',
       'jaxrl_llm.rewards.math:judge', '5', '4000000000'], cwd=ROOT,
      capture_output=True, timeout=60,
      input=''.join(json.dumps(row) + '\n' for row in rows).encode())
  kinds = [json.loads(line)['kind'] for line in done.stdout.splitlines()]
  assert kinds == ['ready', 'correct', 'wrong', 'wrong']
  assert (done.returncode, done.stderr) == (0, b'')
