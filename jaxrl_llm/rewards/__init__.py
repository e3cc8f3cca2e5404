"""Verdicts: what a verifier says of one response, and how a batch is judged."""

import dataclasses
from typing import Any, Sequence

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The judgement of one response.

  Attributes:
    reward: what the learner maximises.
    kind: the reason in a word, for counting: 'correct', 'malformed', ...
    valid: False if the verifier itself failed. Such a sample leaves its group;
      its reward means nothing.
    detail: one line for a person, such as the verifier's error.
  """
  reward: float
  kind: str
  valid: bool = True
  detail: str = ''


def verify_all(
    task: Any,
    problems: Sequence[Any],
    responses: Sequence[str],
    truncated: Sequence[bool],
) -> list[Verdict]:
  """Judges each response by itself; a failing verifier spoils one row only.

  Args:
    task: has `verify(problem, text, truncated) -> Verdict`.
    problems: the problem of each response.
    responses: decoded texts, without the stop token.
    truncated: whether the budget, not a stop token, ended the response.

  Returns:
    One verdict per response, in their order. Where `verify` raised, or gave a
    reward that is no finite number, its kind is 'error' and `valid` is False.

  Raises:
    ValueError: the three sequences differ in length.
  """
  sizes = len(problems), len(responses), len(truncated)
  if len(set(sizes)) > 1:
    raise ValueError(
        'verify_all got {} problems, {} responses and {} truncation flags: '
        'give one of each per response.'.format(*sizes))

  def judge(problem, response, cut):
    try:
      verdict = task.verify(problem, response, bool(cut))
      if not abs(verdict.reward) <= _LARGEST:
        raise ValueError(f'the reward is {verdict.reward}')
      return verdict
    except Exception as e:  # Whatever a verifier does, the run goes on.
      return Verdict(0.0, 'error', False, f'{type(e).__name__}: {e}')

  return [judge(*row) for row in zip(problems, responses, truncated)]
