"""A tool of several turns: calculations of two steps with a calculator.

  python -m jaxrl_llm.train --config=configs/turns/calculator.py

The prompt is a calculation such as 47*12+35=. The model may call a calculator,
?47*12, reads the result, 564, and goes on; a turn without ? is its answer. The
reward is 1 for the right number. `:without` has no calculator: the model has to
answer in its first turn.

The model is warm-started on demonstrations, of which one in ten makes both
calls and ends with the right answer. Those of `:without` are all right answers,
the best that it can be shown. On two cores a run takes a minute and a quarter,
with its warm start. The settings were chosen on seed 100.
benchmarks/results/claims/turns.md compares the two over five others.
"""

from jaxrl_llm.configs.turns import game


def get_config(arg=None):
  """Returns the config; the argument 'without' leaves the calculator out."""
  if arg not in (None, '', 'without'):
    raise ValueError(f'{arg!r} is no variant: leave it out, or use without.')
  c = game.get_config()
  c.steps = 150
  c.max_prompt = 9
  c.max_response = 32
  c.task.name = 'jaxrl_llm.examples.calculations'
  c.task.tool = arg != 'without'
  # Sets the pass rate at the start of RL.
  c.task.solved = 0.1 if c.task.tool else 1.0
  c.sft.steps = 1500
  return c


def get_hyper(hyper):
  """Returns a sweep: with the calculator and without, three seeds each."""
  return hyper.product([
      hyper.zipit([hyper.sweep('task.tool', [True, False]),
                   hyper.sweep('task.solved', [0.1, 1.0])]),
      hyper.sweep('seed', [0, 1, 2])])
