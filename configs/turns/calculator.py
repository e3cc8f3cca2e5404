"""A tool of several turns: calculations of two steps with a calculator.

  python -m jaxrl_llm.train --config=configs/turns/calculator.py

The prompt is a calculation such as 47*12+35=. The model may call a calculator,
?47*12, reads the result, 564, and goes on; a turn without ? is its answer. The
reward is 1 for the right number. `:without` has no calculator: the model has to
answer in its first turn.

The model is warm-started on demonstrations, of which one in ten makes both
calls and ends with the right answer. Those of `:without` are all right answers,
the best that it can be shown.
"""

from jaxrl_llm import config


def get_config(arg=None):
  """Returns the config; the argument 'without' leaves the calculator out."""
  if arg not in (None, '', 'without'):
    raise ValueError(f'{arg!r} is no variant: leave it out, or use without.')
  c = config.base()
  c.steps = 150
  c.prompts_per_step = 64
  c.samples_per_prompt = 8
  c.max_prompt = 9
  c.max_response = 32
  c.task.name = 'calculations'
  c.task.tool = arg != 'without'
  # Sets the pass rate at the start of RL.
  c.task.solved = 0.1 if c.task.tool else 1.0

  c.model.vocab_size = 32
  c.model.width = 64
  c.model.layers = 2
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp_width = 128

  c.warm_start.steps = 1500
  c.warm_start.learning_rate = 3e-3

  c.mesh.cpu_devices = 2
  c.sampling.slots = 64

  c.drop_zero_advantage = True
  c.loss.entropy_bonus = 0.01
  c.optimizer.learning_rate = 2e-3
  c.optimizer.schedule = 'linear'
  c.optimizer.warmup_steps = 5
  c.eval.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep: with the calculator and without, three seeds each."""
  return hyper.product([
      hyper.sweep('task.tool', [True, False]), hyper.sweep('seed', [0, 1, 2])])
