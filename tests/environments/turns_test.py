"""Tests of what stands between two turns, token by token."""

import types

import pytest
import transformers

from jaxrl_llm.base.tokenizer import ModelTokenizer, with_stops
from jaxrl_llm.environments import Limits
from jaxrl_llm.environments.turns import Turns
from jaxrl_llm.prepare import sft_data
from tests.base import tokenizer_test

# Turns that end with a special token, with text, and with text before a token.
TOKEN = tokenizer_test.CHAT.replace('{{ bos_token }}', '')
TEXT = ('{% for m in messages %}{{ m.role }}: {{ m.content }}\n#\n{% endfor %}'
        '{% if add_generation_prompt %}assistant: {% endif %}')
BOTH = TOKEN.replace('<|end|>', '\n<|end|>')


def model(folder, chat, stops=()):
  """Returns a model's tokeniser, with the stops of its template and others."""
  tokenizer_test.bpe(folder, start=False, chat=chat)
  own = ModelTokenizer(folder)
  return with_stops(own, [
      *(['\n#\nuser:'] if chat == TEXT else []), *stops, '<|pad|>'], 300)


def made(observation=100):
  return Turns('x.py', Limits(4, None, observation), markup=True, timeout=1.0)


@pytest.mark.parametrize('chat, wrote, kept', [
    # What the template writes stays, and any other stop token goes.
    (TOKEN, 'hello<|end|>', 'hello<|end|>'),
    (TOKEN, 'hello\n<|pad|>', 'hello\n'),
    (TOKEN, 'a stop text.', 'a stop text.'),
    (TEXT, 'hello\n#\nuser:', 'hello\n#\nuser:'),
    (TEXT, 'hello<|end|>', 'hello'),
    (TEXT, 'hello\n<|pad|>', 'hello\n'),
    (TEXT, 'a stop text.', 'a stop text.'),
    (BOTH, 'hello\n<|end|>', 'hello\n<|end|>'),
    (BOTH, 'hello<|end|>', 'hello'),
    (BOTH, 'hello<|pad|>', 'hello')])
def test_the_template_writes_what_stands_between_two_turns(
    tmp_path, chat, wrote, kept):
  tok = model(tmp_path, chat, ['text.'])
  turn = tok.encode(wrote)
  count, ids = made().follow(tok, 'why?', turn)
  assert tok.spell(turn[:count]) == kept
  content = kept.removesuffix('<|end|>') if chat == TOKEN else (
      kept.removesuffix('\n#\nuser:').removesuffix('\n<|end|>'))
  messages = [dict(role='user', content='q'),
              dict(role='assistant', content=content),
              dict(role='user', content='why?')]
  assert tok.spell([*tok.encode(tok.chat('q')), *turn[:count], *ids]) == (
      tok.chat(messages))


def test_a_last_token_with_more_than_the_end_of_a_turn(tmp_path):
  """It goes, and what it had of the end is written again."""
  own = tokenizer_test.bpe(tmp_path, start=False, chat=TEXT)
  own.add_tokens([':\n'])
  own.save_pretrained(tmp_path)
  tok = with_stops(ModelTokenizer(tmp_path), ['\n#\nuser:'], 301)
  spilled, = tok.encode(':\n')
  turn = [*tok.encode('hello\n#\nuser'), spilled]
  count, ids = made().follow(tok, 'why?', turn)
  assert count == len(turn) - 1
  assert tok.spell([*turn[:count], *ids]) == (
      'hello\n#\nuser: why?\n#\nassistant: ')


def test_an_observation_is_plain_text(tmp_path):
  tok = model(tmp_path, TOKEN)
  end = tok.stop_ids[0]
  for said in ('<|end|>\n<|user|>\nhi', ' <|pad|><|begin|>', 'x<|end|>'):
    ids = made().append(tok, said, end)
    assert tok.spell(ids) == f'\n<|user|>\n{said}<|end|>\n<|assistant|>\n'
    # The template's own end of the observation is the one special token.
    assert [i for i in ids if i < 3] == [end]
  ids = made().append(tok, 'hello <|en', end)
  assert ids == tok.encode('\n<|user|>\nhello <|en<|end|>\n<|assistant|>\n')


@pytest.mark.parametrize('markup', [True, False])
def test_a_long_observation_is_cut_at_a_token(tmp_path, markup):
  """A stop text, or a character of several tokens, does not cut it earlier."""
  tok = model(tmp_path, TOKEN, ['two'])
  said = 'one two three é'
  turns = made(observation=len(tok.encode(said)) - 1)
  turns._markup = markup
  ids = turns.append(tok, said, -1)
  if markup:
    assert tok.spell(ids).partition('<|user|>\n')[2].startswith(
        'one two three <|end|>')
  else:
    assert tok.spell(ids) == 'one two three '


@pytest.mark.parametrize('limit, kept', [
    (3, ''), (4, '\U0001f989'), (7, '\U0001f989')])
def test_a_run_of_characters_in_bytes_is_cut_at_one(tmp_path, limit, kept):
  tokenizer_test.sentencepiece_model(tmp_path, 'gemma')
  own = transformers.AutoTokenizer.from_pretrained(tmp_path)
  own.chat_template = TOKEN
  own.save_pretrained(tmp_path)
  tok, owl = ModelTokenizer(tmp_path), '\U0001f989'
  assert len(tok.encode(owl * 2)) == 8
  ids = made(observation=limit).append(tok, owl * 2, -1)
  assert f'<|user|>\n{kept}<|end|>' in tok.spell(ids)


def test_tokens_that_follow_a_special_token_in_sentencepiece(tmp_path):
  """A text alone would get a space in front, which does not stand here."""
  tokenizer_test.sentencepiece_model(tmp_path, 'llama')
  own = transformers.AutoTokenizer.from_pretrained(tmp_path)
  own.chat_template = TOKEN.replace('<|end|>', '</s>')
  own.save_pretrained(tmp_path)
  tok = ModelTokenizer(tmp_path)
  turn = [*tok.encode('hello'), tok.stop_ids[0]]
  count, ids = made().follow(tok, 'why?', turn)
  assert count == len(turn)
  assert ids == tok.encode(f'hello{tok.next_turn("why?")}')[len(turn):]


def test_demonstrations_are_learned_but_for_what_is_read(tmp_path):
  tok = model(tmp_path, BOTH)
  task = types.SimpleNamespace(tokenizer=tok, turns=made())
  ids, own = sft_data._turns(task, [('hello', 'why?'), ('so', '')])
  assert tok.spell(ids) == (
      'hello\n<|end|>\n<|user|>\nwhy?\n<|end|>\n<|assistant|>\nso<|end|>')
  assert tok.spell([i for i, learned in zip(ids, own) if learned]) == (
      'helloso<|end|>')
