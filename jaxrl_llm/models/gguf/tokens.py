"""A model's tokeniser: metadata of a GGUF file to and from tokenizer.json.

A file has the tokens, the merges and a name of how texts are split before
them. What a name means is not in the file, but here.
"""

import json
from typing import Any, Mapping, Sequence

from absl import logging

from jaxrl_llm.models.gguf import header as header_lib

# llama.cpp's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_KEY = 'tokenizer.ggml.'
# Ways in which a response may end, as a file has them.
STOPS = 'eos', 'eot', 'eom'
_ROLES = {'bos': 'bos', 'eos': 'eos', 'unk': 'unknown', 'pad': 'padding'}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
_NAMES = {'llama3': 'llama-bpe', 'llama-v3': 'llama-bpe'}  # of the same
_WITH_BOS = 'llama-bpe',  # where the file does not say
_WHOLE_WORDS = 'llama-bpe',  # a word that is a token needs no merges
_SPACE = '\u2581'  # SentencePiece's


def _splits() -> dict[str, tuple[Any, Any]]:
  """Maps names of `tokenizer.ggml.pre` to (normaliser, pre-tokeniser)."""
  from tokenizers import normalizers, pre_tokenizers, Regex

  def words(digits):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(
            Regex(_WORDS.replace('DIGITS', digits)), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

  gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
  return {
      'gpt-2': (None, gpt2),
      'llama-bpe': (None, words('{1,3}')),
      'qwen2': (normalizers.NFC(), words('')),
      'smollm': (None, pre_tokenizers.Sequence(
          [pre_tokenizers.Digits(individual_digits=True), gpt2]))}


def _sentencepiece(prefix: bool) -> tuple[Any, Any, Any]:
  """Returns (normaliser, pre-tokeniser, decoder) of SentencePiece's models.

  Args:
    prefix: whether a text begins with a space that is not written.
  """
  from tokenizers import decoders, normalizers, pre_tokenizers
  spaces = normalizers.Replace(' ', _SPACE)
  ends = [decoders.Replace(_SPACE, ' '), decoders.ByteFallback(),
          decoders.Fuse()]
  if prefix:
    return (normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]), None,
            decoders.Sequence([*ends, decoders.Strip(' ', 1, 0)]))
  return (spaces, pre_tokenizers.Split(' ', 'merged_with_previous'),
          decoders.Sequence(ends))


def files(header: header_lib.Header) -> dict[str, str]:
  """Returns the files of a GGUF file's tokeniser, name to content.

  Raises:
    ValueError: the kind of tokeniser or its split of texts is not known, or
      its fields are missing or do not fit together.
  """
  own = {name.removeprefix(_KEY): value
         for name, value in header.fields.items() if name.startswith(_KEY)}
  try:
    tokenizer = _tokenizer(own, header)
    names = {
        f'{ours}_token': own['tokens'][own[f'{theirs}_token_id']]
        for ours, theirs in _ROLES.items() if f'{theirs}_token_id' in own}
    ends = [own[f'{name}_token_id'] for name in STOPS
            if f'{name}_token_id' in own]
    if max(ends, default=0) >= len(own['tokens']):
      raise IndexError(f'token {max(ends)} of {len(own["tokens"])}')
  except ValueError:
    raise
  except KeyError as error:
    raise ValueError(
        f'{header.path}: {_KEY}{error.args[0]} is missing: fetch the file '
        'again.') from None
  except Exception as error:  # of tokenizers, which has no kinds of its own
    raise ValueError(
        f'{header.path}: the fields of {_KEY}* do not fit together ({error}): '
        'fetch the file again.') from None
  template = header.fields.get('tokenizer.chat_template')
  return {
      'tokenizer.json': tokenizer.to_str(),
      'tokenizer_config.json': json.dumps({
          'tokenizer_class': 'PreTrainedTokenizerFast',
          'clean_up_tokenization_spaces': False, **names,
          **({'chat_template': template} if template else {})}, indent=2),
      'generation_config.json': json.dumps(
          {'eos_token_id': [*dict.fromkeys(ends)]}, indent=2)}


