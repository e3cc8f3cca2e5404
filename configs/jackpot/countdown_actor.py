"""Jackpot on Countdown with a smaller actor, which writes every response.

  python -m jaxrl_llm.train --config=configs/jackpot/countdown_actor.py
"""

from configs import countdown


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = countdown.get_config(arg)
  c.steps = 192

  c.actor.model.preset = 'tiny'
  c.actor.model.width = 64
  c.actor.model.layers = 2
  c.actor.model.mlp_width = 128
  c.actor.model.head_dim = 16

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'

  c.prompts_per_step = 32
  c.samples_per_prompt = 8
  c.learner.updates = 1
  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 3e-4
  c.optimizer.schedule = 'constant'
  c.optimizer.warmup_steps = 32
  c.eval.every = 32
  return c
