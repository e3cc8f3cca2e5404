"""Tests of the tokenisers: text to ids and back."""

import json
import os
import pathlib
import types

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
import transformers

from jaxrl_llm.base import tokenizer as tokenizer_lib
from jaxrl_llm.base.tokenizer import (
  characters,
  CharTokenizer,
  ModelTokenizer,
  with_stops,
)


def test_round_trip_and_ids():
  tok = CharTokenizer('ab+')
  assert tok.vocab_size == 5  # pad, stop and three characters.
  assert tok.encode('b+a') == [3, 4, 2]
  assert tok.decode([3, 4, 2]) == 'b+a'
  assert tok.encode('') == [] and tok.decode([]) == ''
  assert tok.pad_id == 0 and tok.stop_ids == (1,)


def test_stop_is_left_out_only_at_the_end():
  tok = CharTokenizer('ab')
  assert tok.decode([2, 3, 1]) == 'ab'
  assert tok.decode([1]) == ''
  assert tok.decode([2, 1, 3]) == 'a<1>b'
  assert tok.decode([2, 1, 1]) == 'a<1>'


def test_ids_without_a_character_are_seen():
  tok = CharTokenizer('ab')
  assert tok.decode([2, 0, 3]) == 'a<0>b'
  assert tok.decode([0]) == '<0>'
  assert tok.decode([9, -1]) == '<9><-1>'


def test_unknown_character_is_named():
  with pytest.raises(ValueError, match="'x' of 'axb'"):
    CharTokenizer('ab').encode('axb')


def test_alphabet_must_be_distinct():
  with pytest.raises(ValueError, match=r"\['a'\] more than once"):
    CharTokenizer('aba')


# What tokenisers are trained on here, and what they must spell again.
TEXTS = ['Question: what is 1+1? The answer is \\boxed{2}.',
         'hello world, hello again 0123456789', 'x^2+2x+1 = (x+1)^2'] * 20
SPELL = ['', 'hello world', 'x  y\n\n\t 3', '\\boxed{\\frac{1}{2}}', 'a , b .',
         '🙂 é ß \u4e2d', 'don \'t , do n\'t !', '\0']
CHAT = ('{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n'
        '{{ m.content }}<|end|>\n{% endfor %}'
        '{% if add_generation_prompt %}<|assistant|>\n{% endif %}')


def bpe(folder, *, start=True, chat=CHAT, **special):
  """Makes a byte-level BPE as in Qwen and Llama 3; ids 0 to 2 are special."""
  own = tokenizers.Tokenizer(models.BPE())
  own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  own.decoder = decoders.ByteLevel()
  own.train_from_iterator(TEXTS, trainers.BpeTrainer(
      vocab_size=300, special_tokens=['<|begin|>', '<|end|>', '<|pad|>'],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False))
  if start:
    own.post_processor = processors.TemplateProcessing(
        single='<|begin|> $A', special_tokens=[('<|begin|>', 0)])
  theirs = transformers.PreTrainedTokenizerFast(
      tokenizer_object=own, **{
          'bos_token': '<|begin|>', 'eos_token': '<|end|>', **special})
  theirs.chat_template = chat
  theirs.save_pretrained(folder)
  return theirs


def sentencepiece_model(folder, kind):
  """Makes a tokenizer.model and the config that transformers reads it with."""
  pieces = {
      'llama': dict(unk_id=0, bos_id=1, eos_id=2, add_dummy_prefix=True),
      'gemma': dict(
          pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece='<bos>',
          eos_piece='<eos>', pad_piece='<pad>', add_dummy_prefix=False,
          user_defined_symbols=['<mask>'])}[kind]
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(TEXTS), model_prefix=str(folder / 'tokenizer'),
      model_type='bpe', vocab_size=330, byte_fallback=True, minloglevel=3,
      hard_vocab_limit=False, remove_extra_whitespaces=False,
      normalization_rule_name='identity', **pieces)
  names = {'llama': ('LlamaTokenizer', '<s>', '</s>', None),
           'gemma': ('GemmaTokenizer', '<bos>', '<eos>', '<pad>')}[kind]
  (folder / 'tokenizer_config.json').write_text(json.dumps(dict(zip(
      ('tokenizer_class', 'bos_token', 'eos_token', 'pad_token'), names)) | {
          'add_bos_token': True, 'add_eos_token': False}))
  return sentencepiece.SentencePieceProcessor(
      model_file=str(folder / 'tokenizer.model'))


