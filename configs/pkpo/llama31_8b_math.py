"""PKPO on mathematics with Llama 3.1 8B.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

All but the model is that of configs/pkpo/gemma2_9b_math.py. Not run at this
size yet.
"""

from configs.pkpo import gemma2_9b_math

get_hyper = gemma2_9b_math.get_hyper


def get_config(arg=None):
  """The experiment; takes no argument."""
  c = gemma2_9b_math.get_config(arg)
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  return c
