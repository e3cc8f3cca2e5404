"""Tests of copies between rows and lists against a slow twin.

Without a mesh there is one list. Several are in tests/learner/prompts_test.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.ops import ragged

L, T = 6, 5  # A prompt has at most L - 1 tokens without its last.


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
  return ragged.Rows(*np.int32((prompt, before, length)))


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


@pytest.mark.parametrize('room', [0, 9])
@pytest.mark.parametrize('seed', range(6))
def test_rows_and_lists(seed, room):
  """Copies in both directions, and their gradients."""
  count = 6
  facts = facts_of(seed, count)
  want = tokens_of(facts)
  columns = max(len(want), 1) + room
  static = ragged.Static(columns, min(L, columns), min(T, columns))
  places = ragged.places(jax.tree.map(jnp.asarray, facts), count)
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
