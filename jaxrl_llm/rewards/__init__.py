"""Verdicts of a task's verifier, and the verification of a batch."""

import collections
import dataclasses
import functools
import inspect
import traceback
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from jaxrl_llm.base import phases, plain, process_state

_TRACE_LINES, _TRACE_WIDTH = 12, 160  # limits of `Verdict.trace`
_KIND = 60  # characters of `Verdict.kind`
# The largest reward; the squares of a group's are summed in float32.
LARGEST = 1e15


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
    trace: last lines of the traceback of the verifier's error; '' for none.
    blame: sentence about the user's code that gave no reward; '' for none.
    rewards: name to the number of each of several rewards, of which `reward` is
      made; None for one that does not count.
    logged: name to a number; the step's metric is the mean over its responses.
    extra: name to any other value, for the response's record.
  """
  reward: float
  kind: str
  valid: bool = True
  detail: str = ''
  answer: str = ''
  trace: str = ''
  blame: str = dataclasses.field(default='', compare=False)
  rewards: Mapping[str, float | None] = dataclasses.field(
      default_factory=dict, compare=False)
  logged: Mapping[str, float] = dataclasses.field(
      default_factory=dict, compare=False)
  extra: Mapping[str, Any] = dataclasses.field(
      default_factory=dict, compare=False)


class Facts(NamedTuple):
  """Facts about responses beside their texts.

  Attributes:
    tokens: token ids of each response, with the one that ended it.
    step: steps of the run that were done before.
    steps: steps that the run takes in all.
    messages: of trajectories, the messages of each: `role`, `content`, ...
    last: of trajectories, the number of tokens of the last turn of each.
  """
  tokens: Sequence[Sequence[int]]
  step: int = 0
  steps: int = 0
  messages: Sequence[Sequence[Mapping[str, Any]]] = ()
  last: Sequence[int] = ()


class VerifierError(ValueError):
  """Raised if a verifier returns something that is not a reward, or gives none
  to any response of a step, or of a few in a row.

  It ends the run. Any other error of a verifier affects only the responses that
  it judged.
  """


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
    facts: Facts | None = None,
) -> Callable[[], list[Verdict]]:
  """Starts to judge responses. A verifier that fails affects only its own row.

  Args:
    task: has `verify(problem, text, truncated) -> Verdict`; or `submit` with
      the same arguments, which starts the verification outside of this thread
      and returns a function that waits for the verdict; or `judge(problems,
      texts, truncated) -> [Verdict]`, which is called once for all responses,
      also with `facts` if it takes them.
    problems: the problem of each response.
    responses: decoded texts, see `Tokenizer.decode`.
    truncated: whether the length limit ended each response, not a stop token.
    facts: for `judge`; None if they are not known.

  Returns:
    A function that waits and returns one verdict per response, in order, whose
    texts can be written anywhere. If the verifier raised anything but
    KeyboardInterrupt, or its reward is above `LARGEST` or no number, or one
    of its `rewards` and `logged` is none, the kind is 'error' and `valid` is
    False; if `judge` raised it, this holds for every response. The
    function raises ChildProcessError if the verifier cannot be started at
    all, and VerifierError if `judge` does not return a verdict per response.

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
  if hasattr(task, 'judge'):
    more = {'facts': facts} if facts and (
        'facts' in inspect.signature(task.judge).parameters) else {}
    return lambda: _judged(task.judge, rows, more)
  if hasattr(task, 'submit'):
    with process_state.code():
      waits = [_submitted(task.submit, *row) for row in rows]
    return lambda: _each(waits)
  return lambda: _each([functools.partial(task.verify, *row) for row in rows])


def _each(calls: Sequence[Callable[[], Verdict]]) -> list[Verdict]:
  """Returns the verdict of each call, in a phase that counts them."""
  with process_state.code():
    return [_guarded(call) for call in phases.counted(
        calls, 'verification', 'responses')]


def _called(
    verifier: Callable[..., Any], *args: Any, **more: Any
) -> tuple[Any, Verdict | None]:
  """Calls a verifier; returns its result, or an 'error' verdict if it failed.
  """
  try:
    with process_state.code():
      return verifier(*args, **more), None
  except (ChildProcessError, VerifierError, KeyboardInterrupt):
    raise
  except BaseException as e:  # Nothing else may end the run.
    return None, Verdict(
        0.0, 'error', False, plain.error(e), trace=last_lines(e))


