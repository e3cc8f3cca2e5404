"""SPEED on Countdown, where a third of the prompts are never solved.

  python -m jaxrl_llm.train --config=configs/speed/countdown.py
"""

from configs import countdown


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = countdown.get_config(arg)
  c.steps = 60
  c.prompts_per_step = 16
  c.curriculum_prompts = 64
  c.samples_per_prompt = 16
  c.task.kinds = ('two', 'three', 'product4')
  c.task.solved = (1.0, 0.8, 0.0)
  c.task.shown = (120, 600, 200)
  c.task.train = (64, 340, 220)
  c.task.heldout = (32, 100, 60)

  c.curriculum = 'speed'
  c.speed.n_init = 4
  c.advantage = 'rloo'

  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 5e-4
  c.optimizer.schedule = 'constant'
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.eval.every = 10
  c.checkpoint.every = 0
  return c