@pytest.fixture
def model(tmp_path):
  theirs = bpe(tmp_path)
  return ModelTokenizer(tmp_path), theirs


def test_a_model_tokeniser_is_that_of_transformers(model):
  tok, theirs = model
  for text in SPELL + TEXTS[:3]:
    ids = tok.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert all(type(i) is int and 3 <= i < tok.vocab_size for i in ids)
    assert tok.decode(ids) == text
  assert tok.vocab_size == len(theirs) and max(tok.encode(' ')) < 300


@pytest.mark.parametrize('kind', ['llama', 'gemma'])
def test_a_sentencepiece_model(tmp_path, kind):
  theirs = sentencepiece_model(tmp_path, kind)
  tok = ModelTokenizer(tmp_path)
  assert tok.vocab_size == theirs.vocab_size()
  assert tok.stop_ids == (theirs.eos_id(),) and tok.pad_id == {
      'llama': 2, 'gemma': 0}[kind]
  assert tok.start == {'llama': '<s>', 'gemma': '<bos>'}[kind]
  for text in SPELL + TEXTS[:3]:
    ids = tok.encode(text)
    assert ids == theirs.encode(text) and tok.decode(ids) == text
  assert tok.encode(tok.start + 'x')[0] == theirs.bos_id()
  assert tok.encode(tok.start + 'x').count(theirs.bos_id()) == 1


@pytest.mark.parametrize('kind', ['bpe', 'llama', 'gemma'])
def test_characters_of_tokens(tmp_path, kind):
  """Any first tokens have written what they decode to, but for open bytes."""
  if kind == 'bpe':
    bpe(tmp_path)
  else:
    sentencepiece_model(tmp_path, kind)
  tok = ModelTokenizer(tmp_path)
  for text in [*SPELL[1:], ' x', *TEXTS[:3]]:
    ids = tok.encode(text)
    text = tok.decode(ids)
    got = characters(tok, [*ids, tok.stop_ids[0]], text, 400)
    assert sum(got) == len(text) and got[-1] == 0
    for end in range(1, len(ids)):
      part = tok.decode(ids[:end])
      if '\ufffd' not in part:
        assert sum(got[:end]) == len(part)
    # The values of a long response end before it does.
    assert characters(tok, ids[:1], text, 400) == got[:1]
  # A text that stops inside of a token, and one that is another.
  ids = tok.encode('hello world')
  assert sum(characters(tok, ids, 'hello wor', 400)) == 9
  assert characters(tok, ids, 'hallo world', 400) is None


def test_characters_of_other_tokenisers():
  tok = CharTokenizer('ab')
  assert characters(tok, [2, 3, 5, 1], 'ab<5>', 8) == [1, 1, 3, 0]
  assert characters(tok, [], '', 8) == []
  assert characters(object(), [2], 'a', 8) is None


def test_texts_start_as_the_model_expects(model, tmp_path):
  tok, theirs = model
  assert tok.start == '<|begin|>'
  for text in ('', 'hello', ' hello'):
    assert tok.encode(tok.start + text) == theirs.encode(text)
    assert tok.encode(tok.start + text).count(0) == 1
  bpe(tmp_path / 'bare', start=False)
  assert ModelTokenizer(tmp_path / 'bare').start == ''


