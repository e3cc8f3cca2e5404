"""DAPO on mathematics with Qwen3 1.7B Base.

  python -m jaxrl_llm.train --config=configs/dapo/qwen3_1p7b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The four parts of DAPO (arXiv:2503.14476): ratios are clipped higher above than
below, prompts whose responses are all right or all wrong are replaced (dynamic
sampling), the loss is a mean over tokens, and responses near the budget have a
soft penalty. As in the paper, there is no KL, advantages are those of GRPO, a
prompt has 16 responses, a step has 16 updates, and the learning rate is 1e-6
after a warm-up of 20 steps.

What differs from the paper:
- The model has 1.7B parameters and is Qwen3; the paper's is Qwen2.5 32B.
- A step has 128 prompts instead of 512, and so an update has 128 responses
  instead of 512.
- Responses have 4096 tokens instead of 20480. The penalty grows over a fifth of
  them, as it does in the paper (4096 of 20480).
- Rewards are 0 and 1 instead of -1 and 1. The penalty has the paper's size:
  relative to the range of the rewards it is twice as large.
- Groups beyond a full batch wait for the next one; DAPO drops them, and samples
  three times the prompts of a batch.
- The template and the evaluation are those of configs/grpo/qwen3_1p7b_math.py.
  The paper trains on DAPO-Math-17K and evaluates on AIME 2024.

The data files must have the fields `problem` and `answer`. The mesh fits any
number of devices that divides 32. launch/FITS.md has the memory and the
estimated time on 32 chips of v5e. Not run at this size yet.
"""

from jaxrl_llm import config

TOPOLOGY = 'v5e:4x8'  # v5litepod-32


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 500
  c.prompts_per_step = 128
  c.samples_per_prompt = 16
  c.max_prompt = 1024
  c.max_response = 4096

  c.model.hf = 'Qwen/Qwen3-1.7B-Base'
  c.task.name = 'math'
  c.task.path = ('problems.jsonl',)
  c.task.heldout = ('math500.jsonl',)
  c.task.template = 'qwen'

  c.curriculum = 'dynamic'
  c.advantage = 'grpo'
  c.loss.clip_low = 0.2
  c.loss.clip_high = 0.28
  c.loss.aggregation = 'token_mean'
  c.loss.kl_coef = 0.0
  c.overlong.mode = 'penalty'
  c.overlong.window = 819
  c.learner.updates = 16
  c.optimizer.learning_rate = 1e-6
  c.optimizer.warmup_steps = 320  # optimiser steps: 20 steps of 16 updates

  c.mesh.data = 1
  c.mesh.fsdp = -1
  c.sampling.slots = 16
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 5120
  c.learner.remat = 'attention'
  c.eval.every = 20
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns a sweep: with and without dynamic sampling, three seeds each."""
  return hyper.product([
      hyper.sweep('curriculum', ['dynamic', 'uniform']),
      hyper.sweep('seed', [0, 1, 2])])
