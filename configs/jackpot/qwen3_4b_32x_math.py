"""Jackpot on mathematics with Qwen3 4B Base: 32 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_4b_32x_math.py \
      --config.task.path=problems.jsonl

The experiment on Jackpot's parts and hyperparameters (v1, Tables 6, 7 and 9): a
rollout batch of 2048 prompts in mini-batches of 64. Ratios clipped at .6 and
1.7, c2 of 3, and 100,000 examples are given for Table 7 alone. The sweep has
the tables' rows: masking alone, c1, and the tokens in Z. Its lam is swept by
configs/jackpot/qwen3_1p7b_4b_math.py, as in v1, Table 8. Else as
configs/jackpot/qwen3_4b_math.py, which says how the papers were read. Not run
at this size yet.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- task.path=problems.jsonl, in the paper DeepScaleR-Preview (v2 section 5): your
  file of it.
- not given in the paper: jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); eval.samples=4; eval.k=1,4; samples_per_prompt=8;
  optimizer.learning_rate=1e-06; max_prompt=1024; task.template=qwen;
  loss.aggregation=token_mean (v2 Eq. 5 is a mean over tokens, the GRPO that it
  names one over responses).
"""

from jaxrl_llm.configs.jackpot import qwen3_4b_math

PAPER = 'jackpot/32x'
TOPOLOGY = qwen3_4b_math.TOPOLOGY


def get_config():
  """Returns the config."""
  c = qwen3_4b_math.get_config()
  c.steps = 49  # 100,352 prompts
  c.task.heldout = ('gsm8k.jsonl', 'math500.jsonl', 'amc22_23.jsonl',
                    'aime24.jsonl')
  c.learner.updates = 32
  c.loss.objective = 'clip'
  c.loss.clip_low = 0.4
  c.loss.clip_high = 0.7
  c.jackpot.c2 = 3.0
  return c


def get_hyper(hyper):
  """Returns the rows of Tables 6, 7 and 9."""
  return hyper.chainit([
      # Without weights c2 must have its default.
      [{'jackpot.weight': False, 'jackpot.c2': 1.3}],
      hyper.sweep('jackpot.c1', [2.0, 3.0, 4.0, 8.0]),
      hyper.sweep('jackpot.top_k', [10, 40])])
