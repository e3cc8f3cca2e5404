"""Tokenisers: text to token ids and back.

`Tokenizer` is the interface that the rest of the package uses. `CharTokenizer`
has one token per character, for small tasks; `ModelTokenizer` is a model's own,
loaded by transformers. `with_stops` adds what ends a response.
"""

import codecs
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
from typing import Any, Callable, Iterable, Mapping, Protocol, Sequence

from absl import logging

_BYTE = re.compile('<0x([0-9A-Fa-f]{2})>')  # a byte in SentencePiece
# Files of which each folder with a tokeniser has one.
_FILES = 'tokenizer.json', 'tokenizer.model', 'vocab.json', 'vocab.txt'
# Texts of a conversation that shows how a chat template ends an answer.
_TURNS = 'Question-1', 'Answer-1', 'Question-2'
_MARKS = re.compile(r'{%-?\s*generation\s*-?%}')  # around an answer
_DATE = '26 Jul 2024'  # Llama's templates insert today's; this is their default
_OPENED = re.compile(r'<think>\s*\Z')
_REASONED = f'<think>\nReason-1\n</think>\n\n{_TURNS[1]}'


class Tokenizer(Protocol):
  """Interface of a tokeniser.

  A tokeniser may also have these:
    `pieces(size) -> [bytes]`, the bytes that each id below size adds to a text;
      with it, texts can end a response.
    `special`, its special tokens as they stand in a text.
    `encode_plain(text) -> ids` of a text in which no text is a control token.
    `spell(ids) -> str`, the text of all ids, stop tokens among them.
    `after_answer() -> str`, the text that follows an answer in its chat format;
      `after_last_answer() -> str`, the same of a chat that ends there.
    `next_turn(text) -> str`, what follows an answer up to the next: its end, a
      user's turn, and the start of the answer to it.

  Attributes:
    vocab_size: ids are below it.
    pad_id: fills rows; never part of a text.
    stop_ids: any of these ends a response; the first one ends demonstrations.
    start: prefix of every text, such as '<bos>'; '' for none.
  """
  vocab_size: int
  pad_id: int
  stop_ids: tuple[int, ...]
  start: str

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text, with no special tokens added."""

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of the ids, without a stop token at the end."""


