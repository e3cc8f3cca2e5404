"""Tests of tools: how calls are read, answered, and described."""

import json

import pytest

from jaxrl_llm.environments import tools, worker
from jaxrl_llm.environments.calculator import calculator
from tests.helpers.bubblewrap import NEEDED

CALCULATOR = 'jaxrl_llm.environments.calculator:calculator'


def call(name, **arguments):
  text = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>\n{text}\n</tool_call>'


@pytest.mark.parametrize('text, found', [
    ('The answer is 4.', []),
    ('{4}', []),
    ('{"a": 1}', []),
    (call('f', x=1), [('f', {'x': 1}, '')]),
    ('I add.\n' + call('f', x=1) + '\n' + call('g'),
     [('f', {'x': 1}, ''), ('g', {}, '')]),
    ('<|python_tag|>{"name": "f", "parameters": {"x": "</tool_call>"}}',
     [('f', {'x': '</tool_call>'}, '')]),
    ('<tool_call>{"name": "f", "arguments": {}}',
     [('', {}, 'the call has no </tool_call>')]),
    ('<tool_call>["f"]</tool_call>',
     [('', {}, 'the call is no JSON object with a "name"')]),
    ('<tool_call>{"name": 3}</tool_call>',
     [('', {}, 'the call is no JSON object with a "name"')]),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
     [('', {}, 'the arguments of f are no JSON object')]),
])
def test_calls_of_a_turn(text, found):
  assert [tuple(one) for one in tools.calls(text)] == found


def test_what_is_no_json_is_an_observation():
  one, = tools.calls('<tool_call>{"name": "f", </tool_call>')
  assert 'not valid JSON' in one.fault
  deep = '<tool_call>' + '[' * 100_000 + '</tool_call>'
  assert 'not valid JSON' in tools.calls(deep)[0].fault


def test_calls_are_answered_in_a_worker(tmp_path):
  file = tmp_path / 'own.py'
  file.write_text('def half(n: int) -> float:\n'
                  '  """Halves.\n\n  Args:\n    n: A number.\n  """\n'
                  '  return n / 2\n\n'
                  'def bare(n):\n  return n\n')
  name = f'{tools.PREFIX}{CALCULATOR},{file}:half'

  def step(text):
    return worker.step(dict(
        name=name, key='k', problem={}, prompt='', seed=0, texts=[text],
        observations=[]))

  assert step(call('calculator', expression='3*(4+5)'))['observation'] == '27'
  assert step(call('half', n=3) + call('half', n=4))['observation'] == (
      '1.5\n2.0')
  for text, said in (
      (call('half', n='x'), 'Error: TypeError: '),
      (call('half', m=3), "Error: half: missing a required argument: 'n'."),
      (call('third', n=3), 'Error: there is no tool third; there is '
       'calculator, half.'),
      (call('calculator', expression='1/0'), 'Error: ValueError: division by'),
      ('<tool_call>x</tool_call>', 'Error: the call is not valid JSON')):
    assert step(text)['observation'].startswith(said), text
  assert step('It is 27.')['observation'] is None
  schema, = tools.schemas([f'{file}:half'])
  assert schema['function']['name'] == 'half'
  assert schema['function']['parameters']['properties']['n'] == {
      'type': 'integer', 'description': 'A number.'}
  with pytest.raises(ValueError, match='task.tools=.*bare has no description'):
    tools.schemas([f'{file}:bare'])


@pytest.mark.parametrize('expression, value', [
    ('2+3*4', '14'), ('-(2 - 5)', '3'), ('7/2', '3.5'), ('7//2', '3'),
    ('0.1+0.2', '0.3'), ('1e3*2', '2000'), (' 12 ', '12'), ('7 % 4', '3')])
def test_the_calculator(expression, value):
  assert calculator(expression) == value


@pytest.mark.parametrize('expression', [
    '9**9**9', '__import__("os")', 'x', '1+', '', '(' * 150, '1' * 201,
    '999999*999999*999999', 'True', '"a"*9', '1 if 1 else 2'])
def test_what_the_calculator_refuses(expression):
  with pytest.raises(ValueError):
    calculator(expression)


@NEEDED
def test_a_program_of_the_model_runs_in_the_sandbox():
  name = f'{tools.PREFIX}jaxrl_llm.environments.python_tool:python'

  def step(code):
    return worker.step(dict(
        name=name, key='k', problem={}, prompt='', seed=0,
        texts=[call('python', code=code)], observations=[]))['observation']

  assert step('print(sum(range(10)))') == '45\n'
  assert step('print(1)\n1/0') == (
      '1\nError: ZeroDivisionError: division by zero')