def _tokenizer(own: Mapping[str, Any], header: header_lib.Header) -> Any:
  """Makes the tokeniser; `own` has the fields without their prefix."""
  from tokenizers import AddedToken, processors
  tokens, types = own['tokens'], own['token_type']
  if len(tokens) != len(types):
    raise IndexError(f'{len(tokens)} tokens, {len(types)} types')
  kinds = {'gpt2': _byte_level, 'llama': _of_sentencepiece}
  if own['model'] not in kinds:
    raise ValueError(
        f'{header.path}: {_KEY}model={own["model"]} is not supported; choose a '
        f'model with {" or ".join(kinds)}.')
  # A model may have more rows than tokens; llama.cpp gives names to them.
  vocab = {token: i for i, token in enumerate(tokens) if token != f'[PAD{i}]'}
  made, bos = kinds[own['model']](own, vocab, header)
  made.add_tokens([
      AddedToken(token, normalized=False, special=types[i] != USER_DEFINED)
      for token, i in vocab.items()
      if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)])
  around = [
      tokens[own[f'{name}_token_id']] if own.get(f'add_{name}_token', on)
      else None for name, on in (('bos', bos), ('eos', False))]
  if any(around):
    made.post_processor = processors.TemplateProcessing(
        single=[*filter(None, (around[0], '$A', around[1]))],
        special_tokens=[
            (token, made.token_to_id(token)) for token in filter(None, around)])
  return made


def _byte_level(
    own: Mapping[str, Any], vocab: Mapping[str, int],
    header: header_lib.Header) -> tuple[Any, bool]:
  """Makes a BPE of bytes; returns whether it begins texts by default, too."""
  from tokenizers import decoders, models, Tokenizer
  name, splits = _NAMES.get(own.get('pre'), own.get('pre')), _splits()
  if name not in splits:
    raise ValueError(
        f'{header.path}: {_KEY}pre={name} is not known, so that texts would be '
        'split wrongly; choose a model with '
        f'{", ".join([*splits, *_NAMES])}.')
  made = Tokenizer(models.BPE(
      vocab, [tuple(merge.split(' ')) for merge in own['merges']],
      ignore_merges=name in _WHOLE_WORDS))
  made.normalizer, made.pre_tokenizer = splits[name]
  made.decoder = decoders.ByteLevel()
  return made, name in _WITH_BOS


def _of_sentencepiece(
    own: Mapping[str, Any], vocab: dict[str, int],
    header: header_lib.Header) -> tuple[Any, bool]:
  """Makes a BPE of SentencePiece; see `_byte_level`."""
  from tokenizers import models, Tokenizer
  types = own['token_type']
  normal = [score for score, of in zip(own['scores'], types) if of == NORMAL]
  if normal != sorted(normal, reverse=True):
    raise ValueError(
        f'{header.path}: {_KEY}scores do not descend, so that this is no BPE '
        'of SentencePiece, which is the only kind that is supported; choose '
        'another model.')
  # llama.cpp writes tokens of spaces as such; texts have SentencePiece's sign
  # by the time that tokens are looked for.
  spaces = [token for token in vocab if not token.strip(' ')]
  merged = {token.replace(' ', _SPACE) if token in spaces else token: i
            for token, i in vocab.items()}
  made = Tokenizer(models.BPE(
      merged, _merges(merged, types), fuse_unk=True, byte_fallback=True,
      unk_token=own['tokens'][own['unknown_token_id']]))
  for token in spaces:
    del vocab[token]
  gemma = header.fields['general.architecture'].startswith('gemma')
  made.normalizer, made.pre_tokenizer, made.decoder = _sentencepiece(
      own.get('add_space_prefix', not gemma))
  return made, True


def _merges(
    vocab: Mapping[str, int], types: Sequence[int]) -> list[tuple[str, str]]:
  """Returns the merges of a SentencePiece BPE, which has none of its own.

  It joins the neighbours whose token has the best score. Scores descend in the
  order of the vocabulary; tokens of spaces, which have none, come first.
  """
  parts = {token for token, i in vocab.items()
           if types[i] in (NORMAL, USER_DEFINED)}
  return [
      (token[:cut], token[cut:])
      for token, _ in sorted(vocab.items(), key=lambda item: item[1])
      if token in parts
      for cut in range(len(token) - 1, 0, -1)
      if token[:cut] in parts and token[cut:] in parts]


