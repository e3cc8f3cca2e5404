"""Jackpot on mathematics: Qwen2.5 1.5B writes, Qwen2.5 3B learns.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen25_1p5b_3b_math.py \
      --config.task.path=problems.jsonl

As configs/jackpot/qwen3_1p7b_4b_math.py, but on the problems of MATH, for
14,000 examples, and evaluated on four files. launch/FITS.md has the memory and
the estimated time. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- task.path=problems.jsonl, in the paper MATH, in Table 1 MATH-8K (v2 section
  5): your file of it.
- not given in the paper: jackpot.c1=3.0 (2 to 10 in v1 appendix C.2, and 2, 3,
  4 and 8 in v1 Table 7); jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); samples_per_prompt=8; optimizer.learning_rate=1e-06;
  max_prompt=1024; task.template=qwen; loss.aggregation=token_mean (v2 Eq. 5 is
  a mean over tokens, the GRPO that it names one over responses); jackpot.c2=1.3
  (above 1 + clip_high, as v1 appendix C.2 has it); actor.distill=1.0
  (lambda_distill is not given); actor.learning_rate=none (the policy's).
"""

from jaxrl_llm.configs.jackpot import qwen3_1p7b_4b_math

TOPOLOGY = qwen3_1p7b_4b_math.TOPOLOGY
PAPER = 'jackpot/qwen25'
get_hyper = qwen3_1p7b_4b_math.arms


def get_config():
  """Returns the config."""
  c = qwen3_1p7b_4b_math.get_config()
  c.actor.model.hf = 'Qwen/Qwen2.5-1.5B'
  c.model.hf = 'Qwen/Qwen2.5-3B'
  c.steps = 219  # 14,016 prompts
  c.task.heldout = c.task.heldout[:4]
  c.mesh.fsdp = 64
  c.mesh.tensor = 2  # Both models have 2 key/value heads.
  return c
