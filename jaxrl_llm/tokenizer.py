"""Tokenisers: text to token ids and back.

`Tokenizer` is the interface that the rest of the package uses. `CharTokenizer`
has one token per character, for small tasks; `ModelTokenizer` is a model's own,
loaded by transformers.
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any, Protocol, Sequence


class Tokenizer(Protocol):
  """Interface of a tokeniser.

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


class ModelTokenizer:
  """The tokeniser in the folder of a Hugging Face model."""

  def __init__(self, folder: pathlib.Path):
    """Loads the tokeniser.

    Args:
      folder: holds the tokeniser's files, and config.json or
        generation_config.json, which name the tokens that end a response.

    Raises:
      ValueError: it cannot be loaded, or no token that ends a response is
        named.
    """
    import transformers
    try:
      self._own = transformers.AutoTokenizer.from_pretrained(
          folder, local_files_only=True)
      # Some kinds have special tokens even without any file.
      if not {*self._own.get_vocab()} - {*self._own.all_special_tokens}:
        raise ValueError('there is no file of it')
    except Exception as error:  # each kind of tokeniser fails in its own way
      reason = str(error).strip().split('\n')[0]
      raise ValueError(
          f'{folder} has no tokeniser that transformers can load '
          f'({type(error).__name__}: {reason}).') from None
    self.folder = folder
    self.vocab_size = max(self._own.get_vocab().values()) + 1
    self.stop_ids = _stop_ids(folder, self._own)
    pad = self._own.pad_token_id
    self.pad_id = self.stop_ids[0] if pad is None else pad
    # Ids in front of a text, such as <bos>.
    before = self._own('').input_ids
    before = before[:-1] if before[-1:] == [self._own.eos_token_id] else before
    self.start = self._own.decode(before)

  def encode(self, text: str) -> list[int]:
    """Returns the ids of the text; special tokens only where it has them."""
    return self._own(text, add_special_tokens=False).input_ids

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of the ids, without a stop token at the end."""
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      ids.pop()
    # Models round vocabularies up, so some ids have no token.
    ids = [i for i in ids if i < self.vocab_size]
    return self._own.decode(ids, clean_up_tokenization_spaces=False)

  def chat(self, text: str) -> str:
    """Formats a user's turn and the start of the answer for the model.

    Raises:
      ValueError: the model has no chat template.
    """
    if not self._own.chat_template:
      raise ValueError(
          f'The tokeniser of {self.folder} has no format for chats: set '
          'config.task.template=question, or another that --help names.')
    # Llama's templates insert today's date; this is their default.
    return self._own.apply_chat_template(
        [{'role': 'user', 'content': text}], tokenize=False,
        add_generation_prompt=True, date_string='26 Jul 2024')


def differences(a: ModelTokenizer, b: ModelTokenizer) -> dict[int, tuple]:
  """Returns the ids that two tokenisers give to different tokens.

  Returns:
    Id to its tokens in both, None where it has none; ascending.
  """
  tokens = [
      {i: token for token, i in tokenizer._own.get_vocab().items()}
      for tokenizer in (a, b)]
  return {
      i: pair for i in sorted({*tokens[0], *tokens[1]})
      if len({*(pair := tuple(known.get(i) for known in tokens))}) > 1}


def _stop_ids(folder: pathlib.Path, own: Any) -> tuple[int, ...]:
  """Returns the ids that end a response, the tokeniser's first."""
  found = [own.eos_token_id]
  for name in ('generation_config.json', 'config.json'):
    path = folder / name
    value = json.loads(path.read_text()).get('eos_token_id') if (
        path.exists()) else None
    found += value if isinstance(value, list) else [value]
  stops = tuple(dict.fromkeys(i for i in found if i is not None))
  if not stops:
    raise ValueError(
        f'No file in {folder} says which token ends a response: set '
        'eos_token_id in its generation_config.json.')
  return stops
