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
"""

from configs.jackpot import qwen3_4b_math

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
  c.mesh.learner_tensor = 1
  c.learner.tokens_per_microbatch = 9216
  c.sampling.kv = 'float8'
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
