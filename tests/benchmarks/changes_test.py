"""Tests of the changes and respellings that the judge is measured with."""

import random

import pytest

from benchmarks.judge import algebra, changes, evaluator, real, respellings

# Each kind of change, with a reference and a text that it has to give.
KINDS = [
    ('sign', '(3, -4)', '(3, 4)'), ('operator', 'x+2', 'x-2'),
    ('operator', 'x^2', r'x \cdot 2'), ('letter', r'\theta+1', r'\phi +1'),
    ('case', 'x+1', 'X+1'), ('name', 'x=5', 'X=5'), ('index', '43_5', '43_6'),
    ('relation', 'x < 5', r'x \le  5'), ('bracket', '[1,2)', '(1,2)'),
    ('bracket', '[1,2)', '[1,2]'), ('function', r'\sin x', r'\cos x'),
    ('root', r'\sqrt{5}', r'\sqrt[3]{5}'), ('root', r'2\sqrt{5}', '2 {5}'),
    ('unit', r'5\text{ cm}', r'5\text{ m}'), ('point added', '15', '1.5'),
    ('unit', '30^\\circ', r'30\text{ radians}'), ('power dropped', 'x^2', 'x '),
    ('element dropped', '1,2,3', '1,3'), ('factorial added', '5', '5!'),
    ('element added', '(1,2)', '(1, 57,2)'), ('point dropped', '1.5', '15'),
    ('elements exchanged', '(1,2)', '(2,1)'),
    ('term dropped', 'y=2x-3', 'y=2x'), ('letter dropped', '3+2i', '3+2'),
    ('term added', 'y=2x', 'y=2x + 1'), ('letter dropped', r'3\pi', '3'),
    ('brackets dropped', '2(x+1)', '2x+1'), ('digit dropped', '77', '7'),
    ('upside down', r'\frac{3}{4}', r'\frac{4}{3}'),
    ('elements exchanged', r'\begin{pmatrix} 1 & 2 \end{pmatrix}',
     r'\begin{pmatrix}2 & 1\end{pmatrix}')]
REFERENCES = [
    r'\frac{3}{4}', r'-\frac{5}{2}', r'4+\sqrt{5}', r'3\sqrt{2}', 'x^2-3x+2',
    '(x-1)(x+2)', r'\frac{1+\sqrt{5}}{2}', 'y = 2x-13', 'x < 5', '12',
    r'\frac{3\pi}{4}', r'\left( 3, -\frac{1}{2} \right)', '1, 2', '5.25',
    r'\frac{2\sqrt{3}}{3}', '2x - y + 3z + 8 = 0', r'7\text{ cm}', '43_5']
# Rules that only the judge has to know: the parser does not read their result.
UNREAD = {'unicode', 'colour', 'bold', 'e-notation', 'currency', 'degrees',
          'parentheses', 'groups of digits', 'unit'}


@pytest.mark.parametrize('kind, reference, wanted', KINDS)
def test_every_kind_of_change(kind, reference, wanted):
  found = [text for name, text in changes.changes(reference, random.Random(0))
           if name == kind]
  assert wanted in found


def test_changes_that_leave_the_value_equal_are_left_out():
  found, left = changes.chosen(['(1,1.0)', '(1,2)', r'\frac12'], 1000)
  assert ('equal', 'elements exchanged', '(1,1.0)', '(1.0,1)') in left
  assert ('bracket', '(1,2)', '[1,2)') in found
  assert all(evaluator.compare(a, b) not in ('equal', *evaluator.CONVENTIONS)
             for _, a, b in found)


def test_integers_are_few():
  answers = [*map(str, range(100, 200)), r'\frac{3}{4}', r'\sqrt{7}']
  found, _ = changes.chosen(answers, 30)
  assert sum(a.isdigit() for _, a, _ in found) <= 7


@pytest.mark.parametrize('reference', REFERENCES)
def test_respellings_keep_the_value(reference):
  for rule in (algebra.respell, respellings.respell):
    for name, text in rule(reference):
      if name not in UNREAD:
        assert evaluator.compare(reference, text) in (
            'equal', 'unit omitted', 'name omitted'), (name, text)


def test_spellings_in_solutions():
  rows = [dict(answer='0.5', solution=r'$x = \frac24 = 1 - 5$, $\boxed{1/2}$'),
          dict(answer='7', solution=r'$3 + 4 = 7$ is $\boxed{7}$')]
  def box(text):
    return text.rpartition(r'\boxed{')[2].split('}')[0]
  assert set(real.solutions(rows, box)) == {
      ('a box', '0.5', '1/2'), ('a step', '0.5', r'\frac24')}


def test_amounts_in_prose():
  rows = [dict(answer='1080', solution='It is $1,080.00, not $180.\n#### 1080')]
  assert list(real.prose(rows, str)) == [('prose', '1080', r'\$1,080.00')]


def test_references_of_other_rows():
  found = set(real.other_rows(['0.5', r'\frac12', '2', r'2\text{ cm}', '5',
                               r'2\text{ m}']))
  assert ('other rows', '0.5', r'\frac12') in found
  assert ('other rows, unit omitted', '2', r'2\text{ cm}') in found
  assert len(found) == 6  # centimetres are no metres
