"""Distillation on mathematics: Qwen3 8B teaches Qwen3 1.7B.

  python -m jaxrl_llm.train --config=configs/distill/qwen3_1p7b_from_8b.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The student writes one response to each of 256 problems a step, and learns from
the reverse KL to the teacher over the whole vocabulary, at each of its tokens.
Rewards are measured and not learned from; `advantage=grpo
samples_per_prompt=8` learns from both, see docs/distill.md. Student and teacher
have the same chat template, whose /no_think has them answer without thinking.
The data files must have the fields `problem` and `answer`. The mesh fits any
number of devices that divides 32. launch/FITS.md has the memory and the
estimated time on 32 chips of v5e. These are no paper's settings, and the config
has not been run at this size.
"""

from jaxrl_llm.configs.grpo import qwen3_1p7b_math

TOPOLOGY = qwen3_1p7b_math.TOPOLOGY


def get_config():
  """Returns the config."""
  c = qwen3_1p7b_math.get_config()
  c.steps = 200
  c.prompts_per_step = 256
  c.samples_per_prompt = 1
  c.model.hf = 'Qwen/Qwen3-1.7B'
  c.teacher.model.hf = 'Qwen/Qwen3-8B'
  c.task.template = 'chat'
  c.task.system = '/no_think'
  c.advantage = 'none'
  c.loss.aggregation = 'token_mean'
  c.learner.updates = 1
  c.optimizer.learning_rate = 1e-5
  c.optimizer.warmup_steps = 10
  c.sampling.slots = 8
  return c


def get_hyper(hyper):
  """Returns a sweep over the forms of the KL, three seeds each."""
  return hyper.product([
      hyper.sweep('teacher.kl', ['all', 'top_k', 'sampled']),
      hyper.sweep('seed', [0, 1, 2])])
