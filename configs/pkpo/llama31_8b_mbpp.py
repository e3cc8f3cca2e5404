"""PKPO on code with Llama 3.1 8B.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_mbpp.py \
      --config.task.path=mbpp.jsonl --config.task.heldout=humaneval.jsonl

All settings except the model equal those of configs/pkpo/gemma2_9b_mbpp.py. Not
run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=1024; max_response=512;
  model.hf=meta-llama/Llama-3.1-8B-Instruct (Llama3.1-8B; whether it is
  instruction-tuned is not said); prompts_per_step=16; task.ids='' (all 974
  problems of MBPP, since the paper does not say; 601-974 is its training set).
"""

from jaxrl_llm.configs.pkpo import gemma2_9b_mbpp

PAPER = 'pkpo/llama31_8b_mbpp'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = gemma2_9b_mbpp.get_hyper


def get_config():
  """Returns the config."""
  c = gemma2_9b_mbpp.get_config()
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  return c