def test_an_end_that_is_added_is_no_start(tmp_path):
  bpe(tmp_path)
  own = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
  own.post_processor = processors.TemplateProcessing(
      single='<|begin|> $A <|end|>',
      special_tokens=[('<|begin|>', 0), ('<|end|>', 1)])
  own.save(str(tmp_path / 'tokenizer.json'))
  assert ModelTokenizer(tmp_path).start == '<|begin|>'


def test_chats_are_those_of_transformers(model):
  tok, theirs = model
  text = tok.chat('1+1?')
  assert text == '<|begin|><|user|>\n1+1?<|end|>\n<|assistant|>\n'
  assert tok.encode(text) == theirs.apply_chat_template(
      [{'role': 'user', 'content': '1+1?'}], add_generation_prompt=True,
      return_dict=False)
  assert tok.encode(text).count(0) == 1


def test_chats_of_messages(model):
  tok, theirs = model
  system = dict(role='system', content='Be brief. ')
  user, said = dict(role='user', content='1+1?'), dict(
      role='assistant', content='It')
  assert tok.chat([user]) == tok.chat('1+1?')
  assert tok.chat([system, user]) == theirs.apply_chat_template(
      [system, user], add_generation_prompt=True, tokenize=False)
  # An answer that has begun goes on.
  assert tok.chat([user, said]) == (
      '<|begin|><|user|>\n1+1?<|end|>\n<|assistant|>\nIt')


@pytest.mark.parametrize('chat, reason', [
    ("{% if messages[0].role == 'system' %}{{ raise_exception('System role not "
     "supported') }}{% endif %}" + CHAT, 'TemplateError: System role not supp'),
    (CHAT.replace('{{ m.content }}', '{{ m.content if m.role == "user" }}'),
     'it leaves it out')])
def test_a_chat_format_that_takes_no_system_message(tmp_path, chat, reason):
  bpe(tmp_path, chat=chat)
  user = dict(role='user', content='1+1?')
  tok = ModelTokenizer(tmp_path)
  assert tok.chat([user])
  with pytest.raises(ValueError, match=reason) as error:
    tok.chat([dict(role='system', content='Be brief.'), user])
  said = str(error.value)
  assert said.startswith(
      f'The chat template of {tmp_path} takes no system message (')
  assert said.endswith("put the message's text into task.template, or into the "
                       'first message of the user.') and '\n' not in said


def test_a_chat_format_without_the_text_of_the_user(tmp_path):
  bpe(tmp_path, chat=CHAT.replace('{{ m.content }}', '{{ m.text }}'))
  with pytest.raises(ValueError, match='leaves out the text of the user: corr'):
    ModelTokenizer(tmp_path).chat('1+1?')
  # To change it is no fault.
  bpe(tmp_path, chat=CHAT.replace(
      'm.content }}', "m.content.replace('/no_think', '') }}"))
  assert '1+1?' in ModelTokenizer(tmp_path).chat('1+1? /no_think')


def test_a_model_without_chats_says_so(tmp_path):
  bpe(tmp_path, chat=None)
  with pytest.raises(ValueError, match='no format for chats: set config.task'):
    ModelTokenizer(tmp_path).chat('1+1?')


def test_a_stop_of_a_model_is_left_out_at_the_end(model):
  tok, _ = model
  ids = tok.encode('hello')
  assert tok.decode([*ids, 1]) == 'hello' and tok.decode([1]) == ''
  assert tok.decode(np.array([*ids, 1], np.int32)) == 'hello'
  # What is not at the end, or comes twice, is seen.
  assert tok.decode([*ids, 1, *ids]) == 'hello<|end|>hello'
  assert tok.decode([*ids, 1, 1]) == 'hello<|end|>'
  assert tok.decode([*ids, 0, 2]) == 'hello<|begin|><|pad|>'


