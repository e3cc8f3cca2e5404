"""Jackpot on Countdown: 32 updates on the rollouts of one policy.

  python -m jaxrl_llm.train --config=configs/jackpot/countdown.py

Each step samples 8192 responses and takes 32 updates of 256, without clipping.
On 2 cores this takes about two minutes after the warm start. Held-out pass@1
rises from .25 to about .30. benchmarks/results/claims/jackpot.md compares it
with other corrections.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
"""

from jaxrl_llm.configs import countdown

PAPER = 'jackpot/countdown'


def get_config():
  """Returns the config."""
  c = countdown.get_config()
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


def get_hyper(hyper):
  """Returns sweeps over c1, lam and k; the vocabulary has 24 tokens."""
  return hyper.chainit([
      hyper.sweep('jackpot.c1', [2.0, 3.0, 4.0, 8.0]),
      hyper.sweep('jackpot.lam', [0.8, 0.9, 1.0, 1.1, 1.2]),
      hyper.sweep('jackpot.top_k', [5, 10, 20])])
