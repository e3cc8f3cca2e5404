"""PKPO on Countdown: the main job, but pass@k is what is optimised.

  python -m jaxrl_llm.train --config=configs/pkpo/countdown.py \
      --config.pkpo.k=8

16 samples of a prompt, as in the paper (arXiv:2505.15201). k=1 is RLOO, k=16=n
the baseline of Tang et al.: here few groups have a signal for it, the entropy
bonus takes over, and the policy is lost. On one core a run takes about four
minutes after the warm start. benchmarks/results/claims/pkpo.md has what every
k reaches, over seeds 0, 1, 2.
"""

from configs import countdown


def get_config(arg=None):
  """The experiment; takes no argument."""
  c = countdown.get_config(arg)
  # With 16 and a bonus of .03, k=1 loses so much on the way that its pass@1 is
  # not above that of k=4 in every run.
  c.prompts_per_step = 32
  c.samples_per_prompt = 16
  c.advantage = 'pkpo'
  c.pkpo.k = 4
  # The larger k, the fewer samples have an advantage; this keeps the scale.
  c.pkpo.batch_std = True
  c.drop_zero_advantage = False
  c.loss.entropy_bonus = 0.05
  c.optimizer.learning_rate = 5e-4
  c.eval.k = (1, 2, 4, 8)
  return c


# The highest pass@1 of four schedules, chosen with 16 prompts and a bonus of
# .03, where going from 8 to 4 to 1 gained nothing.
ANNEALED = '0:2,250:1'


def get_hyper(hyper, annealed=ANNEALED):
  """Every k, k annealed, and the entropy bonus at k=1; three seeds each."""
  return hyper.product([
      hyper.chainit([
          hyper.sweep('pkpo.k', [1, 2, 4, 8, 16, annealed]),
          hyper.product([
              hyper.fixed('pkpo.k', 1),
              hyper.sweep('loss.entropy_bonus', [0.001, 0.01, 0.1])])]),
      hyper.sweep('seed', [0, 1, 2])])
