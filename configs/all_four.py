"""SPEED, PKPO, CBS and Jackpot in one run, on Countdown.

  python -m jaxrl_llm.train --config=configs/all_four.py

Each step screens 64 prompts with 4 samples, written by a copy of the policy
with 8-bit weights and trained on one step later. SPEED continues the prompts
whose screens promise most signal, PKPO turns rewards into advantages for
pass@k with k falling from 4 to 1, CBS picks 256 responses of the last two
batches, and Jackpot corrects for the policy that wrote them. On one core this
takes about a minute after the warm start of three. Held-out pass@1 rises from
.35 to .48, the mean over seeds 0 and 1, and to .515 with a third of the
learning rate, over sixteen seeds. benchmarks/results/claims/all_four.md has
this run with each method left out.
"""

from jaxrl_llm.configs.speed import countdown


def get_config():
  """Returns the config."""
  c = countdown.get_config()
  c.steps = 100
  c.learner.updates = 2

  c.advantage = 'pkpo'
  c.pkpo.k = '0:4,30:2,60:1'

  c.selection = 'cbs'
  c.cbs.warmup = 10
  c.cbs.epsilon_decay = 0.02
  c.cbs.learning_rate = 1e-3

  c.off_policy = 'jackpot'
  c.actor.lag = 1
  c.sampling.weights = 'int8'
  return c


def get_hyper(hyper):
  """Returns a sweep over the age of rollouts and the bandit's buffer."""
  return hyper.product([
      hyper.sweep('actor.lag', [1, 2, 4]),
      hyper.sweep('cbs.rounds', [1, 2, 4])])