def test_ids_beyond_the_vocabulary_are_passed_over(tmp_path, monkeypatch):
  bpe(tmp_path)
  tok = ModelTokenizer(tmp_path)
  a, b = tok.encode('hello'), tok.encode(' world')
  for beyond in (tok.vocab_size, 151_935, 2**31 - 1):
    assert tok.decode([beyond, *a, beyond, beyond, *b, beyond]) == 'hello world'
    assert tok.decode([*a, beyond, 1]) == 'hello'
    assert tok.decode([*a, 1, beyond]) == 'hello<|end|>'
  # Not every tokeniser would.
  monkeypatch.setattr(
      tok, 'own', types.SimpleNamespace(
          decode=lambda ids, **_: ''.join('abc'[i] for i in ids)))
  monkeypatch.setattr(tok, 'vocab_size', 3)
  assert tok.decode([2, 3, 0, 700]) == 'ca'


@pytest.mark.parametrize('eos, generation, config, want', [
    ('<|end|>', None, None, (1,)),
    ('<|end|>', 2, None, (1, 2)),
    ('<|end|>', [2, 1, 5], 7, (1, 2, 5, 7)),
    ('<|end|>', [1], [1], (1,)),
    (None, [5, 2], None, (5, 2)),
    (None, None, 0, (0,)),
])
def test_stop_ids(tmp_path, eos, generation, config, want):
  """The tokeniser's first, since it ends demonstrations."""
  bpe(tmp_path, eos_token=eos)
  (tmp_path / 'generation_config.json').write_text(
      json.dumps({'eos_token_id': generation}))
  (tmp_path / 'config.json').write_text(
      json.dumps({'model_type': 'llama', 'eos_token_id': config}))
  tok = ModelTokenizer(tmp_path)
  assert tok.stop_ids == want and tok.pad_id == want[0]


def test_chats_do_not_depend_on_the_day(tmp_path):
  bpe(tmp_path, chat=(
      '{% if not date_string is defined %}{% set date_string = '
      'strftime_now("%d %b %Y") %}{% endif %}{{ date_string }}: '
      '{{ messages[0].content }}'))
  assert ModelTokenizer(tmp_path).chat('x') == '26 Jul 2024: x'


def test_pad(tmp_path):
  bpe(tmp_path, pad_token='<|pad|>')
  assert ModelTokenizer(tmp_path).pad_id == 2
  bpe(tmp_path / 'none')
  assert ModelTokenizer(tmp_path / 'none').pad_id == 1


@pytest.mark.parametrize('text, said', [
    ('{{ a }}\n{% for m in messages %}\n{{ m', 'TemplateSyntax.*, line 3[;,] '),
    ('{{ raise_exception("Only one\\nturn.") }}', 'TemplateError: Only one[)]'),
    ('{{ messages[0].x.y }}', "UndefinedError: 'dict object' has no"),
    ('{{ 1 / 0 }}', 'ZeroDivisionError: division by zero')])
@pytest.mark.parametrize(
    'name', ['chat_template.jinja', 'tokenizer_config.json'])
def test_a_chat_template_that_fails(tmp_path, text, said, name):
  bpe(tmp_path)
  (tmp_path / 'chat_template.jinja').unlink()
  file = tmp_path / name
  file.write_text(text if name.endswith('jinja') else json.dumps(
      json.loads(file.read_text()) | {'chat_template': text}))
  tok = ModelTokenizer(tmp_path)
  with pytest.raises(ValueError, match=said) as error:
    tok.chat('x')
  said = str(error.value)
  assert said.startswith('The chat template fails (') and '\n' not in said
  assert str(file) in said and said.endswith('; or set config.task.template to '
                                             'another format.')
  assert tok.after_answer() == ''


@pytest.mark.parametrize('name', ['generation_config.json', 'config.json'])
@pytest.mark.parametrize('text, said', [
    ('{"eos_token_id": "<|end|>"}', "eos_token_id='<|end|>' is not the number"),
    ('{"eos_token_id": [1, "x"]}', "eos_token_id=[1, 'x'] is not the number"),
    ('{"eos_token_id": true}', 'eos_token_id=True is not the number'),
    ('{"eos_token_id": -1}', 'eos_token_id=-1 is not the number'),
    ('{"eos_token_id": 1', 'cannot be read (Expecting'),
    ('', 'cannot be read (Expecting value'), ('[]', 'cannot be read (')])
