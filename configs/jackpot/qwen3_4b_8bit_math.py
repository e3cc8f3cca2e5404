"""Jackpot on mathematics with Qwen3 4B Base and rollouts from 8-bit numbers.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_4b_8bit_math.py \
      --config.task.path=problems.jsonl

The quantisation experiments of Jackpot. In v2, Table 2, the KV cache of the
sampler is in float8, and two updates of 64 prompts are made on each rollout
batch of 128. In v1, Figure 4b and Table 5, nothing else differs between the
sampler and the policy: the sweep has one update on 64 prompts without
correction, with masking alone, and with Jackpot. With
`qwen3_4b_8bit_math.py:int8` the sampler's weights and its cache are in int8: it
reads half the bytes. Evaluations sample without quantisation.

The data files must have the fields `problem` and `answer`. The mesh is for 128
chips; launch/FITS.md has the memory and the estimated time. Not run at this
size yet.

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
- int8: sampling.kv=int8, in the paper float8 (v2 Table 2): half the bytes of
  the weights too.
- int8: sampling.weights=int8, in the paper none (v2 Table 2, the cache alone):
  half the bytes of the weights too.
- not given in the paper: jackpot.c1=3.0 (2 to 10 in v1 appendix C.2, and 2, 3,
  4 and 8 in v1 Table 7); jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); samples_per_prompt=8; optimizer.learning_rate=1e-06;
  max_prompt=1024; task.template=qwen; loss.aggregation=token_mean (v2 Eq. 5 is
  a mean over tokens, the GRPO that it names one over responses); steps=235
  (30,000 prompts); jackpot.c2=1.3 (above 1 + clip_high, as v1 appendix C.2 has
  it).
"""

from jaxrl_llm.configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = ('int8',)
PAPER = 'jackpot/8bit'
TOPOLOGY = qwen3_4b_math.TOPOLOGY


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(
        f'{arg} is not a variant of this config: use int8, or none.')
  c = qwen3_4b_math.get_config()
  c.steps = 235  # 30,080 prompts
  c.prompts_per_step = 128
  c.learner.updates = 2
  c.loss.objective = 'clip'
  c.learner.tokens_per_microbatch = 9216
  c.sampling.kv = 'float8'
  c.sampling.slots = 32
  if arg:
    c.sampling.weights = c.sampling.kv = 'int8'
  c.eval.every = 20
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns the papers' arms, baselines first."""
  exact = {'prompts_per_step': 64, 'learner.updates': 1, 'steps': 469}
  return [qwen3_4b_math.TIS, {**qwen3_4b_math.CLIP, **exact},
          {**exact, 'jackpot.weight': False}, exact,
          *hyper.fixed('off_policy', 'jackpot')]
