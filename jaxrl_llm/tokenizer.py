"""Text to token ids and back.

`Tokenizer` is all that the rest of the package asks for. A tokeniser of
transformers has the same two methods and needs only `vocab_size`, `pad_id` and
`stop_ids` beside them.
"""

import dataclasses
import functools
from typing import Protocol, Sequence


class Tokenizer(Protocol):
  """What a tokeniser must offer.

  Attributes:
    vocab_size: ids are below it.
    pad_id: fills rows; never part of a text.
    stop_ids: any of these ends a response; the first one ends demonstrations.
  """
  vocab_size: int
  pad_id: int
  stop_ids: tuple[int, ...]

  def encode(self, text: str) -> list[int]:
    """Ids of the text, with no special tokens added."""

  def decode(self, ids: Sequence[int]) -> str:
    """Text of the ids; a stop token at the end is left out."""


@dataclasses.dataclass(frozen=True)
class CharTokenizer:
  """One token per character: id 0 pads, id 1 stops, the alphabet follows.

  Attributes:
    alphabet: the characters, all different.
  """
  alphabet: str

  pad_id = 0
  stop_ids = (1,)
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
    """Ids of the text, no stop token.

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
    """Text of the ids.

    One stop token at the end is left out. Any other id without a character is
    spelled <id>, so that a verifier sees what the model really wrote.
    """
    ids = [int(i) for i in ids]
    if ids and ids[-1] in self.stop_ids:
      ids.pop()
    return ''.join(
        self.alphabet[i - self._first] if self._first <= i < self.vocab_size
        else f'<{i}>' for i in ids)
