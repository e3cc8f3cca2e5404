"""Jackpot on mathematics with Qwen3 4B Base: 64 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_4b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The staleness experiment of Jackpot: a rollout batch of 2048 responses is split
into mini-batches of 32, so the last update is made 64 updates after its rows
were written. `qwen3_4b_math.py:128x` has 4096 responses and 128 updates. Tokens
are masked and weighted by OBRS towards the policy in training, and the loss is
not clipped: lam 1, c1 3, Z over the 20 likeliest tokens.

The papers train on DeepScaleR-Preview for 30,000 examples, with responses of at
most 8192 tokens. The samples of a prompt (8), the learning rate, the template
and the evaluation are our choices. The data files must have the fields
`problem` and `answer`. The mesh is for 128 chips; launch/FITS.md has the memory
and the estimated time. Not run at this size yet.
"""

from jaxrl_llm import config

ARGS = ('128x',)
VARIANTS = ARGS
TOPOLOGY = 'v5e:16x8'  # v5litepod-128


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(f'{arg} is not a variant of this config: '
                     f'use one of {", ".join(ARGS)}, or none.')
  c = config.base()
  c.steps = 120  # 30,720 prompts
  c.prompts_per_step = 256
  c.samples_per_prompt = 8
  c.learner.updates = 64
  if arg == '128x':
    c.steps = 60
    c.prompts_per_step = 512
    c.learner.updates = 128
  c.max_prompt = 1024
  c.max_response = 8192

  c.model.hf = 'Qwen/Qwen3-4B-Base'
  c.task.name = 'math'
  c.task.path = ('problems.jsonl',)
  c.task.heldout = ('math500.jsonl',)
  c.task.template = 'qwen'

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'
  c.optimizer.learning_rate = 1e-6

  c.mesh.data = 1
  c.mesh.fsdp = 32
  c.mesh.tensor = 4
  c.sampling.slots = 16
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 9216
  c.learner.remat = 'attention'
  c.eval.every = 10
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 10
  return c


def get_hyper(hyper):
  """Returns the papers' sweeps over c1 and k, and one over lam."""
  return hyper.chainit([
      hyper.sweep('jackpot.c1', [2.0, 3.0, 4.0, 8.0]),
      hyper.sweep('jackpot.lam', [0.8, 0.9, 1.0, 1.1, 1.2]),
      hyper.sweep('jackpot.top_k', [10, 20, 40])])
