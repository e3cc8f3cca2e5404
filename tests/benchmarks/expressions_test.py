"""Tests of the task of expressions that the sandbox runs."""

import collections

import pytest

from benchmarks.claims import expressions
from jaxrl_llm.rewards import sandbox, Verdict
from jaxrl_llm.tasks import Problem
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
      assert problem.info[x] == want


def test_sets_have_no_function_in_common(task):
  values = [problem.info for problem in task.train + task.heldout]
  assert len({*values}) == len(values)
  prompts = [problem.prompt for problem in task.train + task.heldout]
  assert len({*prompts}) == len(prompts)
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


def test_a_text_runs_once_and_runs_share_what_it_prints(tmp_path, monkeypatch):
  ran = []

  class Sandbox:
    """Prints x, what is in the text, or nothing in time."""

    def run(self, program, *, limits):
      del limits
      text = program.splitlines()[1].strip().removeprefix('return ')
      ran.append(text)
      out = {'x': '\n'.join(map(str, expressions.TESTED)), 'x)': '',
             '1': '1.0\n' * 10, '9**9**9': ''}[text]
      return sandbox.Result(
          {'x)': 'exit', '9**9**9': 'timeout'}.get(text, 'ok'), 0,
          out.encode(), b'', .1, 0)

  monkeypatch.setattr(expressions, '_executor', Sandbox)
  options = expressions.Options(known=str(tmp_path / 'known.jsonl'))
  ones = Problem(0, '1>', 'line', '1', (1,) * 9 + (2,))
  line = Problem(1, '0>', 'line', 'x', tuple(expressions.TESTED))
  for again in False, True:
    task, ran[:] = expressions.create(options=options), []
    judge = lambda problem, text: task.verify(problem, text, False)
    for _ in range(2):
      assert judge(line, 'x') == Verdict(1.0, 'correct')
      assert judge(ones, 'x') == Verdict(.1, 'wrong')
      assert judge(ones, '1') == Verdict(.9, 'wrong')
      assert judge(ones, 'x)') == Verdict(0.0, 'exit')
      assert judge(ones, '9**9**9') == Verdict(0.0, 'timeout')
    # A program that was too slow runs again.
    assert ran == ([] if again else ['x', '1', 'x)']) + ['9**9**9'] * 2
    with open(options.known, 'a') as file:  # another process was killed
      file.write('["x*')


@bubblewrap.NEEDED
def test_the_reward_is_the_share_of_right_values(task):
  problem = next(p for p in task.train if p.kind == 'cap')
  verify = lambda text: expressions.create().verify(problem, text, False)
  assert verify(problem.answer) == Verdict(1.0, 'correct')
  same = sum(expressions.value(problem.answer, x) == 2 * x
             for x in expressions.TESTED)
  assert verify('x*2').reward == same / len(expressions.TESTED)
  assert verify('x*2+0//x').reward == (same - (problem.info[0] == 0)) / 10
  assert verify('x*2/1').reward == same / len(expressions.TESTED)
  assert verify('x)').kind == 'exit'
  assert verify('9**9**9**9').kind in ('timeout', 'memory')
