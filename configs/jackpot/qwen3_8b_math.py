"""Jackpot on mathematics with Qwen3 8B Base: 64 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_8b_math.py \
      --config.task.path=problems.jsonl

As configs/jackpot/qwen3_4b_math.py, which has the arguments and says how the
paper was read, but for 50,000 examples. launch/FITS.md has the memory and the
estimated time. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- task.path=problems.jsonl, in the paper DeepScaleR-Preview (v2 section 5): your
  file of it.
- eval.samples=4, in the paper 4, on AIME 16 (v2 Tables 2 and 3): one number for
  all files; evaluate a checkpoint again with eval.samples=16 eval.k=1,16.
- eval.k=1,4, in the paper 1, on AIME 1 and 16 (v2 Tables 2 and 3): one number
  for all files; evaluate a checkpoint again with eval.samples=16 eval.k=1,16.
- 128x: prompts_per_step=4096, in the paper 2048 (v2 Table 3, Qwen3-8B-Base,
  64x, read as prompts): the paper has 128x with the 4B model alone.
- 128x: learner.updates=128, in the paper 64 (v2 Table 3, Qwen3-8B-Base, 64x,
  mini-batches of 32): the paper has 128x with the 4B model alone.
- 128x: steps=13, in the paper 25 (v2 Table 3, 50,000 examples, read as
  prompts): the paper has 128x with the 4B model alone.
- not given in the paper: jackpot.c1=3.0 (2 to 10 in v1 appendix C.2, and 2, 3,
  4 and 8 in v1 Table 7); jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); samples_per_prompt=8; optimizer.learning_rate=1e-06;
  max_prompt=1024; task.template=qwen; loss.aggregation=token_mean (v2 Eq. 5 is
  a mean over tokens, the GRPO that it names one over responses).
- int8: not given in the paper: sampling.kv=int8 (half the bytes, and Jackpot
  corrects it).
"""

from jaxrl_llm.configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = qwen3_4b_math.ARGS
TOPOLOGY = qwen3_4b_math.TOPOLOGY
TOPOLOGIES = qwen3_4b_math.TOPOLOGIES
PAPER = 'jackpot/8b'


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  c = qwen3_4b_math.get_config(arg)
  c.model.hf = 'Qwen/Qwen3-8B-Base'
  c.steps = 13 if arg == '128x' else 25  # 53,248 or 51,200 prompts
  c.sampling.slots = 26 if arg == 'int8' else 15  # of 512 rows on a data shard
  c.sampling.prefill_prompts = 2
  return c


def get_hyper(hyper):
  """Returns the papers' arms; on-policy, 50,016 prompts."""
  return qwen3_4b_math.get_hyper(hyper, steps=1563)
