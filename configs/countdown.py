"""Countdown, from nothing to a model that learned by reinforcement.

  python -m jaxrl_llm.train --config=configs/countdown.py
"""

from jaxrl_llm import config


def get_config(arg=None):
  """The main job."""
  c = config.base()
  c.steps = 300
  c.prompts_per_step = 32
  c.samples_per_prompt = 8
  c.max_prompt = 20
  c.max_response = 28
  c.loss.entropy_bonus = 0.03
  c.optimizer.learning_rate = 3e-4
  c.learner.microbatch = 64
  c.learner.buckets = (20, 28)
  c.learner.unroll = 3
  c.warm_start.steps = 300
  return c
