"""Turns of a task: its environment in worker processes, its observations."""

import functools
import os
from typing import Any, Callable, Sequence

from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.environments import Limits, Reply
from jaxrl_llm.rewards import VerifierError
from jaxrl_llm.rewards.pool import Pool, Pooled

_BYTES = 4  # of a character, at most
_OBSERVED = 'Observation-1'  # shows where a chat template puts it


class Turns(Pooled):
  """The environment of a task.

  Attributes:
    limits: of a trajectory.
    rewards: whether the environment gives the reward; else the task judges the
      last turn.
  """

  def __init__(
      self, name: str, limits: Limits, *, markup: bool, timeout: float,
      workers: int = 0, rewards: bool = True):
    """Makes the turns without starting a process.

    Args:
      name: FILE.py of the environment, or its module's name.
      limits: of a trajectory.
      markup: whether observations are turns of a chat, in the markup of the
        model's template; else they follow a turn as they are.
      timeout: seconds for a step, and for the steps before it if they are done
        again, as the worker that had the state has ended.
      workers: number of processes; 0 for one per core, at most 8.
      rewards: whether the environment gives the reward.
    """
    self.limits, self.rewards = limits, rewards
    self._name, self._markup = name, markup
    self._new_pool = lambda: Pool(
        'jaxrl_llm.environments.worker:step', seconds=timeout,
        workers=workers or min(os.cpu_count() or 1, 8), keyed=rewards)

  def submit(
      self, problem: Any, seed: int, texts: Sequence[str],
      observations: Sequence[str]) -> Callable[[], Reply]:
    """Starts the step of a trajectory.

    Args:
      problem: a `tasks.Problem`. Its `info` is what `reset` gets, its `text`
        the prompt that `reset` must return.
      seed: of the trajectory.
      texts: what the model wrote, turn by turn; the last is new.
      observations: what it read after each of the turns before.

    Returns:
      A function that waits for the reply. It raises VerifierError if
      earlier turns are answered in another way now.
    """
    if self._pool is None:
      self._pool = self._new_pool()
    waiting = self._pool.submit(dict(
        name=self._name, key=str(problem.id), seed=seed, texts=[*texts],
        problem=problem.info if self.rewards else None,
        prompt=problem.text if self.rewards else '',
        observations=[*observations]), seed)

    def wait():
      found = waiting.result()
      if found['kind'] == 'differs':
        raise VerifierError(f'{found["detail"]}.')
      return Reply(
          found.get('observation'), found.get('reward', 0.0), found['kind'],
          found.get('detail', ''))

    return wait

  def follow(
      self, tokenizer: Tokenizer, observation: str, turn: Sequence[int],
  ) -> tuple[int, list[int]]:
    """Returns how many tokens of a turn stay, and the tokens that follow them.

    In a chat, the text between two turns is the template's, whatever has ended
    the first one: a stop token that the template does not write there is left
    out, and so is the last token of a text that ends otherwise than there.

    Args:
      tokenizer: of the model.
      observation: what the model reads.
      turn: tokens of the turn, with those that ended it.
    """
    if not self._markup:
      return len(turn), self.append(tokenizer, observation, turn[-1])
    head, _ = _around(tokenizer.next_turn)
    spelled, last = tokenizer.spell(turn), tokenizer.spell(turn[-1:])
    by_token = turn[-1] in tokenizer.stop_ids
    end = last if by_token else max(
        (text for text in getattr(tokenizer, 'markup', ())
         if text in spelled), key=len, default='')
    written = _overlap(spelled, head)
    if len(written) >= len(end):
      return len(turn), self.append(
          tokenizer, observation, turn[-1], '' if written == last else written)
    written = '' if by_token else _overlap(tokenizer.spell(turn[:-1]), head)
    return len(turn) - 1, self.append(tokenizer, observation, -1, written)

  def append(
      self, tokenizer: Tokenizer, observation: str, last: int,
      written: str = '') -> list[int]:
    """Returns the tokens that follow a turn, the observation among them.

    The observation is plain text: no text in it is a special token.

    Args:
      tokenizer: of the model.
      observation: what the model reads.
      last: the turn's last token, which may be the markup's first; -1 if it is
        known not to be.
      written: beginning of the markup that the turn has already, if it is more
        than `last`.

    Raises:
      ValueError: the tokeniser has no token for a part of the observation.
    """
    encode = getattr(tokenizer, 'encode_plain', tokenizer.encode)
    try:
      ids = encode(observation)
    except ValueError as error:
      raise ValueError(
          f'The tokeniser cannot read an observation of {self._name} '
          f'({str(error).rstrip(".")}): change what the environment says.'
      ) from None
    if len(ids) > self.limits.observation:
      observation, ids = _beginning(
          tokenizer, observation, ids[:self.limits.observation])
    if not self._markup:
      return ids
    text = tokenizer.next_turn(observation)
    if tokenizer.encode(observation) == encode(observation):
      ids = tokenizer.encode(text.removeprefix(written))
    else:
      head, tail = _around(tokenizer.next_turn)
      ids = [*tokenizer.encode(head.removeprefix(written)),
             *encode(text[len(head):len(text) - len(tail)]),
             *tokenizer.encode(tail)]
    return ids[1:] if ids[:1] == [last] else ids


@functools.lru_cache(4)
def _around(next_turn: Callable[[str], str]) -> tuple[str, str]:
  """Returns what a chat template writes before an observation, and behind it.
  """
  head, _, tail = next_turn(_OBSERVED).partition(_OBSERVED)
  return head, tail


def _beginning(
    tokenizer: Tokenizer, text: str, ids: list[int]) -> tuple[str, list[int]]:
  """Returns the text and ids of a beginning that ends with a character.

  Args:
    tokenizer: of the model.
    text: the whole text.
    ids: its first tokens, the last of which may end within a character.
  """
  spell = getattr(tokenizer, 'spell', tokenizer.decode)
  for size in range(len(ids), max(len(ids) - _BYTES, -1), -1):
    found = spell(ids[:size])
    # Some tokenisers leave out the first space.
    if text.lstrip().startswith(found.lstrip()):
      return found, ids[:size]
  return spell(ids), ids


def _overlap(before: str, after: str) -> str:
  """Returns the longest end of a text that another one begins with."""
  return next(after[:size] for size in range(
      min(len(before), len(after)), -1, -1) if before.endswith(after[:size]))
