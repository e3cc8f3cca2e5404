r"""Tests of the judge by math-verify, with a stand-in for that library.

The stand-in compares what stands in \boxed{} without white space.
"""

import importlib.util
import sys

import pytest

from jaxrl_llm import rewards
from jaxrl_llm.rewards import math_verify
from tests.tasks import math_task_test

LIBRARY = r'''
class LatexExtractionConfig: pass
class ExprExtractionConfig: pass

def parse(text, extraction_config, parsing_timeout=5):
  """Has a limit of its own by default, which is a signal's."""
  assert parsing_timeout is None and text.startswith('\\boxed{')
  kinds = [type(c).__name__[:-len('ExtractionConfig')]
           for c in extraction_config]
  return ['/'.join(kinds), text[len('\\boxed{'):-1].replace(' ', '')]

def verify(gold, target, timeout_seconds=5):
  assert timeout_seconds is None
  assert (gold[0], target[0]) == ('Latex', 'Latex/Expr')
  while target[1] == 'slow':
    pass
  return gold[1] == target[1]
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
  (tmp_path / 'math_verify.py').write_text(LIBRARY)
  monkeypatch.delitem(sys.modules, 'math_verify', raising=False)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  sys.modules.pop('math_verify', None)


def judged(answer, response, take='boxed', **item):
  return math_verify.judge(
      dict(answer=answer, response=response, take=take, **item))


def test_the_library_gets_what_is_taken(library):
  math_verify.prepare()
  assert judged('x+1', r'first $\boxed{1+x}$, then $\boxed{x + 1}$.') == {
      'kind': 'correct', 'detail': 'x + 1', 'answer': '1+x'}
  # Equal to the judge of this library, not to the stand-in.
  assert judged('x+1', r'\boxed{1+x}')['kind'] == 'wrong'
  assert judged('7', 'It is 7.', 'number')['kind'] == 'correct'
  assert judged('7', 'It is $7$.') == {
      'kind': 'no_answer', 'answer': '', 'detail': ''}
  assert judged('7', r'<why>\boxed{7}</why>', tags=['why'])[
      'kind'] == 'no_answer'


def test_answers_that_are_written_otherwise_get_the_same_vote(library):
  votes = [judged('3', rf'\boxed{{{text}}}') for text in ('0.5', r'\frac12')]
  assert [v['answer'] for v in votes] == ['1/2', '1/2']


def test_a_task_asks_the_library(library, tmp_path):
  path = math_task_test.write(
      tmp_path / 'a.jsonl', math_task_test.numbered(2))
  task = math_task_test.make(
      path, heldout_count=0, judge='math_verify', workers=1, timeout=1.0)
  try:
    verdicts = rewards.verify_all(
        task, task.train[:1] * 3,
        [r'\boxed{1}', r'\boxed{1.0}', r'\boxed{slow}'], [False] * 3)
  finally:
    task.close()
  assert [(v.kind, v.reward, v.valid) for v in verdicts] == [
      ('correct', 1, True), ('wrong', 0, True), ('timeout', 0, True)]


def test_a_missing_library_is_told_at_the_start(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  path = math_task_test.write(tmp_path / 'a.jsonl', [{'bad': 'row'}])
  with pytest.raises(ValueError, match=r"install '.*\[math_verify\]'"):
    math_task_test.make(path, judge='math_verify')
