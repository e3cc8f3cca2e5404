"""Tests of the evaluation's table: its exact text and its numbers."""

import io
import math

from rich.console import Console

from jaxrl_llm.evaluation import report
from jaxrl_llm.evaluation.responses import ResponseRecord

R = ResponseRecord(1.0, 'correct', True, '7', 10, False)
W = ResponseRecord(0.0, 'wrong', True, '8', 20, True)
S = ResponseRecord(0.0, 'no_answer', True, '', 30, True)
T = ResponseRecord(0.0, 'timeout', False, '', 40, False)
E = ResponseRecord(0.0, 'error', False, '', 40, False)

A = [[R, R, W, S], [W, W, W, S], [R, R, R, T]]
B = [[S, S, R._replace(answer=''), S]]
SETTINGS = dict(
    workdir='runs/x', checkpoint='best', step=7, temperature=0.6, samples=4,
    max_prompt=9, max_response=50, left_out=0)


def result(files, **changes):
  every = [row for rows in files.values() for row in rows]
  return {**SETTINGS, **report.summary(every, (1, 3)), **changes,
          'files': {name: report.summary(rows, (1, 3))
                    for name, rows in files.items()}}


def test_numbers():
  got = report.summary([*A, [E, T, E, E]], (1, 3))
  assert got['problems'] == 4
  assert got['tokens'] == (10 + 10 + 20 + 30 + 90 + 70 + 160) / 16
  assert got['truncated'] == 6 / 16
  assert got['invalid'] == {'error': 3, 'timeout': 2}
  # What could not be judged is no response: 1/2, 0 and 3/3.
  assert got['mean'] == 0.5
  # rrw, rrs x 2 right; rws x 2: half, one of four subsets each.
  assert got['maj@3'] == ((2 + 2 / 2) / 4 + 0 + 1) / 3


def test_markdown():
  # mean 1/2, 0, 1 and 1/4; pass@3 1, 0, 1 and 3/4; maj@3 as above and 3/4.
  assert report.markdown(result({'a|.jsonl': A, 'b.jsonl': B})) == (
      'runs/x: best checkpoint (step 7), 4 responses to each problem at '
      'temperature 0.6, max_response=50\n'
      '\n'
      '|  | problems | mean@4 | pass@1 | pass@3 | maj@3 |\n'
      '| --- | ---: | ---: | ---: | ---: | ---: |\n'
      '| a\\|.jsonl | 3 | 0.500 ± 0.289 | 0.500 ± 0.289 | 0.667 ± 0.333 | '
      '0.583 ± 0.300 |\n'
      '| b.jsonl | 1 | 0.250 ± 0.000 | 0.250 ± 0.000 | 0.750 ± 0.000 | - |\n'
      '| all | 4 | 0.438 ± 0.213 | 0.438 ± 0.213 | 0.688 ± 0.237 | '
      '0.625 ± 0.217 |\n'
      '\n'
      '± is the standard error over problems. A response has 20.6 tokens on '
      'average; 56.2% are truncated.\n'
      '\n'
      'Not judged, and left out: 1 timeout.\n'
      '\n'
      'maj@k is missing for b.jsonl: no response has an answer to vote with, '
      'because the reward or the task reads none, or none was found.\n')


def test_one_file_is_all():
  lines = report.markdown(result(
      {'a': A[:2]}, checkpoint='start', samples=1, left_out=3)).splitlines()
  assert lines[0] == (
      'runs/x: initial parameters, one response to each problem at '
      'temperature 0.6, max_response=50')
  assert [line[:4] for line in lines if line[:1] == '|'] == [
      '|  |', '| --', '| a ']
  assert lines[-1] == (
      'Left out for prompts of more than max_prompt=9 tokens: 3.')
  assert not any('Not judged' in line for line in lines)


def test_missing_majority_votes_are_explained():
  def said(files):
    return [n for n in report.notes(result(files)) if 'maj@k is missing' in n]
  every, = said({'b': B, 'c': B})
  assert every.startswith('maj@k is missing: no response has an answer')
  some, = said({'a': A, 'b': B, 'x/c': B})
  assert some.startswith('maj@k is missing for b, x/c: ')
  assert not said({'a': A})
  few = report.summary(B, (1,))
  assert len([*report.notes({**SETTINGS, **few, 'files': {'b': few}})]) == 1


def test_what_is_not_known_is_a_dash():
  got = result({'a': A, 'b': [[T, E, T, T]]})
  assert math.isnan(got['files']['b']['mean'])
  assert report.cells(got)[2] == ['b', '1', '-', '-', '-', '-']


def test_names_are_as_short_as_can_be():
  names = ['/x/a.jsonl', 'y/b.jsonl', 'z/b.jsonl', 'org/name:test', 'held-out']
  got = report.cells(result(dict.fromkeys(names, A)))
  assert [row[0] for row in got[1:]] == ['a.jsonl', *names[1:], 'all']


def test_a_narrow_screen_cuts_no_figure():
  got = result({'a': A, 'b': B})
  console = Console(width=60, file=io.StringIO())
  console.print(report.table(got))
  said = console.file.getvalue()
  for figure in ('0.500', '0.289', '0.667', '0.583', '0.217', 'problems'):
    assert figure in said


def test_the_table_is_that_of_the_file():
  got = result({'a': A, 'b': B})
  table = report.table(got)
  columns = [[column.header, *column.cells] for column in table.columns]
  assert [list(row) for row in zip(*columns)] == report.cells(got)
