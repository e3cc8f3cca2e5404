"""Ends of a response: token ids, and texts that many token sequences spell.

A text may begin and end inside of tokens, and its bytes may be split between
them in many ways. So the bytes of the tokens drive an automaton (Aho and
Corasick) whose state is the longest end of the response that begins a text.
A decode step looks up the state after a token in a table. Tokens that lead from
every state to the same one share a row: most tokens spell no part of a text.
"""

from typing import NamedTuple, Sequence

import jax
import jax.numpy as jnp
import numpy as np

_TOGETHER = 4096  # tokens that are tabulated at a time


class StopTexts(NamedTuple):
  """Automaton of the texts that end a response.

  Attributes:
    kind: [V] int32, row of each token in `after`.
    after: [kinds, states] int32, state after a token, by the state before it.
      State 0 is the beginning; the last state means that a text is complete.
  """
  kind: np.ndarray
  after: np.ndarray

  def advance(self, state: jax.Array, token: jax.Array) -> jax.Array:
    """Returns the states after tokens, both [S] int32."""
    return jnp.asarray(self.after)[jnp.asarray(self.kind)[token], state]

  def complete(self, state: jax.Array) -> jax.Array:
    """Returns whether a text is complete in each state."""
    return state == self.after.shape[1] - 1


class Stops(NamedTuple):
  """Stop tokens and stop texts of a response.

  Attributes:
    ids: tokens.
    texts: automaton of texts; None if there are none.
    closing: tokens that end a chat behind its last answer, from the answer's
      stop token on; () without a chat format that ends answers with one.
  """
  ids: tuple[int, ...]
  texts: StopTexts | None = None
  closing: tuple[int, ...] = ()


def automaton(texts: Sequence[bytes]) -> np.ndarray:
  """Makes the automaton that finds the first end of any of the texts.

  Args:
    texts: any number, none of them empty.

  Returns:
    [states, 256] int32, state after a byte; see `StopTexts` for the states.
  """
  children, ends = [{}], set()  # of each beginning of a text, in a tree
  for text in texts:
    node = 0
    for byte in text:
      if byte not in children[node]:
        children[node][byte] = len(children)
        children.append({})
      node = children[node][byte]
    ends.add(node)
  done = len(children)
  after = np.zeros((done + 1, 256), np.int32)
  after[done] = done  # tokens after a complete text change nothing
  queue = [(0, None)]  # nodes, with their longest own end that is a node
  for node, shorter in queue:
    if shorter is not None:
      after[node] = after[shorter]
    for byte, child in children[node].items():
      back = after[node, byte]
      if back == done or child in ends:  # the rest of a longer text is moot
        after[node, byte] = done
      else:
        after[node, byte] = child
        queue.append((child, back))
  # Nodes that end a text, or come after one, are never reached.
  kept = [node for node, _ in queue]
  number = np.zeros(done + 1, np.int32)
  number[[*kept, done]] = np.arange(len(kept) + 1)
  return number[after[[*kept, done]]]


def tabulate(texts: Sequence[bytes], pieces: Sequence[bytes]) -> StopTexts:
  """Makes the automaton's table over tokens.

  Args:
    texts: any number, none of them empty.
    pieces: V, the bytes that each token adds to a text.
  """
  # By bytes: a token may hold a part of a character, or the end of one text and
  # the beginning of another.
  after = automaton(texts)
  kind, rows = np.zeros(len(pieces), np.int32), {}
  for first in range(0, len(pieces), _TOGETHER):
    part = pieces[first:first + _TOGETHER]
    length = np.array([*map(len, part)])
    byte = np.zeros((len(part), max(length.max(), 1)), np.uint8)
    for row, piece in zip(byte, part):
      row[:len(piece)] = [*piece]
    state = np.tile(np.arange(len(after), dtype=np.int32), (len(part), 1))
    for column in range(length.max()):
      longer = np.flatnonzero(length > column)
      state[longer] = after[state[longer], byte[longer, column, None]]
    different, inverse = np.unique(state, axis=0, return_inverse=True)
    number = [rows.setdefault(row.tobytes(), len(rows)) for row in different]
    kind[first:first + _TOGETHER] = np.array(number)[inverse.reshape(-1)]
  return StopTexts(
      kind, np.stack([np.frombuffer(row, np.int32) for row in rows]))
