r"""Pairs of spellings of one answer, found in real data.

  a box         the box of a solution, for the answer of its row
  a step        a formula of a solution that equals its answer
  other rows    two references of different rows that are equal
  prose         the amount in the text of a GSM8K solution, for its answer

`evaluator.py` finds them equal; none is made by a rule of this benchmark.
"""

import collections
import re

import mpmath

from benchmarks.judge import evaluator, parser

_FORMULA = re.compile(r'\$\$?([^$]+)\$\$?|\\\[(.+?)\\\]', re.DOTALL)
_AMOUNT = re.compile(r'(?<![\d.,/*+-])\$?\d[\d,]*(?:\.\d+)?%?(?![\d/*+=<-])')
# Arithmetic on integers, which is no spelling of an answer.
_SUM = re.compile(r'(?:[\d\s+*()-]|\\cdot|\\times)+')
# Other spellings of a reference that no one takes for another answer.
_ALLOWED = ('equal', 'unit omitted', 'name omitted')


def bare(text):
  """Returns a text without spaces."""
  return re.sub(r'\s+|\\[,;!]', '', text)


def key(shape):
  """Returns what equal shapes have in common."""
  kind = shape[0]
  if kind == 'value':
    return mpmath.nstr(evaluator.at(shape[1], 1), 20)
  if kind in ('list', 'union'):
    return kind, *sorted(map(str, map(key, shape[1])))
  if kind == 'sequence':
    return shape[1], *map(key, shape[2]), shape[3]
  if kind == 'matrix':
    return kind, *(key(cell) for row in shape[2] for cell in row)
  if kind == 'relation' and shape[2] == ['=']:
    return key(shape[1][-1])
  return shape if kind in ('words', 'base') else 'relation'


def other_rows(answers):
  """Yields pairs of references that are equal and spelt apart."""
  buckets = collections.defaultdict(list)
  for answer in sorted(set(answers)):
    try:
      buckets[str(key(parser.parse(answer)))].append(answer)
    except (parser.Unread, ZeroDivisionError, ValueError):
      continue
  for bucket in buckets.values():
    for a in bucket:
      for b in bucket:
        if bare(a) == bare(b) or b.endswith(r'\%') > a.endswith(r'\%'):
          continue
        verdict = evaluator.compare(a, b)
        if verdict in _ALLOWED:
          yield ('other rows' if verdict == 'equal'
                 else f'other rows, {verdict}'), a, b


def solutions(rows, reference):
  """Yields the boxes and steps of solutions of MATH."""
  for row in rows:
    answer, seen = reference(str(row['answer'])), set()
    box = reference(row['solution'])
    if box != answer:
      seen.add(bare(box))
      yield 'a box', answer, box
    for formula in _FORMULA.findall(row['solution']):
      for part in re.split(r'=|\\\\|&|\\boxed', formula[0] or formula[1]):
        part = part.strip().strip('.,').removesuffix(r'\]').strip()
        if re.fullmatch(r'\{[^{}]*\}', part):  # what was in a box
          part = part[1:-1]
        if not part or bare(part) in seen | {
            bare(answer), f'{{{bare(answer)}}}'} or _SUM.fullmatch(part) or (
                len(part) > 20 + 2 * len(answer)):
          continue
        seen.add(bare(part))
        if evaluator.compare(answer, part) == 'equal':
          yield 'a step', answer, part


def prose(rows, reference):
  """Yields amounts in the text of solutions of GSM8K."""
  for row in rows:
    answer, seen = reference(str(row['answer'])), set()
    text = re.sub('<<.*?>>', '', row['solution'].partition('####')[0])
    for amount in _AMOUNT.findall(text):
      amount = amount.rstrip(',')
      if amount not in seen | {answer} and (  # quicker than the evaluator
          re.sub(r'[$,]|\.0+$', '', amount) == answer.replace(',', '')):
        seen.add(amount)
        found = amount.replace('$', r'\$')
        if evaluator.compare(answer, found) in _ALLOWED:
          yield 'prose', answer, found
