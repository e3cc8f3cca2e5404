"""Tests of how calls in a turn are read."""

import enum
import json
from typing import Any, Literal

import pytest

from jaxrl_llm.environments import call_forms, qwen_xml

# Of the functions that there are.
HINTS = {'f': {'x': str}, 'g': {'n': int, 's': str}}


def call(name, **arguments):
  text = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>\n{text}\n</tool_call>'


def bare(name, **arguments):
  return json.dumps({'name': name, 'parameters': arguments})


def xml(name, **arguments):
  values = ''.join(f'<parameter={key}>\n{value}\n</parameter>\n'
                   for key, value in arguments.items())
  return f'<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>'


@pytest.mark.parametrize('text, found', [
    ('The answer is 4.', []),
    ('{4}', []),
    ('{"a": 1}', []),
    (call('f', x=1), [('f', {'x': 1}, '')]),
    ('I add.\n' + call('f', x=1) + '\n' + call('g'),
     [('f', {'x': 1}, ''), ('g', {}, '')]),
    ('<|python_tag|>{"name": "f", "parameters": {"x": "</tool_call>"}}',
     [('f', {'x': '</tool_call>'}, '')]),
    ('<tool_call>{"name": "f", "arguments": {}} so',
     [('', {}, 'the call has no </tool_call>')]),
    # Where the tag is a stop token.
    ('<tool_call>{"name": "f", "arguments": {}}\n', [('f', {}, '')]),
    ('<tool_call>["f"]</tool_call>',
     [('', {}, 'the call is no JSON object with a "name"')]),
    ('<tool_call>{"name": 3}</tool_call>',
     [('', {}, 'the call is no JSON object with a "name"')]),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
     [('', {}, 'the arguments of f are no JSON object')]),
])
def test_calls_of_a_turn(text, found):
  assert [tuple(one) for one in call_forms.calls(text)] == found


def test_what_is_no_json_is_an_observation():
  one, = call_forms.calls('<tool_call>{"name": "f", </tool_call>')
  assert 'not valid JSON' in one.fault
  deep = '<tool_call>' + '[' * 100_000 + '</tool_call>'
  assert 'not valid JSON' in call_forms.calls(deep)[0].fault


@pytest.mark.parametrize('text', [
    '</tool_call>', '<tool_call>', call('f', x='1'), "print('</tool_call>')",
    xml('f', x=1), '</think>', '<think>', '<|python_tag|>', '</parameter>'])
def test_json_and_xml_say_where_a_call_ends(text):
  for write in call, bare, xml:
    if write is xml and '</function>' in text:
      continue  # the first end counts
    made = write('f', x=text)
    read = call_forms.behind_reasoning(f'<think>a</think>{made}', ['think'])
    assert read == made
    assert call_forms.calls(made, HINTS) == [('f', {'x': text}, '')]
  made = call_forms.calls(call('f', x=text) + '\n' + call('f', x='b'))
  assert [one.arguments['x'] for one in made] == [text, 'b']


@pytest.mark.parametrize('arguments, found', [
    (r'"{\"x\": 1}"', {'x': 1}), ('null', {}), ('""', {}), ('{}', {}),
    ('"none"', None), ('"3"', None), ('3', None), ('[]', None)])
def test_arguments_in_other_forms(arguments, found):
  one, = call_forms.calls(
      f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
  assert one == ('f', found, '') if found is not None else (
      'arguments of f are no' in one.fault)


def test_several_calls_in_a_block():
  one, two = ({'name': 'f', 'arguments': {'x': x}} for x in '12')
  found = [('f', {'x': '1'}, ''), ('f', {'x': '2'}, '')]
  one, two = json.dumps(one), json.dumps(two)
  for text in (f'{one}{two}', f'{one}\n{two}', f'[{one}, {two}]'):
    assert call_forms.calls(f'<tool_call>{text}</tool_call>') == found
  for text in (f'{one}; {two}', f'[{one}, {two}]', f'{one}\n{two};'):
    assert call_forms.calls(text, HINTS) == found
    assert call_forms.calls(f'So:<|python_tag|>{text}', HINTS) == found


@pytest.mark.parametrize('text', [
    '{"name": "Ann", "age": 3}', '{"name": "f", "age": 3}', '{"name": "f"}',
    '{"name": "Ann", "arguments": {}}', '[{"name": "Ann"}]', '[1, 2]', '[]',
    '{"name": "Ann", "parameters": {', bare('h', x=1), '{"f": {"x": 1}}'])
def test_an_answer_in_json_is_no_call(text):
  assert call_forms.calls(text, HINTS) == []


@pytest.mark.parametrize('text, fault', [
    (bare('f', x='1')[:-3], 'not valid JSON'),
    (bare('f', x='1') + ' It is 1.', 'nothing else behind'),
    ('<|python_tag|>print(1)', 'not valid JSON'),
    (call('f', x='1')[:-15], 'no </tool_call>'),
    (call('f', x='1')[:-25], 'no </tool_call>'),
    ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>', 'more than a'),
    ('<tool_call>[]</tool_call>', 'not valid JSON'),
    (xml('f', x='1').replace('</function>', ''), 'no whole <function=NAME>'),
    (xml('f', x='1')[:-30], 'no </tool_call>')])
def test_a_call_that_is_not_whole_says_so(text, fault):
  one, = call_forms.calls(text, HINTS)
  assert fault in one.fault


def test_a_call_without_end_does_not_take_the_next():
  first, second = call_forms.calls(
      call('f', x='1').removesuffix('</tool_call>') + call('f', x='2'))
  assert 'no </tool_call>' in first.fault and second.arguments == {'x': '2'}


@pytest.mark.parametrize('text, found', [
    ('<think>a</think>b', 'b'), ('a</think>b', 'b'), ('<think>a', ''),
    ('a', 'a'), ('Never write `<think>`. b', 'Never write `<think>`. b'),
    (f'<think>{call("f", x="</think>")}</think>b', 'b'),
    ('<think><tool_call>{"x": "</think>b', 'b'),
    ('<think>a</think>b<think>c</think>d', 'd')])
def test_reasoning_is_left_out(text, found):
  assert call_forms.behind_reasoning(text, ['plan', 'think']) == found


class Color(enum.Enum):
  RED = 'red'


@pytest.mark.parametrize('text, hint, value', [
    ('3', str, '3'), ('null', str, 'null'), ('{"a": 1}', str, '{"a": 1}'),
    ('3', int, 3), (' 3 ', int, 3), ('2.5', float, 2.5), ('x', int, 'x'),
    ('true', bool, True), ('False', bool, False), ('[1, "a"]', list, [1, 'a']),
    ('[1]', list[int], [1]), ("{'a': True}", dict, {'a': True}),
    ('null', int | None, None), ('None', str | None, None),
    ('a', str | None, 'a'), ('3', int | str, '3'), ('[3]', str | list, [3]),
    ('3', Literal['3', '4'], '3'), ('3', Literal[3], 3), ('red', Color, 'red'),
    ('[1]', Any, [1]), ('a b', Any, 'a b')])
def test_values_in_xml_have_the_type_of_the_argument(text, hint, value):
  found = qwen_xml.value(text, hint)
  assert found == value and type(found) is type(value)


def test_calls_in_xml():
  found = call_forms.calls(
      'Two:\n' + xml('g', n=3, s='a\n</parameter>\n', y='1') + xml('f', x=' 2'),
      HINTS)
  assert found == [
      ('g', {'n': 3, 's': 'a\n</parameter>\n', 'y': '1'}, ''),
      ('f', {'x': ' 2'}, '')]
