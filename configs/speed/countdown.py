"""SPEED on Countdown, where a third of the prompts are hardly ever solved.

  python -m jaxrl_llm.train --config=configs/speed/countdown.py

Before RL the model solves about 99% of problems with two numbers, 40% of those
with three, and almost none that needs a product of four. Each step screens 64
prompts with 4 samples, and continues those that qualified in the step before
with 12 more; 16 prompts make a train batch. On one core this takes about a
minute after the warm start of three. Held-out pass@1 rises from .35 to .55;
benchmarks/results/claims/speed.md compares it with RLOO and DAPO without SPEED.

Beside the paper, as python -m configs.papers writes it:
- samples_per_prompt=16, in the paper 24 (section 5.1): a smaller model.
- speed.rule=signal, in the paper pass_rate (Algorithm 1): the default, ours.
- loss.aggregation=token_mean, in the paper constant (Eq. 7, a sum over tokens):
  as configs/countdown.py.
- not given in the paper: speed.n_init=4.
"""

from jaxrl_llm.configs import countdown

PAPER = 'speed/countdown'


def get_config():
  """Returns the config."""
  c = countdown.get_config()
  c.steps = 80
  c.prompts_per_step = 16
  c.curriculum_prompts = 64
  c.samples_per_prompt = 16
  c.task.kinds = ('two', 'three', 'product4')
  c.task.solved = (1.0, 0.6, 0.0)
  c.task.train = (200, 750, 540)
  c.task.heldout = (24, 160, 40)

  c.curriculum = 'speed'
  c.speed.n_init = 4
  c.advantage = 'rloo'

  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 5e-4
  c.optimizer.schedule = 'constant'
  c.eval.samples = 8
  c.eval.k = (1, 8)
  c.eval.every = 5
  c.checkpoint.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep: samples of a screen, and the paper's rule; three seeds."""
  return hyper.product([
      hyper.chainit([
          hyper.sweep('speed.n_init', [4, 6, 8]),
          hyper.fixed('speed.rule', 'pass_rate')]),
      hyper.sweep('seed', [0, 1, 2])])
