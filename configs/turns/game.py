"""A game of several turns: find a hidden letter of a list by questions.

  python -m jaxrl_llm.train --config=configs/turns/game.py

The prompt is a list of seven letters, such as qfbmzkd:. The model names a
letter, the environment answers < or > if the hidden letter stands earlier or
later in the list, three times at most; the letter is another in each game. A
binary search always finds it. The model is warm-started on games of which two
in five are binary searches and the others are played at random, and learns by
GRPO from the reward at the end: 1 if it has found the letter.

On two cores that other jobs shared this takes about six minutes after the warm
start. Held-out pass@1 goes from .43, .43 and .42 to 1.000, 1.000 and .999 with
the seeds 0, 1 and 2, and is above .99 after 150 steps. The settings were chosen
on seed 100.
"""

from jaxrl_llm import config


def get_config():
  """Returns the config of the game."""
  c = config.base()
  c.steps = 500
  c.prompts_per_step = 64
  c.samples_per_prompt = 8
  c.max_prompt = 8
  c.max_response = 8
  c.task.name = 'jaxrl_llm.examples.guess'
  # Sets the pass rate at the start of RL.
  c.task.solved = 0.4

  c.model.vocab_size = 32
  c.model.width = 64
  c.model.layers = 2
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp_width = 128

  c.sft.steps = 1000
  c.sft.learning_rate = 3e-3

  c.mesh.cpu_devices = 2
  c.sampling.slots = 64

  c.drop_zero_advantage = True
  c.loss.entropy_bonus = 0.01
  c.optimizer.learning_rate = 2e-3
  c.optimizer.schedule = 'linear'
  c.optimizer.warmup_steps = 5
  c.eval.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep: three seeds, each with its own lists."""
  return hyper.zipit([
      hyper.sweep('seed', [0, 1, 2]), hyper.sweep('task.seed', [0, 1, 2])])
