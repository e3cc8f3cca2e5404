"""Jackpot on Countdown with a smaller actor, which writes every response.

  python -m jaxrl_llm.train --config=configs/jackpot/countdown_actor.py

The actor has a quarter of the policy's size and starts like it, from a warm
start. Both learn from each step's 256 responses, the policy by rejection, the
actor by PPO and distillation. On 2 cores this takes about five minutes after
the warm starts. Held-out pass@1 rises from .25 to about .33, with a third of
the learning rate to about .39. benchmarks/results/claims/jackpot_actor.md
compares it with other corrections, and with none (`--config.off_policy=none`).

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- loss.objective=no_clip, in the paper clip (v2 Eq. 5): with one update per step
  the ratio is 1, and clipping has no effect.
- not given in the paper: actor.distill=4.0 (lambda_distill is not given);
  actor.learning_rate=0.001 (the actor has to follow).
"""

from jaxrl_llm.configs import countdown

PAPER = 'jackpot/countdown_actor'


def get_config():
  """Returns the config."""
  c = countdown.get_config()
  c.steps = 384
  c.prompts_per_step = 32

  c.actor.model.preset = 'tiny'
  c.actor.model.width = 64
  c.actor.model.layers = 2
  c.actor.model.heads = 4
  c.actor.model.head_dim = 16
  c.actor.model.mlp_width = 128
  # The actor has to follow: it covers only what it samples.
  c.actor.learning_rate = 1e-3
  c.actor.distill = 4.0

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'

  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.0
  c.optimizer.learning_rate = 5e-4
  c.optimizer.schedule = 'constant'
  c.optimizer.warmup_steps = 32
  c.eval.every = 96
  return c


def get_hyper(hyper):
  """Returns sweeps over lambda_distill, constant or held at a KL."""
  return hyper.chainit([
      hyper.sweep('actor.distill', [0.3, 1.0, 4.0]),
      hyper.sweep('actor.kl_target', [0.03, 0.1, 0.3])])