@dataclasses.dataclass(frozen=True)
class CharTokenizer:
  """One token per character: id 0 pads, id 1 stops, the alphabet follows.

  Attributes:
    alphabet: the characters, all different.
  """
  alphabet: str

  pad_id = 0
  stop_ids = (1,)
  start = ''
  _first = 2

  def __post_init__(self):
    twice = {c for c in self.alphabet if self.alphabet.count(c) > 1}
    if twice:
      raise ValueError(
          f'the alphabet names {sorted(twice)} more than once: list each '
          'character once.')

  @property
  def vocab_size(self) -> int:
    return self._first + len(self.alphabet)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {c: i for i, c in enumerate(self.alphabet, self._first)}

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text, without a stop token.

    Raises:
      ValueError: a character is not in the alphabet.
    """
    try:
      return [self._ids[c] for c in text]
    except KeyError as e:
      raise ValueError(
          f'character {e} of {text!r} is not in the alphabet '
          f'{self.alphabet!r}.') from None

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of the ids.

    One stop token at the end is left out. Any other id without a character is
    written as <id>, so that a verifier sees what the model wrote.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      ids.pop()
    return ''.join(
        self.alphabet[i - self._first] if self._first <= i < self.vocab_size
        else f'<{i}>' for i in ids)

  def pieces(self, size: int) -> list[bytes]:
    """Returns the bytes that each id below `size` adds to a text."""
    return [self.decode([i, self.stop_ids[0]]).encode() for i in range(size)]


def transformers() -> Any:
  """Imports transformers, which takes seconds.

  It would say that PyTorch is missing, which nothing here needs.
  """
  os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')
  import transformers as library
  return library


class ModelTokenizer:
  """The tokeniser in the folder of a Hugging Face model.

  Attributes:
    own: transformers' tokeniser.
    folder: the folder.
    special: its special tokens.
  """

  def __init__(self, folder: pathlib.Path):
    """Loads the tokeniser.

    Args:
      folder: holds the tokeniser's files, and config.json or
        generation_config.json, which name the tokens that end a response.

    Raises:
      ValueError: it cannot be loaded, or no token that ends a response is
        named.
    """
    listed = _listed_stops(folder)  # it would not say which file is wrong
    # AutoTokenizer would take the class of the model's family, with its own
    # split of texts, not the one that a GGUF file names.
    library = transformers()
    kind = (library.PreTrainedTokenizerFast
            if (folder / 'model.gguf').exists() else library.AutoTokenizer)
    try:
      self.own = kind.from_pretrained(folder, local_files_only=True)
      # Some kinds have special tokens even without any file.
      if not {*self.own.get_vocab()} - {*self.own.all_special_tokens}:
        raise ValueError('there is no file of it')
      self.own('a')  # some settings fail only where they are used
    except Exception as error:  # each kind of tokeniser fails in its own way
      reason = f'{type(error).__name__}: {_first_line(error)}'
      if not any((folder / name).exists() for name in _FILES):
        reason = f'there is no {", ".join(_FILES[:-1])} or {_FILES[-1]}'
      raise ValueError(
          f'{folder} has no tokeniser that transformers can load ({reason}): '
          "copy the files of the model's tokeniser into it.") from None
    self.folder = folder
    self._kept_before: set[str] = set()  # roles whose turns change none before
    self._warned = False  # of the chat template
    self.vocab_size = max(self.own.get_vocab().values()) + 1
    self.stop_ids = tuple(dict.fromkeys(
        i for i in (self.own.eos_token_id, *listed) if i is not None))
    if not self.stop_ids:
      raise ValueError(
          f'No file in {folder} says which token ends a response: set '
          'eos_token_id in its generation_config.json.')
    pad = self.own.pad_token_id
    self.pad_id = self.stop_ids[0] if pad is None else pad
    # Ids in front of a text, such as <bos>.
    before = self.own('').input_ids
    before = before[:-1] if before[-1:] == [self.own.eos_token_id] else before
    self.start = self.own.decode(before)
    self.special = (*map(str, self.own.all_special_tokens), *(
        token.content for token in self.own.added_tokens_decoder.values()
        if token.special))

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text; special tokens only where it has them."""
    return self.own(text, add_special_tokens=False).input_ids

  def encode_plain(self, text: str) -> list[int]:
    """Returns the ids of a text in which no text is a control token.

    These are the special tokens, and the added ones that the chat template
    writes, such as </tool_response>. The latter are encoded in two parts.
    """
    cuts = [found.start() + 1 for found in self._markup.finditer(text)]
    return [i for start, end in zip([0, *cuts], [*cuts, len(text)])
            for i in self.own(
                text[start:end], add_special_tokens=False,
                split_special_tokens=True).input_ids]

  @functools.cached_property
  def _markup(self) -> re.Pattern[str]:
    """Pattern of the starts of added tokens that the chat template writes."""
    template = str(self.own.chat_template or '')
    written = [
        re.escape(token.content)
        for token in self.own.added_tokens_decoder.values()
        if not token.special and len(token.content.strip()) > 1
        and token.content in template]
    # Their texts may overlap. Without any, the pattern never matches.
    return re.compile(f'(?={"|".join(written)})' if written else '(?!)')

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of the ids, without a stop token at the end."""
    return self.spell(
        ids[:-1] if len(ids) and ids[-1] in self.stop_ids else ids)

  def spell(self, ids: Sequence[int]) -> str:
    """Returns the text of all ids, stop tokens among them."""
    # Models round vocabularies up, so some ids have no token.
    ids = [int(i) for i in ids if i < self.vocab_size]
    return self.own.decode(ids, clean_up_tokenization_spaces=False)

  def pieces(self, size: int) -> list[bytes]:
    """Returns the bytes that each id below `size` adds to a text."""
    names = self.own.convert_ids_to_tokens([*range(min(size, self.vocab_size))])
    decoder = getattr(self.own, 'backend_tokenizer', None)
    in_bytes = decoder and b'"ByteLevel"' in decoder.decoder.__getstate__()
    piece = _of_byte_level if in_bytes else _of_sentencepiece
    known = [piece(name) if name else b'' for name in names]
    return known + [b''] * (size - len(known))

  def chat(
      self, turns: str | Sequence[Mapping[str, Any]],
      tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Formats messages and the start of the answer for the model.

    Args:
      turns: a user's text, or messages with `role` and `content`. If the last
        one is the assistant's, the answer goes on with it.
      tools: JSON schemas of the functions that the model may call.

    Raises:
      ValueError: the model has no chat template, or one that fails or has no
        place for a system message.
    """
    if not self.own.chat_template:
      raise ValueError(
          f'The tokeniser of {self.folder} has no format for chats: set '
          'config.task.template=question, or another that --help names, and '
          'give problems as texts.')
    messages = [dict(role='user', content=turns)] if (
        isinstance(turns, str)) else turns
    if not self._warned:
      self._warned = True
      self._warn_of_no_generation_prompt()
    try:
      text = self._formatted(messages, tools=tools)
    except Exception as error:  # a template may raise anything
      raise ValueError(self._chat_fault(messages, error)) from None
    for message in messages:
      if message['role'] == 'system' and message['content'].strip() not in text:
        raise ValueError(self._no_system('it leaves it out'))
    last = next((i for i in reversed(range(len(messages)))
                 if messages[i]['role'] == 'user'), None)
    if last is not None and self._leaves_out(messages, tools, last, text):
      raise ValueError(
          f'The chat template of {self.folder} leaves out the text of the '
          'user: correct it, or set config.task.template to another format.')
    return text

  def _leaves_out(self, messages, tools, i: int, text: str) -> bool:
    """Returns whether a prompt would be the same with another text in it."""
    said = messages[i]['content']
    if ''.join(said.split()) in ''.join(text.split()):
      return False
    # Some templates change it: they write it as JSON, or remove commands.
    others = [*messages]
    others[i] = {**messages[i], 'content': f'{said} 0'}
    with contextlib.suppress(Exception):
      return text == self._formatted(others, tools=tools)
    return False

  def _chat_fault(
      self, messages: Sequence[Mapping[str, Any]], error: Exception) -> str:
    """Returns the sentence about a chat template that fails."""
    reason = f'{type(error).__name__}: {_first_line(error)}'
    others = [m for m in messages if m['role'] != 'system']
    if 0 < len(others) < len(messages):
      with contextlib.suppress(Exception):
        self._formatted(others)
        return self._no_system(reason)
    line = f', line {error.lineno}' if hasattr(error, 'lineno') else ''
    file = self.folder / 'chat_template.jinja'
    where = f'{file}{line}' if file.exists() else (
        f'chat_template{line}, in {self.folder / "tokenizer_config.json"}')
    return (f'The chat template fails ({reason}): correct {where}; or set '
            'config.task.template to another format.')

  def _no_system(self, reason: str) -> str:
    return (
        f'The chat template of {self.folder} takes no system message '
        f"({reason}): put the message's text into task.template, or into the "
        'first message of the user.')

  def _warn_of_no_generation_prompt(self) -> None:
    """Warns of a chat template that has no place where an answer begins."""
    question, answer, _ = _TURNS
    asked = dict(role='user', content=question)
    try:
      prompt = self._formatted([asked])
      if prompt != self._formatted([asked], prompt=False):
        return
      whole = self._formatted(
          [asked, dict(role='assistant', content=answer)], prompt=False)
    except Exception:  # what uses the template says why
      return
    header = whole.removeprefix(prompt).partition(answer)[0].strip()
    again = prompt.partition(question)[2]
    if header:
      fault = f'its prompts lack {header!r}, with which an answer begins'
    elif again.strip() and whole.endswith(again):
      fault = f'it writes {again!r} also behind the last answer'
    else:
      return
    logging.warning(
        'The chat template of %s has no add_generation_prompt, so that %s: '
        'correct the template.', self.folder, fault)

  def conversation(
      self, messages: Sequence[Mapping[str, Any]],
      tools: Sequence[Mapping[str, Any]] = (), *, prompt: bool = False) -> str:
    """Formats a whole conversation; with `prompt`, and the start of an answer.

    Args:
      messages: with `role` and `content`.
      tools: those of `chat`.
      prompt: whether an answer follows.

    Raises:
      ValueError: the chat template takes no such messages.
    """
    try:
      if messages:
        return self._formatted(messages, prompt, tools, goes_on=False)
      # What stands before an answer that is the first message.
      return os.path.commonprefix([
          self._formatted([dict(role='assistant', content=text)], False, tools)
          for text in ('1', '2')])
    except Exception as error:  # a template may raise anything
      raise ValueError(self._chat_fault(messages, error)) from None

  def marked(
      self, messages: Sequence[Mapping[str, Any]],
      tools: Sequence[Mapping[str, Any]] = (),
  ) -> tuple[list[int], list[int]] | None:
    """Returns the ids of a conversation, and 1 for those that its answers add.

    Args:
      messages: with `role` and `content`.
      tools: those of `chat`.

    Returns:
      The two lists; None if the chat template has no generation marks.
    """
    if not self.own.chat_template or not _MARKS.search(
        self.own.get_chat_template(tools=[*tools] or None)):
      return None
    try:
      found = self.own.apply_chat_template(
          [*messages], tools=[*tools] or None, return_dict=True,
          return_assistant_tokens_mask=True, date_string=_DATE)
    except Exception as error:  # a template may raise anything
      raise ValueError(self._chat_fault(messages, error)) from None
    return found['input_ids'], found['assistant_masks']

  def ends(self, text: str) -> list[int] | None:
    """Returns the place in a text where each of its ids ends, if it is known.
    """
    if not self.own.is_fast:
      return None
    return [end for _, end in self.own(
        text, add_special_tokens=False,
        return_offsets_mapping=True).offset_mapping]

  def after_answer(self) -> str:
    """Returns the text that follows an answer in a chat; '' if none is known.

    It is what the chat template writes between an answer and the next question.
    """
    found = self._after(_TURNS)
    return self.after_last_answer() if found is None else found

  def after_last_answer(self) -> str:
    """Returns the text that ends a chat behind its last answer, or ''."""
    return self._after(_TURNS[:2]) or ''

  def _after(self, turns: Sequence[str]) -> str | None:
    """Returns the text behind the answer in a chat of these turns, or None."""
    try:
      text = self._formatted([
          dict(role=('user', 'assistant')[i % 2], content=turn)
          for i, turn in enumerate(turns)], prompt=False)
    except Exception:  # not all templates take such turns
      return None
    _, found, after = text.partition(_TURNS[1])
    return after.partition(_TURNS[2])[0] if found else None

  def next_turn(
      self, text: str, role: str = 'user',
      tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Returns what the chat template writes between two answers.

    Args:
      text: the turn between them.
      role: whose turn it is.
      tools: those of `chat`.

    Raises:
      ValueError: the template fails, or changes what stood before.
    """
    if role not in self._kept_before:
      self._behind(_REASONED, '', role, tools)
      self._kept_before.add(role)
    return self._behind(_TURNS[1], text, role, tools)

  def _behind(
      self, answer: str, text: str, role: str,
      tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns what the template writes behind an answer, see `next_turn`."""
    question = _TURNS[0]
    before, contents = self.chat(question, tools), [answer]
    if opened := _OPENED.search(before):
      # The answer goes on with the reasoning. Templates take the tag as a part
      # of it, or write the tag themselves.
      answer = _REASONED.removeprefix('<think>\n')
      contents = [opened[0] + answer, answer]
    for content in contents:
      try:
        whole = self._formatted([
            dict(role='user', content=question),
            dict(role='assistant', content=content),
            dict(role=role, content=text)], tools=tools)
      except Exception as error:  # a template may raise anything
        raise ValueError(
            f'The chat template of {self.folder} has no second turn '
            f'({type(error).__name__}: {_first_line(error)}): set '
            'task.markup=none.') from None
      if whole.startswith(before + answer):
        return whole[len(before + answer):]
    raise ValueError(
        f'The chat template of {self.folder} changes earlier turns when one is '
        'added, such as reasoning that it removes. What a model has read and '
        'written must stay as it was: choose another model or template, or set '
        'task.markup=none.')

  def _formatted(
      self, messages: Sequence[Mapping[str, Any]], prompt: bool = True,
      tools: Sequence[Mapping[str, Any]] = (), goes_on: bool = True) -> str:
    """Formats messages by the chat template, for an answer with `prompt`.

    With `goes_on`, that is the last message if it is the assistant's.
    """
    goes_on = goes_on and prompt and messages[-1]['role'] == 'assistant'
    return self.own.apply_chat_template(
        [*messages], tools=[*tools] or None, tokenize=False,
        add_generation_prompt=prompt and (
            not goes_on), continue_final_message=goes_on,
        date_string=_DATE)


class WithStops:
  """A tokeniser with further stops; see `with_stops`.

  Attributes:
    stop_ids: the tokeniser's, and others.
    stop_texts: texts that end a response.
    markup: those of them that the chat template writes after an answer.
    further_stops: ids and texts, without the tokeniser's own.
    spelled: bytes that each id of the model adds to a text; [] if no texts end
      a response.
  """

  def __init__(
      self, own: Tokenizer, ids: Iterable[int], texts: Sequence[str],
      size: int):
    self._own, self.stop_texts = own, tuple(texts)
    after = getattr(own, 'after_answer', str)() if texts else ''
    self.markup = frozenset(text for text in texts if after.startswith(text))
    self.stop_ids = tuple(dict.fromkeys([*own.stop_ids, *ids]))
    self.further_stops = *self.stop_ids[len({*own.stop_ids}):], *texts
    self.spelled = own.pieces(size) if texts else []

  def __getattr__(self, name: str) -> Any:
    return getattr(self._own, name)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of the ids, up to the end of the text that ended it.

    A stop token at the end, and markup that ended the text, are left out.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      return self._own.decode(
          ids if ids[-1] in self._own.stop_ids else ids[:-1])
    text = self._own.decode(ids)
    found = [(at + len(stop), stop) for stop in self.stop_texts
             if (at := text.find(stop)) >= 0]
    if found:
      end = min(found)[0]  # of the first text that was complete
      return text[:min(end - len(stop) * (stop in self.markup)
                       for at, stop in found if at == end)]
    # Some tokenisers leave out the first space, or bytes before a stop.
    spelled = b''.join(self.spelled[i] for i in ids if self.markup)
    ended = any(stop.encode() in spelled for stop in self.markup)
    return self._own.decode(ids[:-1]) if ended else text


def with_stops(own: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
  """Adds texts that end a response to a tokeniser.

  A text that is one special token becomes a stop token.

  Args:
    own: the tokeniser.
    texts: any number, none of them empty.
    size: of the model's vocabulary.

  Returns:
    The tokeniser itself if there is nothing to add; else with `stop_texts`.

  Raises:
    ValueError: the tokeniser does not say what its tokens spell, or does not
      spell a text as it is.
  """
  ids, rest = [], []
  for text in dict.fromkeys(texts):
    one = own.encode(text) if text in getattr(own, 'special', ()) else []
    (ids if len(one) == 1 else rest).append(one[0] if len(one) == 1 else text)
  if not rest and {*ids} <= {*own.stop_ids}:
    return own
  if rest and not hasattr(own, 'pieces'):
    raise ValueError(
        f'The text {rest[0]!r} cannot end a response, since the tokeniser has '
        'no pieces(size): leave it out of sampling.stop, or define that '
        'method.')
  made = WithStops(own, ids, rest, size)
  for text in rest:
    try:
      spelled = b''.join(made.spelled[i] for i in own.encode(text))
    except (IndexError, ValueError):  # a character that it does not have
      spelled = b''
    if not spelled.endswith(text.encode()):
      raise ValueError(
          f'The text {text[:60]!r} cannot end a response, since the tokeniser '
          'cannot spell it: leave it out of sampling.stop.')
  return made


def characters(
    tokenizer: Tokenizer, ids: Sequence[int], text: str,
    size: int) -> list[int] | None:
  """Returns how many characters of a decoded text each id has written.

  A character of several ids counts for the last of them; ids behind the text,
  such as a stop token, have none.

  Args:
    tokenizer: it decoded the text.
    ids: [T], or the first ones of a response.
    text: what they decode to, perhaps without its end, or with more behind.
    size: of the model's vocabulary; ids are below it.

  Returns:
    [T] counts; None if the tokeniser does not say what its ids spell, or spells
    another text.
  """
  if not hasattr(tokenizer, 'pieces'):
    return None
  known = _pieces(tokenizer.pieces, size)
  decoder = codecs.getincrementaldecoder('utf8')('replace')
  parts = [decoder.decode(known[i]) for i in ids]
  spelled = ''.join(parts)
  # SentencePiece writes a space before the first word, which decoding drops.
  dropped = int(spelled[:1] == ' ' and text[:1] != ' ')
  both = min(len(spelled) - dropped, len(text))
  if spelled[dropped:dropped + both] != text[:both]:
    return None
  ends = [min(max(end - dropped, 0), len(text)) for end in itertools.accumulate(
      map(len, parts))]
  return [end - start for start, end in zip([0, *ends], ends)]


@functools.lru_cache(4)
def _pieces(pieces: Callable[[int], list[bytes]], size: int) -> list[bytes]:
  """Returns `pieces(size)`, which takes long for a large vocabulary."""
  # A method is known by its object's identity: the object may have no hash.
  return pieces(size)


@functools.cache
def _byte_of() -> dict[str, int]:
  """Returns the byte that each character of a byte-level token stands for."""
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [b for b in range(256) if b not in plain]
  return {**{chr(b): b for b in plain},
          **{chr(256 + i): b for i, b in enumerate(others)}}


def _of_byte_level(name: str) -> bytes:
  """Returns the bytes of a token of a byte-level BPE."""
  known = _byte_of()
  if all(c in known for c in name):
    return bytes(known[c] for c in name)
  return name.encode()


def _of_sentencepiece(name: str) -> bytes:
  """Returns the bytes of a token of a SentencePiece model."""
  if byte := _BYTE.fullmatch(name):
    return bytes.fromhex(byte[1])
  return name.replace('\u2581', ' ').encode()


def _first_line(error: BaseException) -> str:
  """Returns the first line of an error, with the next if it announces them."""
  first, *more = str(error).strip().split('\n')
  said = f'{first} {" ".join(more)}' if first.endswith(':') else first
  return said[:200].rstrip('.: ') or 'without a word'


def differences(a: ModelTokenizer, b: ModelTokenizer) -> dict[int, tuple]:
  """Returns the ids that two tokenisers give to different tokens.

  Returns:
    Id to its tokens in both, None where it has none; ascending.
  """
  tokens = [
      {i: token for token, i in tokenizer.own.get_vocab().items()}
      for tokenizer in (a, b)]
  return {
      i: pair for i in sorted({*tokens[0], *tokens[1]})
      if len({*(pair := tuple(known.get(i) for known in tokens))}) > 1}


def is_bare(folder: pathlib.Path) -> bool:
  """Returns whether a model was trained with the tokeniser of a task.

  Its folder then has no tokeniser, and no token that ends a response.
  """
  return (folder / 'config.json').exists() and not any(
      (folder / name).exists() for name in _FILES) and (
          {*_listed_stops(folder)} == {None})


def _listed_stops(folder: pathlib.Path) -> list[int | None]:
  """Returns the ids that end a response by the files of a model."""
  found = []
  for name in ('generation_config.json', 'config.json'):
    path = folder / name
    if not path.exists():
      continue
    try:
      value = json.loads(path.read_text()).get('eos_token_id')
    except (OSError, AttributeError, ValueError, RecursionError) as error:
      raise ValueError(
          f'{path} cannot be read ({_first_line(error)}): fetch it '
          'again.') from None
    ids = value if isinstance(value, list) else [value]
    if any(i is not None and (type(i) is not int or i < 0) for i in ids):
      raise ValueError(
          f'{path}: eos_token_id={value!r:.60} is not the number of a token or '
          'a list of such numbers: correct it.')
    found += ids
  return found