def _submitted(submit: Callable[..., Any], *row: Any) -> Callable[[], Verdict]:
  """Submits a response; a failure to submit becomes an 'error' verdict."""
  wait, failed = _called(submit, *row)
  return (lambda: failed) if failed else wait


def last_lines(error: BaseException) -> str:
  """Returns the last lines of an error's traceback, long ones shortened."""
  try:
    lines = ''.join(traceback.format_exception(error)).splitlines()
  except Exception:  # Some errors cannot be formatted.
    lines = [plain.error(error)]
  lines = [plain.text(line) for line in lines]
  return '\n'.join(line[:_TRACE_WIDTH] for line in lines[-_TRACE_LINES:])


def check_step(verdicts: Sequence[Verdict], texts: Sequence[str]) -> None:
  """Checks that the verifier gave a reward to a response of a step.

  Args:
    verdicts: verdicts of the step.
    texts: the response of each verdict.

  Raises:
    VerifierError: there are verdicts, and none is valid; with the number of
      each kind, and the user's code that gave no reward, or the first error
      and the response that it was given.
  """
  if not verdicts or any(v.valid for v in verdicts):
    return
  first: dict[str, Verdict] = {}
  for verdict in verdicts:
    first.setdefault(verdict.kind, verdict)
  said = f'None of the {len(verdicts)} responses of the step has a reward'
  if len(first) > 1:
    said += f' ({counts([v.kind for v in verdicts])})'
  if blames := dict.fromkeys(v.blame for v in first.values() if v.blame):
    raise VerifierError(
        f'{said}, since {"; and ".join(b.rstrip(".") for b in blames)}.')
  if first.keys() == {'skipped'}:
    raise VerifierError(
        f'The verifier skipped all {len(verdicts)} responses of the step: '
        'correct the verifier.')
  if len(first) == 1:
    said = f'The verifier failed on all {len(verdicts)} responses of the step'
  worst = first.get('error', verdicts[0])
  text = texts[verdicts.index(worst)]
  text = text if len(text) <= 200 else f'{text[:197]}...'
  raise VerifierError(
      f'{said}, first with\n{worst.trace or worst.detail or worst.kind}\nfor '
      f'the response {text!r}: correct the verifier.')


def counts(kinds: Sequence[str]) -> str:
  """Returns how many verdicts there are of each kind, as text."""
  found = collections.Counter(kinds)
  return ', '.join(f'{found[kind]} {kind}' for kind in sorted(found))


def _judged(
    judge: Callable[..., Sequence[Verdict]],
    rows: Sequence[tuple[Any, str, bool]],
    more: Mapping[str, Any]) -> list[Verdict]:
  """Returns the verdicts of one call, or 'error' verdicts if it failed."""
  if not rows:
    return []
  verdicts, failed = _called(judge, *map(list, zip(*rows)), **more)
  if failed:
    return [failed] * len(rows)
  if not isinstance(verdicts, (list, tuple)) or len(verdicts) != len(rows):
    raise VerifierError(
        f'judge of the task returned {plain.shown(verdicts)} for {len(rows)} '
        'responses: return a list with one Verdict per response.')
  return [_guarded(lambda v=v: v) for v in verdicts]


def _number(value: Any) -> float | None:
  """Returns a number of a verdict, or None; raises an error for all else."""
  found = plain.number(value)
  if found is None and value is not None:
    raise ValueError(f'{plain.shown(value)} is no number')
  return found


def _guarded(verify: Callable[[], Verdict]) -> Verdict:
  """Returns the verdict, or an 'error' verdict if the verifier failed."""
  verdict, failed = _called(lambda: _plain(verify()))
  return failed or verdict


def _plain(verdict: Verdict) -> Verdict:
  """Returns a verdict whose texts can be written, after a check of its numbers.
  """
  reward = plain.number(verdict.reward)
  if reward is None or not abs(reward) <= LARGEST:
    raise ValueError(f'the reward is {plain.shown(verdict.reward)}')
  # A kind is also the name of a metric.
  return Verdict(
      reward, plain.line(verdict.kind)[:_KIND] or 'none',
      bool(verdict.valid), plain.text(verdict.detail),
      plain.text(verdict.answer), plain.text(verdict.trace),
      plain.line(verdict.blame), *(
          {plain.line(name)[:_KIND]: convert(value)
           for name, value in named.items()} for named, convert in (
               (verdict.rewards, _number), (verdict.logged, _number),
               (verdict.extra, lambda value: value))))
