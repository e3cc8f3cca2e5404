"""PKPO on Countdown with many prompts that are almost never solved.

  python -m jaxrl_llm.train --config=configs/pkpo/countdown_hard.py:mixed

The hard problems need a product. One in eight demonstrations has a product, but
almost none of these solves a hard problem, so the warm start solves most of
them less than once in 50 samples. ':mixed' (the default) trains on equal
numbers of hard and ordinary problems, ':hard' on hard ones alone. Both
warm-start on all kinds. On the mixed set, k=1 learns the ordinary prompts and
loses the hard ones (the stall of the paper's section 5.2.4); k=8 learns some
hard ones, and the ordinary ones stay where they were: see
benchmarks/results/claims/pkpo_mixed.md. It takes about two minutes on 2 cores.

Beside the paper, as python -m configs.papers writes it:
- pkpo.batch_std=true, in the paper false (Eq. 18): fewer samples have an
  advantage for larger k; this keeps the scale equal.
- loss.aggregation=token_mean, in the paper constant (Eq. 18, a sum over
  samples): as configs/countdown.py.
- not given in the paper: drop_zero_advantage=true (faster; it changes only the
  scale of the gradient).
"""

from jaxrl_llm.configs.pkpo import countdown

ARGS = 'mixed', 'hard'

PAPER = 'pkpo/countdown_hard'


def get_config(arg='mixed'):
  """Returns the config for 'mixed' or 'hard' problems."""
  if arg not in ARGS:
    raise ValueError(f'{arg} is not a variant of this config: '
                     f'use {" or ".join(ARGS)}.')
  c = countdown.get_config()
  c.task.kinds = ('two', 'three', 'four', 'five', 'product3', 'product4')
  c.task.solved = (1.0, 0.1, 0.1, 0.1, 0.0, 0.0)
  c.task.shown = (100, 600, 600, 400, 120, 400)
  ordinary = (50, 350, 250, 150) if arg == 'mixed' else (0, 0, 0, 0)
  c.task.train = (*ordinary, 400, 400)
  c.task.heldout = (32, 60, 60, 48, 100, 100)
  c.prompts_per_step = 16
  c.pkpo.k = 8
  c.optimizer.learning_rate = 3e-4
  c.optimizer.schedule = 'constant'
  # Few rows have a signal here, and an entropy bonus on the others makes the
  # policy drift. Without a bonus, rows of advantage 0 only count in the mean:
  # leaving them out is faster and changes only the scale of the gradient.
  c.loss.entropy_bonus = 0.0
  c.drop_zero_advantage = True
  return c


# In older runs, a schedule that ends with k=1 was worse on both kinds of
# problems.
ANNEALED = '0:8,300:2'


def get_hyper(hyper):
  """Returns the sweep of configs/pkpo/countdown.py with this file's schedule.
  """
  return countdown.get_hyper(hyper, ANNEALED)
