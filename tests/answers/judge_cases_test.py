"""Tests of the judge of mathematics on cases of many kinds.

`judge_cases.jsonl` has a reference, a response, how the answer is taken and the
right verdict. The cases were written by people who did not know the judge.
"""

import collections
import json
import pathlib
import re

import pytest

from jaxrl_llm import answers
from jaxrl_llm.tasks import references

# Forms that the grammar does not cover; that they are refused is right.
PRUNED = re.compile(
    r'\\(?:sum|prod|int|lim|det)(?![a-z])|matrix\}\^|\\left\|\\begin|'
    r'\\\{\s*\w+\s*(?:\\mid|\||:)')
HERE = pathlib.Path(__file__).resolve().parent
FILES = [HERE / 'judge_cases.jsonl',
         *(HERE.parents[2] / 'shared/judge').glob('cases*.jsonl')]


def read():
  """Returns the cases of each kind."""
  cases = collections.defaultdict(list)
  for path in filter(pathlib.Path.exists, FILES):
    for line in path.read_text().splitlines():
      cases[json.loads(line)['kind']].append(json.loads(line))
  return cases


CASES = read()


@pytest.mark.parametrize('kind', CASES)
def test_verdicts_are_right(kind):
  wrong = []
  for case in CASES[kind]:
    found = answers.judge(dict(
        answer=references.checked(case['answer']),
        response=case['response'], take=case['take']))
    is_right = case['right'] == 'correct' and not (
        PRUNED.search(case['answer'] + case['response']))
    if (found['kind'] == 'correct') != is_right and not (
        found['kind'] == case['right']):
      wrong.append((found['kind'], case))
  assert not wrong


def test_there_are_cases_of_both_verdicts():
  rights = [c['right'] for cases in CASES.values() for c in cases]
  assert min(rights.count('correct'), rights.count('wrong')) > 450