def test_a_stop_token_that_cannot_be_read(tmp_path, name, text, said):
  bpe(tmp_path)
  (tmp_path / name).write_text(text)
  with pytest.raises(ValueError) as error:
    ModelTokenizer(tmp_path)
  told = str(error.value)
  assert told.startswith(str(tmp_path / name)) and said in told
  assert '\n' not in told
  assert told.endswith(
      ': correct it.' if 'is not' in said else ': fetch it again.')


@pytest.mark.parametrize('family', ['llama', 'qwen2', 'qwen3', 'gemma2'])
def test_no_tokeniser(tmp_path, family):
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': family}))
  for folder in (tmp_path, tmp_path / 'missing', pathlib.Path('models/none')):
    with pytest.raises(ValueError) as error:
      ModelTokenizer(folder)
    said = str(error.value)
    assert said == (
        f'{folder} has no tokeniser that transformers can load (there is no '
        'tokenizer.json, tokenizer.model, vocab.json or vocab.txt): copy the '
        "files of the model's tokeniser into it.")


def test_nothing_ends_a_response(tmp_path):
  bpe(tmp_path, eos_token=None)
  with pytest.raises(ValueError, match='set eos_token_id in its generation_c'):
    ModelTokenizer(tmp_path)


def test_spaces_before_punctuation_stay(tmp_path):
  """A model may ask for less, which would change what it wrote."""
  name = 'clean_up_tokenization_spaces'
  theirs = bpe(tmp_path, **{
      name: True,
      f'{name}_for_bpe_even_though_it_will_corrupt_output': True})
  tok = ModelTokenizer(tmp_path)
  ids = tok.encode('a , b .')
  assert tok.decode(ids) == 'a , b .' and theirs.decode(ids) == 'a, b.'


def joined(tok, ids):
  pieces = tok.pieces(tok.vocab_size + 1)
  return b''.join(pieces[i] for i in ids).decode(errors='replace')


def test_pieces_spell_what_a_tokeniser_decodes(model):
  tok, _ = model
  assert len(tok.pieces(500)) == 500 and len(tok.pieces(7)) == 7
  rng = np.random.default_rng(0)
  for ids in (*map(tok.encode, SPELL + TEXTS[:3]),
              *rng.integers(3, tok.vocab_size, (50, 8)).tolist(), [5, 0, 2]):
    assert joined(tok, ids) == tok.decode(ids)
  char = CharTokenizer('aé+')
  for ids in ([2, 3, 4, 3], [0, 1, 2], [1, 0], [5, 2]):
    assert joined(char, ids) == char.decode(ids)


@pytest.mark.parametrize('kind', ['llama', 'gemma'])
def test_pieces_of_a_sentencepiece_model(tmp_path, kind):
  sentencepiece_model(tmp_path, kind)
  tok = ModelTokenizer(tmp_path)
  for text in SPELL + TEXTS[:3]:
    # Llama's writes a space in front of a text, and removes one.
    assert joined(tok, tok.encode(text)) == ' ' * (
        kind == 'llama' and text > '') + text
  assert {b'\n', b' '} < {*tok.pieces(tok.vocab_size)}


def test_a_text_that_is_a_special_token_is_a_stop_token(model):
  tok, _ = model
  assert tok.stop_ids == (1,) and with_stops(tok, ['<|end|>'], 310) is tok
  assert with_stops(tok, [], 310) is tok
  made = with_stops(tok, ['<|pad|>', 'hello', '<|pad|>', '<|im_end|>'], 310)
  assert made.stop_ids == (1, 2)
  assert made.stop_texts == ('hello', '<|im_end|>')
  assert made.vocab_size == tok.vocab_size and made.chat('x') == tok.chat('x')
  ids = tok.encode('one')
  assert made.decode([*ids, 2]) == made.decode([*ids, 1]) == 'one'
  assert made.decode([*ids, 2, *ids]) == 'one<|pad|>one'


