"""Tests of the rows of supervised fine-tuning: their tokens, and the learned.

transformers' functions are the reference, called as TRL 1.16 calls them in
`SFTTrainer._prepare_dataset`. Importing the trainer would take longer than all
of these tests.
"""

import functools
import json
import logging
import types

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
import transformers

from jaxrl_llm import tasks
from jaxrl_llm.base.tokenizer import CharTokenizer, ModelTokenizer
from jaxrl_llm.tasks import sft_rows

# Chat templates as models have them; [[ and ]] are where generation marks go.
CHATML = (
    r"{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are kind"
    r".<|im_end|>\n' }}{% endif %}{% if tools %}{{ '<|im_start|>system\n' + "
    r"(tools | tojson) + '<|im_end|>\n' }}{% endif %}{% for m in messages %}"
    r"{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}[["
    r"{{ m.content }}{% for call in m.tool_calls or [] %}{{ '<tool_call>' + "
    r"(call.function | tojson) + '</tool_call>' }}{% endfor %}<|im_end|>]]"
    r"{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = (
    r"{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role +"
    r" '<|end_header_id|>\n\n' }}{% if m.role == 'assistant' %}[[{{ (m.content "
    r"| trim) + '<|eot_id|>' }}]]{% else %}{{ (m.content | trim) + '<|eot_id|>'"
    r" }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    r"{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
GEMMA = (
    r"{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception("
    r"'System role not supported') }}{% endif %}{% for m in messages %}{% if (m"
    r".role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles "
    r"must alternate') }}{% endif %}{% if m.role == 'assistant' %}"
    r"{{ '<start_of_turn>model\n' }}[[{{ (m.content | trim) + '<end_of_turn>\n'"
    r" }}]]{% else %}{{ '<start_of_turn>user\n' + (m.content | trim) + "
    r"'<end_of_turn>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    r"{{ '<start_of_turn>model\n' }}{% endif %}")
# Removes the reasoning of answers before the last question, as Qwen3 does.
QWEN3 = (
    r"{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == "
    r"'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m "
    r"in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == "
    r"'assistant' %}[[{{ m.content.split('</think>')[-1].lstrip() if "
    r"loop.index0 < ns.last else m.content }}{{ '<|im_end|>\n' }}]]{% else %}"
    r"{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Cuts reasoning out of every answer, as the distilled models of DeepSeek-R1 do.
CUTS = CHATML.replace(
    '{{ m.content }}', r"{{ m.content.split('</think>')[-1].lstrip() }}")
# Has reasoning in a field of its own.
REASONS = CHATML.replace(
    '{{ m.content }}', "{{ '<think>' + m.reasoning_content + '</think>' if "
    "m.reasoning_content else '' }}{{ m.content }}")
# Ends a conversation, but no prompt, with the end of the text, as Phi-3 does.
PHI3 = (
    r"{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + "
    r"'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    r"{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}")
# Nothing ends a turn.
PLAIN = (
    r"{% for m in messages %}{{ m.role + ':\n' + m.content + '\n' }}"
    r"{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\n' }}"
    r"{% endif %}")
# An answer has two marked parts, with a word between them.
TWO_PARTS = (
    r"{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role "
    r"== 'assistant' %}[[{{ m.reason }}]] so [[{{ m.content + '<|im_end|>' }}]]"
    r"{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

# name: template, first token, and the token that ends a turn
FAMILIES = {
    'chatml': (CHATML, '', '<|im_end|>'),
    'llama3': (LLAMA3, '<bos>', '<|eot_id|>'),
    'gemma': (GEMMA, '<bos>', '<end_of_turn>'),
    'qwen3': (QWEN3, '', '<|im_end|>'),
    'cuts': (CUTS, '', '<|im_end|>'),
    'reasons': (REASONS, '', '<|im_end|>'),
    'phi3': (PHI3, '', '<eos>'),
    'plain': (PLAIN, '', '<eos>'),
    'two parts': (TWO_PARTS, '', '<|im_end|>')}
SPECIAL = (
    '<pad>', '<bos>', '<eos>', '<|im_start|>', '<|im_end|>', '<|eot_id|>',
    '<|start_header_id|>', '<|end_header_id|>', '<start_of_turn>',
    '<end_of_turn>')
WIDE = sft_rows.RowLimits(999, 999)


def bpe(folder, chat, start, end):
  """Makes a byte-level BPE with a chat template; '' for no first token."""
  own = tokenizers.Tokenizer(models.BPE())
  own.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False)  # so that tokens cross words
  own.decoder = decoders.ByteLevel()
  own.train_from_iterator(
      ['the answer is 4', 'what is 2 + 2?', 'hello hello', ':$', '\n\n'] * 9,
      trainers.BpeTrainer(
          vocab_size=330, special_tokens=[*SPECIAL], show_progress=False,
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  if start:
    own.post_processor = processors.TemplateProcessing(
        single=f'{start} $A', special_tokens=[(start, SPECIAL.index(start))])
  theirs = transformers.PreTrainedTokenizerFast(
      tokenizer_object=own, eos_token=end, pad_token='<pad>',
      **({'bos_token': start} if start else {}))
  theirs.chat_template = chat
  theirs.save_pretrained(folder)
  return ModelTokenizer(folder)


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  """Makes a task with the tokeniser of a family, with generation marks or not.
  """
  @functools.cache
  def made(family, marks=False):
    chat, *rest = FAMILIES[family]
    chat = chat.replace('[[', '{% generation %}' if marks else '').replace(
        ']]', '{% endgeneration %}' if marks else '')
    return types.SimpleNamespace(
        tokenizer=bpe(tmp_path_factory.mktemp('model'), chat, *rest))
  return made


def chat(*turns, **last):
  """Returns messages from texts such as 'u:hello'; `last` is of the last."""
  roles = {'s': 'system', 'u': 'user', 'a': 'assistant', 't': 'tool'}
  found = [dict(role=roles[turn[0]], content=turn[2:]) for turn in turns]
  found[-1] |= last
  return found


def write(path, rows):
  path.write_text(''.join(
      row if isinstance(row, str) else json.dumps(row) + '\n' for row in rows))
  return str(path)


def runs(task, row, **options):
  """Returns the texts of a row that are learned."""
  ids, learned = sft_rows.tokens(row, task, **options)
  assert ids.dtype == np.int32 and learned.dtype == bool
  assert ids.shape == learned.shape and not learned[0]
  edges = np.flatnonzero(np.diff(learned, prepend=False, append=False))
  return [task.tokenizer.spell(ids[a:b]) for a, b in edges.reshape(-1, 2)]


def whole(task, row, **options):
  """Returns a row's text."""
  return task.tokenizer.spell(sft_rows.tokens(row, task, **options)[0])


def same(task, row, ids, learned, **options):
  """Asserts the tokens of a row; nothing predicts the first one."""
  got = sft_rows.tokens(row, task, **options)
  assert [*got[0]] == [*ids]
  assert [*got[1]] == [False, *map(bool, learned[1:])]


def refused(task, row, *words, **options):
  """Asserts that a row is refused in one sentence with these words."""
  with pytest.raises(ValueError) as error:
    sft_rows.tokens(row, task, **options)
  said = str(error.value)
  assert all(word in said for word in words) and '\n' not in said, said


def by_trl(own, row):
  """Returns what `assistant_only_loss=True` learns, as TRL calls it."""
  found = own.apply_chat_template(
      row['messages'], tools=row.get('tools'), tokenize=True, return_dict=True,
      return_assistant_tokens_mask=True)
  return found['input_ids'], found['assistant_masks']


def common(a, b):
  """Returns the number of tokens with which both begin."""
  return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y),
              min(len(a), len(b)))


def by_differences(own, row):
  """Returns what each answer adds to the prompt for it."""
  messages, tools = row['messages'], row.get('tools')
  encode = functools.partial(
      own.apply_chat_template, tools=tools, return_dict=False)
  ids = encode(messages)
  learned = [False] * len(ids)
  for i, message in enumerate(messages):
    if message['role'] == 'assistant':
      before = encode(messages[:i], add_generation_prompt=True)
      after = encode(messages[:i + 1])
      # A token may hold the end of one message and the start of the next.
      first, end = common(ids, before), common(ids, after)
      assert len(before) - first < 2 and len(after) - end < 2
      learned[first:end] = [True] * (end - first)
  return ids, learned


CALL = dict(type='function', function=dict(name='add', arguments=dict(a=1)))
TOOLS = [dict(type='function', function=dict(name='add', parameters=dict(
    type='object')))]
CONVERSATIONS = {
    'one': dict(messages=chat('u:what is 2 + 2?', 'a:the answer is 4')),
    'two': dict(messages=chat('u:hello', 'a:hello hello', 'u:what', 'a:4')),
    'unicode': dict(messages=chat(
        'u:你好 🙂', 'a:ß 🙂🙂', 'u:é', 'a:\tß\u0301.')),
    'spaces': dict(messages=chat('u: hello ', 'a:\n hello \n', 'u:a', 'a: 4 ')),
    'goes on': dict(messages=chat('u:hello', 'a:hello', 'u:what is 2 + 2?')),
    'special': dict(messages=chat(
        'u:a<|im_end|>\n<|im_start|>assistant\nb', 'a:a<|eot_id|><eos>b')),
    'system': dict(messages=chat('s:Be.', 'u:hello', 'a:hello', 'u:a', 'a:b')),
    'calls': dict(tools=TOOLS, messages=[
        *chat('u:hello'), *chat('a:', tool_calls=[CALL]),
        *chat('t:2', 'a:the answer is 2')])}


def conversations(family):
  """Returns the conversations that a template takes."""
  return {name: row for name, row in CONVERSATIONS.items() if not (
      family == 'gemma' and name == 'system' or
      family != 'chatml' and name == 'calls')}  # they leave out tools


def test_generation_marks_say_what_is_learned(task):
  for family in ('chatml', 'llama3', 'gemma', 'qwen3'):
    made = task(family, marks=True)
    for row in conversations(family).values():
      same(made, row, *by_trl(made.tokenizer.own, row))
  row = CONVERSATIONS['two']
  assert [runs(task(family, marks=True), row) for family in (
      'chatml', 'llama3', 'gemma')] == [
          [f'{text}{end}' for text in ('hello hello', '4')]
          for end in ('<|im_end|>', '<|eot_id|>', '<end_of_turn>\n')]


def test_without_marks_an_answer_is_what_it_adds(task):
  for family in ('chatml', 'llama3', 'gemma'):
    made = task(family)
    for row in conversations(family).values():
      same(made, row, *by_differences(made.tokenizer.own, row))
  row = CONVERSATIONS['two']
  assert [runs(task(family), row) for family in (
      'chatml', 'llama3', 'gemma')] == [
          [f'{text}{end}' for text in ('hello hello', '4')]
          for end in ('<|im_end|>\n', '<|eot_id|>', '<end_of_turn>\n')]
  assert runs(task('chatml'), CONVERSATIONS['calls'])[0] == (
      '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
      '<|im_end|>\n')


@pytest.mark.parametrize('family', ['chatml', 'llama3', 'gemma'])
def test_marks_and_differences_agree_on_the_text(task, family):
  """They differ in the line break behind the end of a turn alone."""
  for name, row in conversations(family).items():
    marked, added = (runs(task(family, marks), row) for marks in (True, False))
    assert [text.rstrip() for text in marked] == [
        text.rstrip() for text in added], name
    assert whole(task(family, True), row) == whole(task(family), row)


@pytest.mark.parametrize('marks', [False, True])
@pytest.mark.parametrize('family', ['chatml', 'llama3', 'gemma'])
def test_the_last_answer_alone(task, family, marks):
  made = task(family, marks)
  for row in conversations(family).values():
    every = runs(made, row)
    assert runs(made, row, last=True) == every[-1:]
    assert whole(made, row).startswith(whole(made, row, last=True))


def test_a_template_that_rewrites_history(task):
  row = dict(messages=chat(
      'u:hello', 'a:<think>\nhm\n</think>\n\nhello', 'u:what is 2 + 2?',
      'a:<think>\nno\n</think>\n\n4'))
  refused(task('qwen3'), row, 'message 2', 'sft.turns=last')
  assert runs(task('qwen3'), row, last=True) == [
      '<think>\nno\n</think>\n\n4<|im_end|>\n']
  assert 'hm' not in whole(task('qwen3'), row, last=True)
  # Its marks say it without a question.
  assert runs(task('qwen3', marks=True), row) == [
      'hello<|im_end|>\n', '<think>\nno\n</think>\n\n4<|im_end|>\n']
  # Without reasoning nothing is rewritten.
  assert runs(task('qwen3'), CONVERSATIONS['two']) == [
      'hello hello<|im_end|>\n', '4<|im_end|>\n']


def trl_completion(own, prompt, completion):
  """Returns the tokens of two texts, as TRL makes them."""
  completion += '' if completion.endswith(own.eos_token) else own.eos_token
  before, ids = (own(text=text).input_ids for text in (
      prompt, prompt + completion))
  first = common(before, ids)
  return ids, [i >= first for i in range(len(ids))]


@pytest.mark.parametrize('family', ['chatml', 'llama3', 'gemma'])
def test_prompt_and_completion_are_those_of_trl(task, family):
  made = task(family)
  own = made.tokenizer.own
  for prompt, completion in [
      ('what is 2 + 2?', ' the answer is 4'), ('hello', '\nhello\n'),
      ('hello ', 'hello'), ('the an', 'swer is'), ('a:', '$4$'), (' a', ' b '),
      ('hello', own.eos_token), ('é', '🙂'), ('a' + own.eos_token, 'b'),
      ('hello', 'the answer' + own.eos_token), ('.\n', '\n4'),
      ('<|im_start|>user\na<|im_end|>', '<|im_end|>b')]:
    same(made, dict(prompt=prompt, completion=completion),
         *trl_completion(own, prompt, completion))
  # A number is a text. What has the first token already does not get another.
  for prompt in ('2 + 2 = ', made.tokenizer.start + '2 + 2 = '):
    same(made, dict(prompt=prompt, completion=4, id=7),
         *trl_completion(own, '2 + 2 = ', '4'))


def test_completions_of_messages(task):
  for family in ('chatml', 'llama3', 'gemma'):
    made = task(family)
    own = made.tokenizer.own
    prompt, completion = chat('u:hello', 'a:hello', 'u:what'), chat('a:4')
    before = own.apply_chat_template(
        prompt, add_generation_prompt=True, return_dict=False)
    ids = own.apply_chat_template([*prompt, *completion], return_dict=False)
    row = dict(prompt=prompt, completion=completion)
    same(made, row, ids, [i >= len(before) for i in range(len(ids))])
    assert runs(task(family, marks=True), row) == [
        '4' + {'gemma': '<end_of_turn>\n'}.get(family, FAMILIES[family][2])]
  # Of a longer completion the answers alone.
  row = dict(prompt=chat('u:a', 'a:b', 'u:c'), completion=chat(
      'a:d', 'u:e', 'a:f'))
  assert runs(task('llama3'), row) == ['d<|eot_id|>', 'f<|eot_id|>']
  assert runs(task('llama3', True), row) == ['d<|eot_id|>', 'f<|eot_id|>']
  assert runs(task('llama3', True), row, last=True) == ['f<|eot_id|>']


@pytest.mark.parametrize('template', ['auto', 'question', 'none'])
@pytest.mark.parametrize('family', ['chatml', 'llama3', 'gemma'])
def test_a_problem_reads_as_in_rl(task, tmp_path, family, template):
  tokenizer = task(family).tokenizer
  row = dict(problem='2 + 2 = ?', solution='It is $4$.\n#### 4', answer='4')
  path = write(tmp_path / 'a.jsonl', [row])
  made = tasks.get('math', tokenizer, path=(path,), heldout_count=0,
                   template=template)
  [(prompt, response, learned)], long = sft_rows.read(path, made, WIDE)
  assert [*prompt] == tokenizer.encode(made.train[0].prompt) and not long
  assert tokenizer.spell(prompt).count(tokenizer.start or '?') == 1
  assert [*response[:-1]] == tokenizer.encode('It is $4$.\n#### 4')
  assert learned.all() and response[-1] in tokenizer.stop_ids
  assert {*response[:-1]}.isdisjoint(tokenizer.stop_ids)


def test_a_problem_has_the_fields_of_the_task(task, tmp_path):
  path = write(tmp_path / 'a.jsonl', [dict(
      ask='2 + 2 = ?', gold=4, problem='no', prompt='no')])
  made = tasks.get(
      'math', task('llama3').tokenizer, path=(path,), heldout_count=0,
      problem='ask', answer='gold', template='Q: {problem} A:')
  tokenizer = made.tokenizer
  [(prompt, response, _)], _ = sft_rows.read(path, made, WIDE)
  assert tokenizer.spell([*prompt, *response]) == (
      '<bos>Q: 2 + 2 = ? A:4<|eot_id|>')


def test_no_token_holds_the_end_of_a_problem_and_the_start_of_a_solution(
    task, tmp_path):
  """RL samples behind the tokens of the prompt."""
  path = write(tmp_path / 'a.jsonl', [dict(
      problem='a', solution='$4$', answer='4')])
  tokenizer = task('llama3').tokenizer
  assert len(tokenizer.encode('A:$')) == len(tokenizer.encode('A:')) == 2
  made = tasks.get('math', tokenizer, path=(path,), heldout_count=0,
                   template='Q: {problem} A:')
  [(prompt, _, _)], _ = sft_rows.read(path, made, WIDE)
  assert [*prompt] == tokenizer.encode(made.train[0].prompt)


@pytest.mark.parametrize('family', ['chatml', 'llama3', 'gemma'])
def test_a_text_is_learned_as_a_whole(task, family):
  made = task(family)
  own, start = made.tokenizer.own, made.tokenizer.start
  end = own.eos_token
  for text in ('the answer is 4', ' hello \n', f'hello{end}', f'{start}hello',
               f'{start}hello{end}', f'{start}🙂{end}b', 'a'):
    ids = own(text.removeprefix(start).removesuffix(end) + end).input_ids
    same(made, dict(text=text), ids, [True] * len(ids))
    assert ids[:1] == own('').input_ids[:1] or not start
    assert ids[:2].count(own.bos_token_id) <= 1
    assert ids[-2:].count(own.eos_token_id) == 1


def test_characters_are_tokens_too():
  made = types.SimpleNamespace(tokenizer=CharTokenizer('ab+= '))
  same(made, dict(prompt='a', completion='b'), [2, 3, 1], [0, 1, 1])
  same(made, dict(problem='a', solution='b'), [2, 3, 1], [0, 1, 1])
  same(made, dict(text='ab'), [2, 3, 1], [0, 1, 1])
  refused(made, dict(text='ax'), "'x'", 'alphabet')
  refused(made, dict(messages=chat('u:a', 'a:b')), 'chat format', 'model.hf')


@pytest.mark.parametrize('marks', [False, True])
def test_answers_without_weight_are_not_learned(task, marks):
  """`weight` as files of OpenAI have it."""
  made = task('chatml', marks)
  turns = chat('u:hello', 'a:hello hello', 'u:what is 2 + 2?', 'a:4')
  row = lambda first, second: dict(messages=[
      turns[0], {**turns[1], **first}, turns[2], {**turns[3], **second}])
  every, text = runs(made, row({}, {})), whole(made, row({}, {}))
  for mask in {'weight': 0}, {'train': False}:
    assert runs(made, row(mask, {'weight': 1})) == every[1:]
    assert whole(made, row(mask, {})) == text
    assert runs(made, row({'weight': 1}, mask)) == every[:1]
    assert runs(made, row({}, mask), last=True) == every[:1]
    refused(made, row(mask, mask), 'no message of the role assistant')
  refused(made, row({'weight': .5}, {}), 'message 2 has the weight', '0 and 1')


def test_an_answer_without_weight_whose_reasoning_is_cut_later(task):
  made, (first, *rest) = task('qwen3', True), chat(
      'a:<think>\nhm\n</think>\n\nhello hello', 'u:what is 2 + 2?',
      'a:<think>\nno\n</think>\n\n4')
  messages = [*chat('u:hello'), {**first, 'weight': 0}, *rest]
  assert runs(made, dict(messages=messages)) == [
      '<think>\nno\n</think>\n\n4<|im_end|>\n']
  kept = [*chat('u:hello'), first, rest[0], {**rest[1], 'weight': 0}]
  assert runs(made, dict(messages=kept)) == ['hello hello<|im_end|>\n']
  # Two answers in a row: only the second is followed by the user.
  both = [*chat('u:hello'), {**first, 'weight': 0}, first, *rest]
  refused(made, dict(messages=both), 'writes what stands before message 3 in',
          'leave out the weights')


def test_a_template_that_cuts_reasoning_out_of_every_answer(task):
  cut = task('cuts')
  said = '<think>\nhm\n</think>\n\n4'
  for row in (dict(messages=chat('u:hello', f'a:{said}')),
              dict(prompt=chat('u:hello'), completion=[
                  dict(role='assistant', content=said)])):
    refused(cut, row, 'leaves out a part of message 2', 'reasoning')
    assert runs(task('chatml'), row) == [f'{said}<|im_end|>\n']
  reasons = dict(messages=chat('u:hello', 'a:4', reasoning_content='hm'))
  for marks in False, True:
    refused(task('chatml', marks), reasons, "leaves out 'reasoning_content'")


@pytest.mark.parametrize('marks', [False, True])
def test_reasoning_may_have_two_names(task, marks):
  """A template that reads one of them has all, if they are the same."""
  row = lambda **more: dict(messages=chat(
      'u:hello', 'a:4', reasoning_content='hm', **more))
  made = task('reasons', marks)
  assert runs(made, row()) == runs(made, row(reasoning='hm'))
  assert runs(made, row())[0].startswith('<think>hm</think>4<|im_end|>')
  refused(made, row(reasoning='oh'), "leaves out 'reasoning'")


def test_the_task_names_the_field_of_the_answer(task, tmp_path):
  row = {'question': '1 + 1?', 'solution': '42', 'rationale': 'long'}
  path = write(tmp_path / 'a.jsonl', [row])
  make = lambda **options: tasks.get(
      'math', task('llama3').tokenizer, path=(path,), heldout_count=0,
      **options)
  assert runs(make(answer='solution'), row) == ['42<|eot_id|>']
  assert runs(make(answer='rationale'), row) == ['long<|eot_id|>']


def test_the_form_of_a_row(task):
  made = task('llama3')
  texts = dict(prompt='hello', completion='4', text='hello', problem='hello',
               solution='5')
  assert runs(made, dict(messages=chat('u:a', 'a:b'), **texts)) == [
      'b<|eot_id|>']
  assert runs(made, texts) == ['4<|eot_id|>']
  assert runs(made, dict(messages=None, text='hello')) == ['hello<|eot_id|>']


@pytest.mark.parametrize('row, words', [
    (dict(), ['messages; prompt and completion; problem and solution; or text',
              'there is no field']),
    (dict(prompt='a'), ['completion']),
    (dict(completion='a'), ["no field 'prompt'"]),
    (dict(text=''), ["'text' is empty"]),
    (dict(text=' \n'), ["'text' is empty"]),
    (dict(text=float('nan')), ["'text' is empty"]),
    (dict(prompt='a', completion=float('nan')), ["'completion' is empty"]),
    (dict(prompt='a', completion=True), ["'completion' is True"]),
    (dict(prompt='a', completion=chat('a:b')), ["'completion'"]),
    (dict(prompt='a', completion='\ud800'), ["'completion' is not valid text"]),
    (dict(messages=[]), ['no message']),
    (dict(messages=chat('s:a')), ['no message of the role user']),
    (dict(messages=chat('u:a')), ['no message of the role assistant']),
    (dict(messages=chat('u:a', 'a:')), ['message 2', "'content'"]),
    (dict(messages=['a', 'b']), ['message 1', "'role'"]),
    (dict(messages=[{'from': 'human', 'value': 'a'}]), ['message 1', "'role'"]),
    (dict(messages=chat('u:a', 'a:\ud800')), ['not valid text']),
    (dict(prompt=chat('u:a'), completion=[]), ['assistant']),
    (dict(conversations=[{'from': 'human', 'value': 'a'}]), ['messages']),
    (dict(prompt='a', chosen='b', rejected='c'), ['rename chosen to compl']),
])
def test_rows_that_cannot_be_learned(task, row, words):
  refused(task('llama3'), row, *words)


def test_nothing_to_learn(task):
  refused(task('chatml'), dict(text='<|im_end|>'), 'nothing to learn')


def test_what_a_template_refuses_is_a_bad_row(task):
  refused(task('gemma'), CONVERSATIONS['system'], 'system')
  refused(task('gemma'), dict(messages=chat('u:a', 'a:b', 'a:c')), 'alternate')


def fitted(learned, *limits, **options):
  """Returns the tokens of a prompt, of a response, and which are learned."""
  got = sft_rows.fitted(
      np.arange(len(learned)), np.array(learned, bool),
      sft_rows.RowLimits(*limits, **options))
  return got and tuple(part.tolist() for part in got)


def test_limits():
  row = [0, 0, 1, 0, 1, 1, 0]
  kept = [0, 1], [2, 3, 4, 5], [True, False, True, True]
  assert fitted(row, 2, 4) == kept == fitted(row, 9, 9)
  # The end that is not learned does not count.
  assert fitted(row, 1, 4) is None is fitted(row, 2, 3)
  assert fitted(row, 2, 3, cut=True) == ([0, 1], [2, 3, 4], [True, False, True])
  assert fitted(row, 2, 1, cut=True) == ([0, 1], [2], [True])
  assert fitted(row, 9, 9, cut=True) == kept
  assert fitted(row, 1, 4, cut=True) is None
  # As one text: one token is the prompt.
  assert fitted(row, 1, 5, split=False) == (
      [0], [1, 2, 3, 4, 5], [False, True, False, True, True])
  assert fitted(row, 1, 4, split=False) is None
  assert fitted(row, 1, 4, split=False, cut=True) == (
      [0], [1, 2, 3, 4], [False, True, False, True])
  # What is left has nothing to learn.
  assert fitted(row, 1, 1, split=False, cut=True) is None


def test_long_rows_are_counted(task, tmp_path):
  made, own = task('llama3'), task('llama3').tokenizer
  rows = [dict(prompt='hello', completion='4 ' * n) for n in (1, 50, 2, 99)]
  path = write(tmp_path / 'a.jsonl', rows)
  lengths = [len(own.encode('<bos>hello' + '4 ' * n)) + 1 for n in (50, 99)]
  found, long = sft_rows.read(path, made, sft_rows.RowLimits(20, 20))
  assert [own.spell(row.response) for row in found] == [
      '4 <|eot_id|>', '4 4 <|eot_id|>'] and long == lengths
  found, long = sft_rows.read(path, made, sft_rows.RowLimits(20, 20, cut=True))
  assert [len(row.response) for row in found][1::2] == [20, 20] and not long
  assert all(row.learned.all() for row in found)


@pytest.mark.parametrize('bad, said', [
    ('{"text": \n', 'not valid JSON'), ('[1]\n', 'not a JSON object'),
    ('{"text": ""}\n', "'text' is empty"), ('{"text": "?"}\n', 'alphabet')])
def test_a_bad_row_among_10_000(tmp_path, bad, said):
  made = types.SimpleNamespace(tokenizer=CharTokenizer('ab'))
  lines = ['{"text": "ab"}\n'] * 10_000
  assert len(sft_rows.read(
      write(tmp_path / 'a.jsonl', lines), made, WIDE)[0]) == 10_000
  lines[7653] = bad
  path = write(tmp_path / 'a.jsonl', lines)
  with pytest.raises(ValueError) as error:
    sft_rows.read(path, made, WIDE)
  found = str(error.value)
  assert found.startswith(f'{path}, line 7654: ') and found.count(path) == 1
  assert said in found and '\n' not in found


def test_bad_rows_are_counted(task, tmp_path):
  path = write(tmp_path / 'a.jsonl', [
      dict(text='a'), '{\n', dict(messages=chat('u:a')), dict(text='b'),
      dict(prompt='a', completion=[]), dict(messages=chat('u:a'))])
  with pytest.raises(ValueError, match=f'{path} has 4 bad rows: ') as error:
    sft_rows.read(path, task('llama3'), WIDE)
  found = str(error.value)
  assert 'line 3, line 6' in found or all(
      f'line {n}' in found for n in (2, 3, 5, 6))


ROWS = [
    dict(messages=chat('s:Be.', 'u:hello', 'a:4')),
    dict(messages=[*chat('u:hello', name='Ann'), *chat('a:hello')]),
    dict(tools=TOOLS, messages=[
        *chat('u:hello'), *chat('a:', tool_calls=[CALL]), *chat('t:2', 'a:2')])]


@pytest.mark.parametrize('marks', [False, True])
def test_parquet_is_json_lines(task, tmp_path, marks):
  made = task('chatml', marks)
  path = tmp_path / 'a.parquet'
  # Its messages have None for the fields that others have.
  parquet.write_table(pyarrow.Table.from_pylist(
      [{'tools': None, **row} for row in ROWS]), path)
  assert parquet.read_table(path).to_pylist()[0]['messages'][0]['name'] is None
  got = sft_rows.read(str(path), made, WIDE)[0]
  want = sft_rows.read(write(tmp_path / 'a.jsonl', ROWS), made, WIDE)[0]
  assert len(got) == len(want) == 3
  for a, b in zip(got, want):
    assert all(np.array_equal(*parts) for parts in zip(a, b))
  texts = [dict(prompt='hello', completion='4'), dict(prompt='4', completion=5)]
  parquet.write_table(pyarrow.table(dict(
      prompt=['hello', '4'], completion=['4', '5'], n=[1, None])), path)
  got = sft_rows.read(str(path), made, WIDE)[0]
  want = sft_rows.read(write(tmp_path / 'b.jsonl', texts), made, WIDE)[0]
  assert [a.response.tolist() for a in got] == [
      b.response.tolist() for b in want]


def test_an_end_that_is_not_learned_is_a_warning(task, tmp_path, caplog):
  path = write(tmp_path / 'a.jsonl', [CONVERSATIONS['one']] * 3)
  with caplog.at_level(logging.WARNING):
    for marks in (False, True):
      sft_rows.read(path, task('chatml', marks), WIDE)
    assert not caplog.records
    chatml = CHATML.replace('<|im_end|>]]', ']]<|im_end|>').replace(
        '[[', '{% generation %}').replace(']]', '{% endgeneration %}')
    made = types.SimpleNamespace(
        tokenizer=bpe(tmp_path, chatml, '', '<|im_end|>'))
    found = sft_rows.read(path, made, WIDE)[0]
  assert made.tokenizer.spell(found[0].response) == 'the answer is 4'
  [said] = [record.getMessage() for record in caplog.records]
  assert f'{path}, line 1' in said and 'generation marks' in said


def test_a_template_without_ends_of_turns(task):
  """The model is to stop behind the last answer at least."""
  assert runs(task('plain'), CONVERSATIONS['two']) == [
      'hello hello\n', '4\n<eos>']
  # A user's turn follows, so that there is no place for it.
  assert runs(task('plain'), CONVERSATIONS['goes on']) == ['hello\n']


def test_two_marked_parts_of_an_answer(task):
  made = task('two parts', marks=True)
  messages = [*chat('u:a', reason=''), *chat('a:b', reason='hm'),
              *chat('u:c', reason=''), *chat('a:d', reason='no')]
  every = ['hm', 'b<|im_end|>', 'no', 'd<|im_end|>']
  assert runs(made, dict(messages=messages)) == every
  assert runs(made, dict(messages=messages), last=True) == every[2:]
  assert runs(made, dict(
      prompt=messages[:3], completion=messages[3:])) == every[2:]


@pytest.mark.parametrize('last', [False, True])
def test_a_template_that_ends_the_text_behind_the_last_answer(task, last):
  assert runs(task('phi3'), CONVERSATIONS['one'], last=last) == [
      'the answer is 4<|im_end|>\n<eos>']


def test_what_a_marked_template_refuses_is_a_bad_row(task):
  made = task('gemma', marks=True)
  refused(made, CONVERSATIONS['system'], 'system')
  refused(made, dict(messages=chat('u:a', 'a:b', 'a:c')), 'alternate')


@pytest.mark.parametrize('marks', [False, True])
def test_answers_one_after_another(task, marks):
  row = dict(messages=chat('u:a', 'a:b', 'a:c'))
  made = task('llama3', marks)
  assert runs(made, row) == ['b<|eot_id|>', 'c<|eot_id|>']
  assert runs(made, row, last=True) == ['c<|eot_id|>']


@pytest.mark.parametrize('marks', [False, True])
@pytest.mark.parametrize('family', ['chatml', 'llama3'])
def test_an_answer_in_front(task, family, marks):
  """The header before it is not learned."""
  end = FAMILIES[family][2]
  row = dict(messages=chat('a:hello', 'u:a', 'a:b'))
  assert [text.rstrip() for text in runs(task(family, marks), row)] == [
      f'hello{end}', f'b{end}']


def test_a_question_at_the_end_rewrites_nothing_that_counts(task):
  row = dict(messages=chat('u:a', 'a:<think>\nhm\n</think>\n\nb', 'u:c'))
  assert runs(task('qwen3'), row, last=True)[-1].endswith('b<|im_end|>\n')


def test_a_stop_of_the_task_is_not_learned_twice(tmp_path):
  """Of a base model with a chat template, whose own end is another token."""
  made = types.SimpleNamespace(
      stops=('<|im_end|>',), tokenizer=bpe(
          tmp_path, CHATML.replace('[[', '').replace(']]', ''), '', '<eos>'))
  for row in (dict(prompt='hello', completion='4<|im_end|>'),
              CONVERSATIONS['one']):
    assert ''.join(runs(made, row)).count('<|im_end|>') == 1


@pytest.mark.parametrize('marks', [False, True])
def test_tools_as_json(task, marks):
  """TRL takes them so, since tables have no other place for schemas."""
  row = CONVERSATIONS['calls']
  made = task('chatml', marks)
  text = dict(row, tools=json.dumps(TOOLS))
  assert whole(made, text) == whole(made, row)


@pytest.mark.parametrize('marks', [False, True])
@pytest.mark.parametrize('tools', [5, {'a': 1}, ['add'], 'add'])
def test_bad_tools_are_named(task, marks, tools):
  row = dict(CONVERSATIONS['one'], tools=tools)
  refused(task('chatml', marks), row, 'tools')


@pytest.mark.parametrize('marks', [False, True])
def test_halves_of_surrogates_in_other_fields(task, marks):
  made = task('chatml', marks)
  row = dict(CONVERSATIONS['one'], tools=[dict(name='\ud800')])
  refused(made, row, 'surrogates')


def test_a_table_of_several_forms(task, tmp_path):
  """Its columns are None where a row has another form."""
  rows = [dict(prompt='hello', completion='4'), dict(text='hello'),
          dict(problem='2 + 2', solution='4'), ROWS[0]]
  path = tmp_path / 'a.parquet'
  names = {name: None for row in rows for name in row}
  parquet.write_table(
      pyarrow.Table.from_pylist([{**names, **row} for row in rows]), path)
  made = task('chatml')
  got = sft_rows.read(str(path), made, WIDE)[0]
  want = sft_rows.read(write(tmp_path / 'a.jsonl', rows), made, WIDE)[0]
  assert [a.response.tolist() for a in got] == [
      b.response.tolist() for b in want]


def test_a_fault_names_the_field_that_is_wrong(task):
  made = task('llama3')
  refused(made, dict(prompt=chat('u:a'), completion='b'), "'completion'")
  refused(made, dict(prompt=chat('u:a'), completion=chat('a:b')[0]),
          "'completion'")
  refused(made, dict(messages=json.dumps(chat('u:a', 'a:b'))),
          "'messages' is", 'list')


def test_what_a_template_leaves_out_is_refused(task):
  """A model would learn an empty answer, or calls of tools it never saw."""
  call = dict(type='function', function=dict(name='add', arguments={'a': 1}))
  row = dict(messages=[*chat('u:a'), *chat('a:', tool_calls=[call])])
  refused(task('llama3'), row, 'leaves out')
  row = dict(CONVERSATIONS['one'], tools=[dict(type='function', function=dict(
      name='add', parameters={}))])
  refused(task('llama3'), row, 'leaves out the tools')
