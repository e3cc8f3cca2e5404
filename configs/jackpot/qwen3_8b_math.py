"""Jackpot on mathematics with Qwen3 8B Base: 64 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_8b_math.py \
      --config.task.path=problems.jsonl

As configs/jackpot/qwen3_4b_math.py, which has the argument 128x and says how
the paper was read, but for 50,000 examples. launch/FITS.md has the memory and
the estimated time. Not run at this size yet.
"""

from configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = qwen3_4b_math.ARGS
TOPOLOGY = qwen3_4b_math.TOPOLOGY
PAPER = 'jackpot/8b'


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  c = qwen3_4b_math.get_config(arg)
  c.model.hf = 'Qwen/Qwen3-8B-Base'
  c.steps = 13 if arg else 25  # 53,248 or 51,200 prompts
  return c


def get_hyper(hyper):
  """Returns the papers' arms; on-policy, 50,016 prompts."""
  return qwen3_4b_math.get_hyper(hyper, steps=1563)
