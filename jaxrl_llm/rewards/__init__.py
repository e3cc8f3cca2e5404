"""Verdicts of a task's verifier, and the verification of a batch."""

import dataclasses
from typing import Any, Callable, Sequence

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Result of the verification of one response.

  Attributes:
    reward: the value that the learner maximises.
    kind: the reason in one word, for counting: 'correct', 'malformed', ...
    valid: False if the verifier itself failed. Such a sample leaves its group,
      and its reward is ignored.
    detail: one line for the reader, such as the verifier's error.
    answer: the answer in a canonical form, for majority votes; '' for none.
  """
  reward: float
  kind: str
  valid: bool = True
  detail: str = ''
  answer: str = ''


def verify_all(
    task: Any,
    problems: Sequence[Any],
    responses: Sequence[str],
    truncated: Sequence[bool],
) -> list[Verdict]:
  """Judges each response on its own: calls `submit` and waits."""
  return submit(task, problems, responses, truncated)()


def submit(
    task: Any,
    problems: Sequence[Any],
    responses: Sequence[str],
    truncated: Sequence[bool],
) -> Callable[[], list[Verdict]]:
  """Starts to judge responses. A verifier that fails affects only its own row.

  Args:
    task: has `verify(problem, text, truncated) -> Verdict`; or `submit` with
      the same arguments, which starts the verification outside of this thread
      and returns a function that waits for the verdict.
    problems: the problem of each response.
    responses: decoded texts, without the stop token.
    truncated: whether the length limit ended each response, not a stop token.

  Returns:
    A function that waits and returns one verdict per response, in order. If the
    verifier raised an error, or its reward is not finite, the kind is 'error'
    and `valid` is False. The function raises ChildProcessError if the verifier
    cannot be started at all.

  Raises:
    ValueError: the three sequences differ in length.
  """
  sizes = len(problems), len(responses), len(truncated)
  if len(set(sizes)) > 1:
    raise ValueError(
        'verify_all got {} problems, {} responses and {} truncation flags: '
        'pass one of each per response.'.format(*sizes))
  rows = [(problem, response, bool(cut))
          for problem, response, cut in zip(problems, responses, truncated)]
  if hasattr(task, 'submit'):
    waits = [_submitted(task.submit, *row) for row in rows]
    return lambda: [_guarded(wait) for wait in waits]
  return lambda: [_guarded(task.verify, *row) for row in rows]


def _submitted(submit: Callable[..., Any], *row: Any) -> Callable[[], Verdict]:
  """Submits a response; a failure to submit becomes an 'error' verdict."""
  try:
    return submit(*row)
  except ChildProcessError:
    raise
  except Exception as e:
    verdict = _failed(e)
    return lambda: verdict


def _failed(e: Exception) -> Verdict:
  return Verdict(0.0, 'error', False, f'{type(e).__name__}: {e}')


def _guarded(verify: Callable[..., Verdict], *row: Any) -> Verdict:
  """Returns the verdict, or an 'error' verdict if the verifier failed."""
  try:
    verdict = verify(*row)
    if not abs(verdict.reward) <= _LARGEST:
      raise ValueError(f'the reward is {verdict.reward}')
    return verdict
  except ChildProcessError:
    raise
  except Exception as e:  # A verifier's error must not end the run.
    return _failed(e)
