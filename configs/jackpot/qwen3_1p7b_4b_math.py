"""Jackpot on mathematics: Qwen3 1.7B Base writes, Qwen3 4B Base learns.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_1p7b_4b_math.py \
      --config.task.path=problems.jsonl

The decoupled experiment of Jackpot (v2, Table 1): the smaller model writes all
responses, and both learn from each batch of 64 prompts, the actor by PPO and by
distillation. `qwen3_1p7b_4b_math.py:8b` has Qwen3 8B Base as the policy.

The paper trains on 20,000 examples (15,000 with 8B), with responses of at most
8192 tokens. The sweep has its baselines, those of Figure 1 with an actor that
does not learn, the lam of v1, Table 8 (9,000 examples, such an actor), and
lambda_distill, which is not given. The data files must have the
fields `problem` and `answer`. The mesh is for 128 chips; launch/FITS.md has the
memory and the estimated time. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- task.path=problems.jsonl, in the paper DeepScaleR-Preview (v2 section 5): your
  file of it.
- not given in the paper: jackpot.c1=3.0 (2 to 10 in v1 appendix C.2, and 2, 3,
  4 and 8 in v1 Table 7); jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); samples_per_prompt=8; optimizer.learning_rate=1e-06;
  max_prompt=1024; task.template=qwen; loss.aggregation=token_mean (v2 Eq. 5 is
  a mean over tokens, the GRPO that it names one over responses); jackpot.c2=1.3
  (above 1 + clip_high, as v1 appendix C.2 has it); actor.distill=1.0
  (lambda_distill is not given); actor.learning_rate=none (the policy's).
"""

from jaxrl_llm.configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = ('8b',)
PAPER = 'jackpot/decoupled'
TOPOLOGY = qwen3_4b_math.TOPOLOGY
FROZEN = {'actor.ppo': False, 'actor.distill': 0.0}


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(f'{arg} is not a variant of this config: use 8b, or none.')
  c = qwen3_4b_math.get_config()
  c.actor.model.hf = 'Qwen/Qwen3-1.7B-Base'
  c.steps = 313  # 20,032 prompts
  if arg:
    c.model.hf = 'Qwen/Qwen3-8B-Base'
    c.steps = 235  # 15,040 prompts
  c.prompts_per_step = 64
  c.learner.updates = 1
  c.loss.objective = 'clip'
  c.learner.tokens_per_microbatch = 9216
  c.eval.every = 20
  c.checkpoint.every = 20
  return c


def arms(hyper):
  """Returns the paper's baselines, Jackpot, and sweeps over lambda_distill.

  The constants are those of the policy alone, of an actor that does not learn
  without a correction and with TIS, and of one that learns without a correction
  ("Only Reverse KL"), and with TIS.
  """
  return [
      {'actor.model.hf': None, **qwen3_4b_math.CLIP},
      {**FROZEN, **qwen3_4b_math.CLIP}, {**FROZEN, **qwen3_4b_math.TIS},
      qwen3_4b_math.CLIP, qwen3_4b_math.TIS, *hyper.chainit([
          hyper.sweep('actor.distill', [1.0, 0.1, 0.3, 3.0]),
          hyper.sweep('actor.kl_target', [0.01, 0.03, 0.1])])]


def get_hyper(hyper):
  """Returns `arms`, and the rows of v1, Table 8."""
  return [*arms(hyper), *hyper.product([
      [FROZEN],
      hyper.sweep('jackpot.lam', [0.8, 0.9, 1.0, 1.1, 1.2]),
      hyper.fixed('steps', 141)])]  # 9,024 prompts
