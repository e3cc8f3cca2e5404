"""Tests of the task of expressions that the sandbox runs."""

import collections

import pytest

from benchmarks.claims import expressions
from jaxrl_llm.rewards import Verdict
from tests.helpers import bubblewrap


@pytest.fixture(scope='module')
def task():
  return expressions.create()


def test_values_are_those_of_python(task):
  for problem in task.train + task.heldout:
    for x in expressions.TESTED:
      names = {'__builtins__': {}, 'min': min, 'max': max, 'x': x}
      want = eval(problem.answer, names)  # pylint: disable=eval-used
      assert expressions.value(problem.answer, x) == want, problem
      assert problem.info.tests[x] == f'assert f({x}) == {want}'


def test_sets_have_no_function_in_common(task):
  tests = lambda problems: [problem.info.tests for problem in problems]
  known = tests(task.train) + tests(task.heldout)
  assert len({*known}) == len(known)
  prompts = [problem.prompt for problem in task.train + task.heldout]
  assert len({*prompts}) == len(prompts)
  values = {tuple(int(test.split()[-1]) for test in checks) for checks in known}
  shown, right = collections.Counter(), collections.Counter()
  for i in range(3000):
    problem, text = task.demonstration(i, seed=0)
    assert tuple(expressions.value(problem.answer, x)
                 for x in expressions.TESTED) not in values
    assert problem.prompt not in prompts
    shown[problem.kind] += 1
    right[problem.kind] += text == problem.answer
  for form in expressions.FORMS:
    share = expressions.HARD_SHOWN if form in expressions.HARD else (
        expressions.EASY_SHOWN)
    # Another expression is rarely the same; six deviations of about 500 draws.
    error = (share * (1 - share) / shown[form]) ** .5
    assert abs(right[form] / shown[form] - share) < 6 * error + .01, form


def test_the_vocabulary_and_the_limits_hold_all_problems(task):
  config = expressions.get_config()
  for problem in task.train + task.heldout:
    assert len(task.tokenizer.encode(problem.prompt)) <= config.max_prompt
    assert len(task.tokenizer.encode(problem.answer)) < config.max_response


def test_a_response_is_judged_once(task, monkeypatch):
  calls = []
  verdicts = {'1': Verdict(.5, 'wrong'), '2': Verdict(0.0, 'error', False),
              '3': Verdict(0.0, 'timeout')}

  def submit(self, problem, text, truncated):
    calls.append(text)
    return lambda: verdicts[text]

  monkeypatch.setattr(expressions.code.Code, 'submit', submit)
  problem, other = task.train[:2]
  for _ in range(3):
    for text, verdict in verdicts.items():
      assert task.submit(problem, text, False)() == verdict
  task.submit(other, '1', False)()
  # A sandbox that failed, and a program that was too slow, run again.
  assert calls == ['1', '2', '3', '2', '3', '2', '3', '1']


def test_equal_responses_of_a_step_run_once_and_runs_share_verdicts(
    tmp_path, monkeypatch):
  calls = []

  def submit(self, problem, text, truncated):
    calls.append(text)
    return lambda: Verdict(.5, 'wrong') if text == '1' else (
        Verdict(0.0, 'error', False))

  monkeypatch.setattr(expressions.code.Code, 'submit', submit)
  options = expressions.Options(known=str(tmp_path / 'known.jsonl'))
  for again in False, True:
    task = expressions.create(options=options)
    problem, calls[:] = task.train[0], []
    waits = [task.submit(problem, text, False) for text in '12112']
    assert [wait().reward for wait in waits] == [.5, 0, .5, .5, 0]
    assert calls == (['2'] if again else ['1', '2'])
    with open(options.known, 'a') as file:  # another process was killed
      file.write('[3, "x*')


@bubblewrap.NEEDED
def test_the_reward_is_the_share_of_tests(task):
  problem = next(p for p in task.train if p.kind == 'cap')
  verify = lambda text: expressions.create().verify(problem, text, False)
  assert verify(problem.answer) == Verdict(1.0, 'correct')
  same = sum(expressions.value(problem.answer, x) == 2 * x
             for x in expressions.TESTED)
  assert verify('x*2').reward == same / len(expressions.TESTED)
  assert verify('x)').kind == 'syntax_error'
