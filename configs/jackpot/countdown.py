"""Jackpot on Countdown: 32 updates on the rollouts of one policy.

  python -m jaxrl_llm.train --config=configs/jackpot/countdown.py

Each step samples 8192 responses and takes 32 updates of 256, without clipping.
On 2 cores this takes about two minutes after the warm start. Held-out pass@1
rises from .25 to .35; without the correction (`--config.off_policy=none`) it
falls to .08. benchmarks/results/claims/jackpot.md compares them, and others.
"""

from configs import countdown
from configs.jackpot import qwen3_4b_math

get_hyper = qwen3_4b_math.get_hyper


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = countdown.get_config(arg)
  c.steps = 6
  c.prompts_per_step = 1024
  c.learner.updates = 32

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'

  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 3e-4
  c.optimizer.schedule = 'constant'
  # Without it, the first updates of AdamW move far from the first rollouts.
  c.optimizer.warmup_steps = 32
  c.eval.every = 1
  return c
