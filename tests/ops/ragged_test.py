"""Tests of copies between rows and lists against a slow twin.

Without a mesh there is one list. Several are in tests/learner/lists_test.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import ragged

L, T = 6, 5  # A prompt has at most L - 1 tokens without its last.


class Facts(NamedTuple):
  """Rows: [B] number and tokens of the prompt, tokens of the response."""
  prompt: np.ndarray
  before: np.ndarray
  length: np.ndarray


def facts_of(seed, count, groups=4):
  """Makes facts about rows; each seed below 4 is a special case."""
  rng = np.random.default_rng(seed)
  prompt = rng.integers(0, groups, count)
  before = rng.integers(0, L, groups)[prompt]
  length = rng.integers(0, T + 1, count)
  if seed == 1:
    length[:] = 0
  if seed == 2:  # Everything at its limit, every prompt another.
    prompt, before, length = np.arange(count), np.full(count, L - 1), np.full(
        count, T)
  if seed == 3:  # Few long rows among short ones.
    before, length = np.where(prompt > 0, 0, L - 1), np.where(
        rng.random(count) < .2, T, 1)
  return Facts(*np.int32((prompt, before, length)))


def tokens_of(facts):
  """Returns (row, column of the row) of each token of a list of the rows."""
  here = np.flatnonzero(facts.length)
  found = [(i, facts.before[i] + t) for i in here
           for t in range(facts.length[i])]
  seen = set()
  for i in here:
    if facts.prompt[i] not in seen:
      found += [(i, t) for t in range(facts.before[i])]
    seen.add(facts.prompt[i])
  return found


def places_of(facts, behind):
  """Returns the places of rows in a list of their tokens, see `tokens_of`.

  Rows without a response begin in the column `behind`, the list's end.
  """
  there = {token: column for column, token in enumerate(tokens_of(facts))}
  starts, end, places = {}, int(facts.length.sum()), []
  for i, (prompt, before, length) in enumerate(zip(*facts)):
    owner = length > 0 and prompt not in starts
    if owner:
      starts[prompt] = end
      end += before
    places.append((there.get((i, before), behind), starts.get(prompt, 0),
                   owner, before, length))
  return ragged.Lists(*map(jnp.asarray, map(np.array, zip(*places))))


@pytest.mark.parametrize('seed', range(6))
def test_what_is_in_a_column(seed):
  facts = facts_of(seed, 6)
  want, count = tokens_of(facts), 6 * (L + T)
  lists = places_of(facts, count)
  columns = ragged.columns(lists, count)
  assert columns.response.sum() == facts.length.sum()
  rng = np.random.default_rng(0)
  x, y = (rng.normal(size=size).astype(np.float32) for size in (
      (6, L + T), (6, T, 2)))
  tokens, after, of_response = (
      ragged.tokens(x, columns), ragged.tokens(x, columns, 1),
      ragged.response_tokens(y, columns, lists))
  sequences = {}
  for column, (i, c) in enumerate(want):
    assert columns.position[0, column] == c
    response = c >= facts.before[i]
    assert columns.response[0, column] == response
    assert tokens[0, column] == x[i, c]
    assert after[0, column] == x[i, min(c + 1, L + T - 1)]
    if response:
      np.testing.assert_array_equal(
          of_response[0, column], y[i, c - facts.before[i]])
    name = (i,) if response else ('prompt', facts.prompt[i])
    sequences.setdefault(int(columns.sequence[0, column]), set()).add(name)
    if facts.before[i]:
      parent = int(columns.parent[0, column])
      sequences.setdefault(parent, set()).add(('prompt', facts.prompt[i]))
    else:
      assert columns.parent[0, column] == -1
  assert all(len(names) == 1 for names in sequences.values())
  assert (np.asarray(columns.sequence)[0, len(want):] == -1).all()


@pytest.mark.parametrize('room', [0, 9])
@pytest.mark.parametrize('seed', range(6))
def test_rows_and_lists(seed, room):
  """Copies in both directions, and their gradients."""
  count = 6
  facts = facts_of(seed, count)
  want = tokens_of(facts)
  columns = max(len(want), 1) + room
  static = ragged.Static(columns, min(L, columns), min(T, columns))
  places = places_of(facts, columns)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(1, columns, 2)).astype(np.float32)
  y = rng.normal(size=(count, static.prompt + static.response, 2)).astype(
      np.float32)

  got, back = jax.vjp(lambda y: ragged.as_list(y, places, static), y)
  weight, grad = np.zeros_like(x), np.zeros_like(y)
  for column, (i, c) in enumerate(want):
    np.testing.assert_array_equal(got[0, column], y[i, c])
    weight[0, column] = grad[i, c] = x[0, column]
  np.testing.assert_array_equal(back(weight)[0], grad)

  # Each row reads its prompt from the first row that has it.
  of = {}
  for column, (i, c) in enumerate(want):
    sharing = np.flatnonzero(
        (facts.prompt == facts.prompt[i]) & (facts.length > 0))
    for j in sharing if c < facts.before[i] else [i]:
      of[j, c] = column
  assert len(of) == sum((facts.before + facts.length)[facts.length > 0])
  got, back = jax.vjp(lambda x: ragged.rows(x, places, static), x)
  weight, grad = np.zeros_like(y), np.zeros_like(x)
  for (i, c), column in of.items():
    np.testing.assert_array_equal(got[i, c], x[0, column])
    weight[i, c] = y[i, c]
    grad[0, column] += y[i, c]
  # Sums of at most 6 numbers of size 1.
  np.testing.assert_allclose(back(weight)[0], grad, rtol=1e-6, atol=1e-6)

  got = ragged.responses(x, places, static)
  for i in range(count):
    for t in range(facts.length[i]):
      np.testing.assert_array_equal(
          got[i, t], x[0, of[i, facts.before[i] + t]])
