"""Jackpot on mathematics with Qwen3 8B Base: 64 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_8b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

As configs/jackpot/qwen3_4b_math.py, which has the argument 128x, but for 50,000
examples. launch/FITS.md has the memory and the estimated time. Not run at this
size yet.
"""

from configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = qwen3_4b_math.ARGS
TOPOLOGY = qwen3_4b_math.TOPOLOGY
get_hyper = qwen3_4b_math.get_hyper


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  c = qwen3_4b_math.get_config(arg)
  c.model.hf = 'Qwen/Qwen3-8B-Base'
  c.steps = 100 if arg else 200  # 51,200 prompts
  return c
