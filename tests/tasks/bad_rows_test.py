"""Tests of problem files with bad rows, all of which are told at once."""

import json
import types

import pytest

from jaxrl_llm import tasks

TOKENIZER = types.SimpleNamespace(start='', chat=str)


def write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def numbered(count):
  return [{'problem': f'{i}?', 'answer': i} for i in range(count)]


def make(*paths, **options):
  return tasks.get('math', TOKENIZER, path=paths, **options)


@pytest.mark.parametrize('number', ['Infinity', '-Infinity', '1e400'])
@pytest.mark.parametrize('reward', [
    (), ('tests.tasks.bad_rows_test:give_zeros',)])
def test_an_answer_without_end_is_a_bad_row(tmp_path, number, reward):
  path = tmp_path / 'a.jsonl'
  path.write_text(f'{{"problem": "x", "answer": {number}}}\n')
  with pytest.raises(ValueError) as error:
    make(str(path), reward=reward)
  assert str(error.value) == (
      f"{path}, line 1: field 'answer' is a number without end or beyond "
      f'1e308 ({float(number)}): write it as a text, such as "\\infty" or '
      '"10^{400}".')


def give_zeros(completions, **columns):
  return [0.0] * len(completions)


def test_all_bad_rows_are_told_at_once(tmp_path):
  lines = [json.dumps(row) for row in numbered(20)]
  lines[2] = 'x'
  lines[4] = lines[5] = '{"problem": "x", "answer": null}'
  lines[7] = '[1]'
  lines[9] = '{"problem": "y", "answer": "\\\\boxed{}"}'
  lines[12:15] = ['{"problem": 5}'] * 3
  path = tmp_path / 'a.jsonl'
  path.write_text('\n'.join(lines))
  with pytest.raises(ValueError) as error:
    make(str(path))
  assert str(error.value) == (
      f'{path} has 8 bad rows: line 3: not valid JSON (Expecting value: line 1 '
      "column 1 (char 0)); line 5, line 6: field 'answer' is empty; line 8: "
      "'[1]' is not a JSON object with named fields; line 10: the answer "
      "'\\\\boxed{}' has an empty or unclosed box or is empty: complete it, or "
      'leave the problem out; and 3 more.')
  path.write_text('\n'.join(lines[:7]))
  with pytest.raises(ValueError, match="has 3 bad rows: .* is empty.$"):
    make(str(path))


def test_all_contradictions_are_told_at_once(tmp_path):
  a = write(tmp_path / 'a.jsonl', numbered(3) + [
      {'problem': f'x {i}', 'answer': i} for i in range(7)])
  b = write(tmp_path / 'b.jsonl', [
      {'problem': f'x {i}', 'answer': i + 1} for i in range(7)])
  with pytest.raises(ValueError) as error:
    make(a, b, heldout_count=0)
  said = str(error.value)
  assert said.startswith(
      f"{b} has 7 bad rows: line 1: the answer '1' differs from '0' in {a}, "
      'line 4, which has the same problem: remove one of them; line 2: ')
  assert 'line 5: ' in said and said.endswith('; and 2 more.')
