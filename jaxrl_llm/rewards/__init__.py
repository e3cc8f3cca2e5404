"""Verdicts: what a verifier says of one response, and how a batch is judged."""

import dataclasses
from typing import Any, Callable, Sequence

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
    answer: what was answered, in a form that equal answers share, for majority
      votes; '' for no answer.
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
  """Judges each response by itself: `submit`, and waits for the verdicts."""
  return submit(task, problems, responses, truncated)()


def submit(
    task: Any,
    problems: Sequence[Any],
    responses: Sequence[str],
    truncated: Sequence[bool],
) -> Callable[[], list[Verdict]]:
  """Starts to judge responses; a failing verifier spoils one row only.

  Args:
    task: has `verify(problem, text, truncated) -> Verdict`; or `submit`, of
      the same arguments, which starts elsewhere and returns a function that
      waits for the verdict.
    problems: the problem of each response.
    responses: decoded texts, without the stop token.
    truncated: whether the budget, not a stop token, ended the response.

  Returns:
    A function that gives one verdict per response, in their order. Where the
    verifier raised, or gave a reward that is no finite number, the kind is
    'error' and `valid` is False. ChildProcessError, a verifier that cannot be
    started at all, is passed on.

  Raises:
    ValueError: the three sequences differ in length.
  """
  sizes = len(problems), len(responses), len(truncated)
  if len(set(sizes)) > 1:
    raise ValueError(
        'verify_all got {} problems, {} responses and {} truncation flags: '
        'give one of each per response.'.format(*sizes))
  rows = [(problem, response, bool(cut))
          for problem, response, cut in zip(problems, responses, truncated)]
  if hasattr(task, 'submit'):
    waits = [_submitted(task.submit, *row) for row in rows]
    return lambda: [_guarded(wait) for wait in waits]
  return lambda: [_guarded(task.verify, *row) for row in rows]


def _submitted(submit: Callable[..., Any], *row: Any) -> Callable[[], Verdict]:
  """Returns a function that waits for the verdict, or that gives an error."""
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
  """The verdict, or that there is none."""
  try:
    verdict = verify(*row)
    if not abs(verdict.reward) <= _LARGEST:
      raise ValueError(f'the reward is {verdict.reward}')
    return verdict
  except ChildProcessError:
    raise
  except Exception as e:  # Whatever a verifier does, the run goes on.
    return _failed(e)
