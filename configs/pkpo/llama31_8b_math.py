"""PKPO on mathematics with Llama 3.1 8B.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

All but the model is that of configs/pkpo/gemma2_9b_math.py.
`llama31_8b_math.py:4k` takes 128 prompts in a step, with rows of 4096 tokens.
Not run at this size yet.
"""

from configs.pkpo import gemma2_9b_math

TOPOLOGY = 'v5e:16x8'  # v5litepod-128
VARIANTS = ('4k',)
get_hyper = gemma2_9b_math.get_hyper


def get_config(arg=None):
  """The experiment; `arg` is '4k' or nothing."""
  c = gemma2_9b_math.get_config(arg)
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  if arg == '4k':
    # Long rows are bound by arithmetic, and splitting each over 8 chips would
    # cost more in exchanges than it gains.
    c.mesh.data = 2
    c.mesh.fsdp = 32
    c.mesh.tensor = 2
    c.sampling.slots = 16
    c.learner.microbatch = 256
    c.learner.remat = 'full'
  return c
