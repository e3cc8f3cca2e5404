"""Countdown with attempts: most responses are short, some fill max_response.

  python -m jaxrl_llm.train --config=configs/carry/countdown.py

A response has any number of chains, of which the last counts
(examples/attempts.py). A step of 256 responses waits for the longest one, of
128 tokens, while their mean is about 30. With

  --config.sampling.carry_over=true --config.sampling.wave_steps=128

it does not wait: what is unfinished after 128 decode steps goes on in the next
step (docs/carry_over.md). The learning rate is constant, so that runs that
train on another number of batches can be compared after equal updates.
"""

from jaxrl_llm import config


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 300
  c.prompts_per_step = 32
  c.samples_per_prompt = 8
  c.max_prompt = 13
  c.max_response = 128

  c.task.name = 'jaxrl_llm.examples.attempts'
  c.task.kinds = ('two', 'three', 'four')
  c.task.train = (210, 1400, 1000)
  c.task.heldout = (48, 250, 170)
  c.task.solved = (1.0, 1.0, 1.0)
  c.task.longest = 127

  c.model.width = 128
  c.model.layers = 2
  c.model.heads = 8
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp_width = 256

  c.sft.steps = 1000
  c.sft.learning_rate = 5e-3

  c.sampling.slots = 64
  c.drop_zero_advantage = True
  c.loss.entropy_bonus = 0.01
  c.optimizer.learning_rate = 3e-4
  c.optimizer.schedule = 'constant'
  c.optimizer.warmup_steps = 5
  c.eval.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep: without and with responses carried over, three seeds."""
  return hyper.product([
      hyper.chainit([
          hyper.sweep('sampling.carry_over', [False]),
          hyper.zipit([hyper.sweep('sampling.carry_over', [True]),
                       hyper.sweep('sampling.wave_steps', [128])])]),
      hyper.sweep('seed', [0, 1, 2])])
