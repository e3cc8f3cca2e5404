"""SmolLM2.

  python -m jaxrl_llm.train --config=configs/real/smollm2.py
"""

from jaxrl_llm import config


def get_config(arg=None):
  del arg
  c = config.base()
  c.steps = 100
  c.prompts_per_step = 16
  c.samples_per_prompt = 8
  c.max_prompt = 80
  c.max_response = 32
  c.task.name = 'arithmetic'
  c.model.hf = '/work/p46/smollm2_hf'
  c.sampling.slots = 128
  c.sampling.temperature = 0.6
  c.drop_zero_advantage = True
  c.optimizer.learning_rate = 2e-5
  c.eval.every = 0
  c.eval.samples = 1
  c.eval.k = (1,)
  return c


def get_hyper(hyper):
  return hyper.sweep('seed', [0, 1, 2])
