"""placeholder"""

from jaxrl_llm import config


def get_config(arg=None):
  """Returns the config; takes no argument."""
  del arg
  c = config.base()
  c.task.name = 'arc_mini'
  c.steps = 300
  c.prompts_per_step = 16
  c.samples_per_prompt = 16
  c.max_prompt = 60
  c.max_response = 12
  c.model.width = 64
  c.model.layers = 2
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp_width = 128
  c.warm_start.steps = 1000
  c.warm_start.learning_rate = 5e-3
  c.mesh.cpu_devices = 1
  c.sampling.slots = 64
  c.advantage = 'pkpo'
  c.pkpo.k = 8
  c.pkpo.batch_std = True
  c.optimizer.learning_rate = 5e-4
  c.optimizer.warmup_steps = 5
  c.eval.every = 0
  c.eval.k = (1, 2, 4, 8)
  return c
