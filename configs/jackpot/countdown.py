"""Jackpot on Countdown: 32 updates on the rollouts of one policy.

  python -m jaxrl_llm.train --config=configs/jackpot/countdown.py
"""

from configs import countdown
from configs.jackpot import qwen3_4b_math


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = countdown.get_config(arg)
  c.steps = 6
  c.prompts_per_step = 256
  c.samples_per_prompt = 8
  c.learner.updates = 32

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'

  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 3e-4
  c.optimizer.schedule = 'constant'
  c.optimizer.warmup_steps = 0
  c.eval.every = 1
  return c


get_hyper = qwen3_4b_math.get_hyper
