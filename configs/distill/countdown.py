"""Distillation: a small student learns what a larger teacher would write.

  python -m jaxrl_llm.train --config=configs/distill/countdown.py

The student writes responses to Countdown's problems, and learns from the
reverse KL to the teacher at each of its tokens, without rewards. The teacher is
the model of configs/countdown.py after supervised fine-tuning. It can be one
that RL has trained:

  python -m jaxrl_llm.train --config=configs/countdown.py
  python -m jaxrl_llm.export --workdir=runs/countdown --out=teacher
  python -m jaxrl_llm.train --config=configs/distill/countdown.py \
    --config.teacher.model.hf=teacher

That teacher has a held-out pass@1 of .710. Seeds 0, 1 and 2 go from .203, .227
and .210 to .673, .683 and .690, in two minutes on 2 cores; with
teacher.kl=top_k to .675, .680 and .685, with teacher.kl=sampled to .633, .618
and .630. The KL falls from 1.4 to .03 nats a token, with sampled to .1.
"""

from jaxrl_llm import config


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 300
  c.prompts_per_step = 256
  c.samples_per_prompt = 1
  c.max_prompt = 13
  c.max_response = 23
  c.advantage = 'none'

  c.task.kinds = ('two', 'three', 'four', 'five')
  c.task.solved = (1.0, 0.1, 0.1, 0.1)
  c.task.train = (210, 1400, 1000, 400)
  c.task.heldout = (48, 250, 170, 64)

  c.model.width = 64
  c.model.layers = 2
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 16
  c.model.mlp_width = 128

  c.teacher.model.preset = 'tiny'
  c.teacher.model.width = 128
  c.teacher.model.layers = 2
  c.teacher.model.heads = 8
  c.teacher.model.kv_heads = 2
  c.teacher.model.head_dim = 16
  c.teacher.model.mlp_width = 256

  c.sft.steps = 1000
  c.sft.learning_rate = 5e-3

  c.mesh.cpu_devices = 2
  c.sampling.slots = 64
  c.optimizer.learning_rate = 1e-3
  c.optimizer.schedule = 'linear'
  c.optimizer.warmup_steps = 5
  c.eval.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep over the forms of the KL, three seeds each."""
  return hyper.product([
      hyper.sweep('teacher.kl', ['all', 'top_k', 'sampled']),
      hyper.sweep('seed', [0, 1, 2])])