def test_a_text_ends_with_the_stop_text_that_ended_it(model):
  """The rest of the stop's last token is left out."""
  tok, _ = model
  made = with_stops(tok, ['\n\nQ', 'lo w', '}.'], 310)
  for before, stop, after in (
      ('x', '\n\nQ', 'uestion'), ('hel', 'lo w', 'orld'), ('', '}.', ''),
      ('é', '}.', 'x')):
    assert made.decode(tok.encode(before + stop + after)) == before + stop
  assert made.decode(tok.encode('hello, w')) == 'hello, w'
  # Of two, the one that ends first; a piece of a character may be left.
  first, _ = tok.encode('é')[:2] if len(tok.encode('é')) > 1 else (None, None)
  assert made.decode(tok.encode('a}.lo w')) == 'a}.'
  assert made.decode([first, *tok.encode('}.'), first]) == '\ufffd}.'
  # A stop token is left out.
  assert made.decode([*tok.encode('a}'), *tok.stop_ids]) == 'a}'


@pytest.mark.parametrize('stop', ['\n#\nuser:', '\n#'])
def test_a_stop_text_that_the_template_writes_is_left_out(tmp_path, stop):
  """It is markup, and no part of an answer."""
  bpe(tmp_path, chat='{% for m in messages %}{{ m.role }}: {{ m.content }}'
      '\n#\n{% endfor %}')
  tok = ModelTokenizer(tmp_path)
  assert tok.after_answer() == '\n#\nuser: '
  made = with_stops(tok, [stop, 'b'], 310)
  for text, want in (('x\n#\nuser: no', 'x'), ('a\n#b', 'a\n#b'), ('#', '#'),
                     ('ab\n#\nuser:', 'ab')):
    if stop == '\n#':
      want = want.removesuffix('\n#b')
    assert made.decode(tok.encode(text)) == want


def test_a_stop_text_whose_first_space_is_not_decoded(tmp_path):
  sentencepiece_model(tmp_path, 'llama')
  tok = ModelTokenizer(tmp_path)
  made = with_stops(tok, [' hello'], 310)
  ids = tok.encode('hello')  # a space and the word
  assert joined(tok, ids) == ' hello' and tok.decode(ids) == 'hello'
  assert made.decode(ids) == 'hello'
  made.markup = made.stop_texts
  assert 'hello' not in made.decode(ids)


def test_control_tokens_in_a_plain_text(tmp_path):
  """Their texts stay, and no id is one of theirs."""
  bpe(tmp_path, chat='{{ "<tool>" }}' + CHAT)
  own = transformers.AutoTokenizer.from_pretrained(tmp_path)
  own.add_tokens(['<tool>', '<b>', ' '])
  own.save_pretrained(tmp_path)
  tok = ModelTokenizer(tmp_path)
  for text, control in (
      ('<|end|>hello<|pad|>', '<|end|>'), ('<tool><tool>', '<tool>'),
      ('<to<tool>ol>', '<tool>'), ('é<|<|end|>', '<|end|>')):
    number, = tok.encode(control)
    assert number in tok.encode(text)
    plain = tok.encode_plain(text)
    assert number not in plain and tok.spell(plain) == text
  # Other texts are encoded as ever, those of other added tokens too.
  for text in ('', 'hello, world', '<b>bold</b> text'):
    assert tok.encode_plain(text) == tok.encode(text)


@pytest.mark.parametrize('template, fault', [
    (CHAT, ''),
    ('{% for m in messages %}{{ "[" ~ m.content ~ "]" if m.role == "user" '
     'else " " ~ m.content }}{% endfor %}', ''),
    (CHAT.partition('{% if add')[0], "lack '<|assistant|>'"),
    (CHAT.replace('{% if add_generation_prompt %}', '{% if true %}'),
     'also behind the last answer')])
