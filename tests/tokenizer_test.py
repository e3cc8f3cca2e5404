"""Text to ids and back."""

import pytest

from jaxrl_llm.tokenizer import CharTokenizer


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
