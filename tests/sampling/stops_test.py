"""Tests of texts that end a response, against a search in the whole text."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import stops
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import Prompts, Requests
from tests.helpers.tolerance import decoder, typical

# One token inside another, an empty one, parts of a character: 'é' is C3 A9.
PIECES = [b'', b'a', b'b', b'ab', b'ba', b'aab', b'\n', b'\n\n', b'\xc3',
          b'\xa9', b'b\n', b'abba', b'']
TEXTS = [
    [b'ab'], [b'aa', b'bab'], [b'abab\n'], ['bé'.encode()], [b'\n\n'],
    [b'bc', b'abcd', b'd'], [b'b', b'ab'], [b'aabaaab', b'abaa'],
    [b'baaab', b'aab\n', b'\na', b'bb']]


def first_end(text, texts):
  """Returns the length of the shortest beginning that has one of the texts."""
  return next((n for n in range(len(text) + 1) if any(
      t in text[:n] for t in texts)), None)


@pytest.mark.parametrize('texts', TEXTS)
def test_the_automaton_stops_where_a_text_first_ends(texts):
  after = stops.automaton(texts)
  found = len(after) - 1
  assert found <= sum(map(len, texts))
  rng = np.random.default_rng(0)
  letters = sorted({*b''.join(texts), *b'ab'})
  for _ in range(200):
    text = bytes(rng.choice(letters, 20).tolist())
    state, states = 0, [0]
    for byte in text:
      state = after[state, byte]
      states.append(state)
    end = first_end(text, texts)
    assert (states.index(found) if found in states else None) == end, text
    assert end is None or {*states[end:]} == {found}


@pytest.mark.parametrize('texts', TEXTS)
def test_a_token_does_what_its_bytes_do(monkeypatch, texts):
  monkeypatch.setattr(stops, '_TOGETHER', 5)
  found = stops.tabulate(texts, PIECES)
  after = stops.automaton(texts)
  assert found.kind.shape == (len(PIECES),)
  assert len({*map(bytes, found.after)}) == len(found.after)
  for token, piece in enumerate(PIECES):
    for state in range(len(after)):
      want = functools.reduce(lambda s, byte: after[s, byte], piece, state)
      assert found.after[found.kind[token], state] == want
      got = found.advance(jnp.array([state]), jnp.array([token]))
      assert got.tolist() == [want]
      assert found.complete(got).tolist() == [want == len(after) - 1]


def test_tokens_that_spell_no_part_share_a_row():
  pieces = [f'{i}'.encode() for i in range(50_000)]
  found = stops.tabulate([b'\n\nQuestion:', b'7\n'], [*pieces, b''])
  assert len(found.after) == 3  # passed over, '...7', and all others


T, R = 12, 24
CFG = ModelConfig(
    vocab_size=13, width=12, layers=2, heads=4, kv_heads=2, head_dim=6,
    mlp_width=20, qk_norm=True)


@functools.cache
def responses(texts=(), **options):
  """Samples 24 responses of up to 12 tokens with stop token 1 ('a')."""
  rng = np.random.default_rng(0)
  params = jax.tree.map(
      lambda x: jnp.asarray(0.4 * rng.standard_normal(x.shape), x.dtype),
      jax.eval_shape(
          functools.partial(transformer.init, cfg=CFG), jax.random.key(0)))
  sampler = generate_lib.SamplerConfig(
      slots=5, max_response=T, **{'stop_ids': (1,), **options},
      stop_texts=stops.tabulate(texts, PIECES) if texts else None)
  return jax.jit(
      functools.partial(generate_lib.generate, cfg=CFG, sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})(
          params, Queue(Prompts(
              tokens=np.arange(12, dtype=np.int32).reshape(3, 4),
              length=np.array([4, 1, 3], np.int32),
              problem_id=np.array([7, 8, 9], np.int32)),
          Requests(
              prompt=np.repeat(np.arange(3, dtype=np.int32), R // 3),
              sample=np.arange(R, dtype=np.int32),
              budget=1 + np.arange(R, dtype=np.int32) % T), R),
          jax.random.key(1), SamplingParams(), 0)[0]


@pytest.mark.parametrize('texts, options', [
    ((b'ab',), {}), ((b'bab', b'\n\n'), dict(steps_per_refill=3)),
    (('bé'.encode(), b'ba', b'b\n'), dict(chunk=4, share_prompts=True)),
    ((b'aabba',), dict(stop_ids=(), prefill_prompts=1, unroll=True))])
def test_a_response_ends_with_the_token_that_completes_a_text(texts, options):
  """Up to there it is the response without texts."""
  plain = jax.device_get(responses(**options))
  got = jax.device_get(responses(texts, **options))
  shorter = at_the_budget = 0
  for row in range(R):
    length = int(plain.length[row])
    ends = [n for n in range(1, length + 1) if any(t in b''.join(
        PIECES[i] for i in plain.tokens[row, :n]) for t in texts)]
    want = min(ends, default=length)
    assert got.length[row] == want
    assert got.truncated[row] == (plain.truncated[row] and not ends)
    shorter += want < length
    at_the_budget += bool(ends) and want == 1 + row % T
    for name in ('tokens', 'logprobs', 'entropy'):
      ours, theirs = getattr(got, name)[row], getattr(plain, name)[row]
      if name == 'tokens':
        assert ours[:want].tolist() == theirs[:want].tolist()
      # Slots end earlier, so that sums over the cache have another order.
      np.testing.assert_allclose(
          ours[:want], theirs[:want], rtol=0, atol=typical(
              decoder(CFG, 4 + T), 13, magnitude=4))
      assert not ours[want:].any()
  assert 3 < shorter < R and at_the_budget