def fields(own: Any, size: int, stops: Sequence[int]) -> dict[str, Any]:
  """Returns the metadata of a tokeniser.

  Args:
    own: transformers' tokeniser.
    size: of the model's vocabulary.
    stops: ids that end a response, the tokeniser's own first.

  Raises:
    ValueError: llama.cpp has no such tokeniser.
  """
  backend = getattr(own, 'backend_tokenizer', None)
  made = json.loads(backend.to_str()) if backend else {'model': {}}
  kind = _kind(made)
  if kind is None:
    raise ValueError(
        "The model's tokeniser splits texts in a way that GGUF files have no "
        'name for: export with --format=safetensors.')
  added = {t['id']: t for t in made['added_tokens']}
  known = {i: t for t, i in made['model']['vocab'].items()} | {
      i: t['content'] for i, t in added.items()}
  tokens = [known.get(i, f'[PAD{i}]') for i in range(size)]

  def type_of(i, token):
    if i in added:
      return CONTROL if added[i]['special'] else USER_DEFINED
    if i not in known:
      return UNUSED
    byte = kind['model'] == 'llama' and len(token) == 6 and (
        token.startswith('<0x'))
    return BYTE if byte else NORMAL

  types = [type_of(i, token) for i, token in enumerate(tokens)]
  out = {**kind, 'tokens': tokens, 'token_type': types}
  if kind['model'] == 'gpt2':
    out['merges'] = [
        ' '.join(m) if isinstance(m, list) else m
        for m in made['model']['merges']]
  else:
    out['scores'] = [-float(i) for i in range(size)]
    # llama.cpp has tokens of spaces as such, not as SentencePiece's sign.
    out['tokens'] = [
        token.replace(_SPACE, ' ')
        if of == USER_DEFINED and not token.strip(_SPACE) else token
        for token, of in zip(tokens, types)]
  if len(stops) > len(STOPS):
    logging.warning(
        'A GGUF file has room for %d tokens that end a response, so %s are '
        'left out: set them where the model is used.', len(STOPS),
        [tokens[i] for i in stops[len(STOPS):]])
  ids = dict(bos=own.bos_token_id, unknown=own.unk_token_id,
             padding=own.pad_token_id, **dict(zip(STOPS, stops)))
  out |= {f'{name}_token_id': i for name, i in ids.items() if i is not None}
  around = own('').input_ids
  out['add_bos_token'] = around[:1] == [ids['bos']]
  out['add_eos_token'] = around[out['add_bos_token']:] == [ids['eos']]
  template = own.chat_template
  return {**{_KEY + name: value for name, value in out.items()}, **(
      {'tokenizer.chat_template': template}
      if isinstance(template, str) else {})}


def _kind(made: Mapping[str, Any]) -> dict[str, Any] | None:
  """Returns the fields that name the kind of a tokenizer.json, if any do."""
  def same(*parts):
    return all(_plain(made.get(name)) == _plain(
        part and json.loads(part.__getstate__())) for name, part in zip(
            ('normalizer', 'pre_tokenizer'), parts))

  if made['model'].get('type') != 'BPE':
    return None
  if made['model']['byte_fallback']:
    for prefix in False, True:
      if same(*_sentencepiece(prefix)[:2]):
        return {'model': 'llama', 'pre': 'default', 'add_space_prefix': prefix}
    return None
  found = [name for name, parts in _splits().items() if same(*parts) and (
      made['model'].get('ignore_merges', False) == (name in _WHOLE_WORDS))]
  return {'model': 'gpt2', 'pre': found[0]} if found else None


def _plain(part: Any) -> Any:
  """Leaves out what does not change ids, and sequences of one part."""
  if isinstance(part, list):
    return [_plain(x) for x in part]
  if not isinstance(part, dict):
    return part
  inner = part.get('normalizers') or part.get('pretokenizers')
  if inner and len(inner) == 1:
    return _plain(inner[0])
  return {name: _plain(x) for name, x in part.items() if name != 'trim_offsets'}
