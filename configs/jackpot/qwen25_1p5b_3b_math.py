"""Jackpot on mathematics: Qwen2.5 1.5B writes, Qwen2.5 3B learns.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen25_1p5b_3b_math.py \
      --config.task.path=problems.jsonl

As configs/jackpot/qwen3_1p7b_4b_math.py, but on the problems of MATH, for
14,000 examples, and evaluated on four files. launch/FITS.md has the memory and
the estimated time. Not run at this size yet.
"""

from configs.jackpot import qwen3_1p7b_4b_math

TOPOLOGY = qwen3_1p7b_4b_math.TOPOLOGY
PAPER = 'jackpot/qwen25'
get_hyper = qwen3_1p7b_4b_math.arms


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = qwen3_1p7b_4b_math.get_config(arg)
  c.actor.model.hf = 'Qwen/Qwen2.5-1.5B'
  c.model.hf = 'Qwen/Qwen2.5-3B'
  c.steps = 219  # 14,016 prompts
  c.task.heldout = c.task.heldout[:4]
  c.mesh.fsdp = 64
  c.mesh.tensor = 2  # Both models have 2 key/value heads.
  return c
