"""PKPO on code with Llama 3.1 8B.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_mbpp.py \
      --config.task.path=mbpp.jsonl --config.task.heldout=humaneval.jsonl

All settings except the model equal those of configs/pkpo/gemma2_9b_mbpp.py. Not
run at this size yet.
"""

from configs.pkpo import gemma2_9b_mbpp

PAPER = 'pkpo/llama31_8b_mbpp'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = gemma2_9b_mbpp.get_hyper


def get_config(arg=None):
  """Returns the config; takes no argument."""
  c = gemma2_9b_mbpp.get_config(arg)
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  return c