def test_a_template_without_a_generation_prompt(
    tmp_path, caplog, template, fault):
  bpe(tmp_path, chat=template)
  tok = ModelTokenizer(tmp_path)
  for _ in range(2):
    tok.chat('x')
  said = [r.getMessage() for r in caplog.records]
  assert len(said) == bool(fault)
  if fault:
    assert fault in said[0] and str(tmp_path) in said[0]


def test_stop_texts_that_a_tokeniser_cannot_spell():
  char = CharTokenizer('ab')
  with pytest.raises(ValueError, match="text 'ax' cannot end.*cannot spell"):
    with_stops(char, ['ab', 'ax'], 310)
  own = types.SimpleNamespace(encode=list, stop_ids=(1,))
  with pytest.raises(ValueError, match=r"'ab' cannot end .* no pieces\(size\)"):
    with_stops(own, ['ab'], 310)


@pytest.mark.parametrize('chat, after', [
    (CHAT, '<|end|>\n<|user|>\n'),
    ('{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}',
     '\n\nuser: '),
    # No second question is possible, or none at all, or no answer.
    ('{% if messages|length > 2 %}{{ undefined.x }}{% endif %}' + CHAT,
     '<|end|>\n'),
    ('{% if messages|length > 1 %}{{ raise_exception("no") }}{% endif %}',
     ''),
    ('{{ messages[0].content }}', ''), (None, '')])
def test_what_follows_an_answer_in_a_chat(tmp_path, chat, after):
  bpe(tmp_path, chat=chat)
  assert ModelTokenizer(tmp_path).after_answer() == after


@pytest.mark.parametrize('role', ['tool', 'user'])
def test_a_template_whose_prompts_open_the_reasoning(tmp_path, role):
  """Such a template may keep reasoning behind a tool's turn alone (Qwen3)."""
  bpe(tmp_path, chat=(
      '{% for m in messages %}<|{{ m.role }}|>\n'
      '{% if m.role == "assistant" and messages[-1].role == "user" %}'
      '{{ m.content.split("</think>")[-1].strip() }}'
      '{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}'
      '{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}'))
  tok = ModelTokenizer(tmp_path)
  if role == 'user':
    with pytest.raises(ValueError, match='changes earlier turns'):
      tok.next_turn('why?', role)
  else:
    assert tok.next_turn('5', role) == (
        '<|end|>\n<|tool|>\n5<|end|>\n<|assistant|>\n<think>\n')


# As Qwen3's: reasoning behind the last user's message stays.
FORGETS_REASONING = (
    '{%- set ns = namespace(last=0) %}{% for m in messages %}'
    '{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}'
    '{% endfor %}{% for m in messages %}<|{{ m.role }}|>\n'
    '{{ m.content if m.role != "assistant" or loop.index0 > ns.last '
    'else m.content.split("</think>")[-1].lstrip() }}<|end|>\n{% endfor %}'
    '{% if add_generation_prompt %}<|assistant|>\n{% endif %}')


def test_a_template_that_removes_reasoning_of_earlier_turns(tmp_path):
  """Such a template is taken with tools, and refused with an environment."""
  bpe(tmp_path, chat=FORGETS_REASONING)
  tok = ModelTokenizer(tmp_path)
  assert tok.next_turn('5', 'tool') == (
      '<|end|>\n<|tool|>\n5<|end|>\n<|assistant|>\n')
  with pytest.raises(ValueError, match='changes earlier turns'):
    tok.next_turn('why?')


def test_transformers_does_not_speak_of_pytorch(monkeypatch):
  """Its word is the user's, where it is set."""
  name = 'TRANSFORMERS_NO_ADVISORY_WARNINGS'
  monkeypatch.setenv(name, '0')
  assert tokenizer_lib.transformers().__name__ == 'transformers'
  assert os.environ.pop(name) == '0'
  tokenizer_lib.transformers()
  assert os.environ[name] == '1'
