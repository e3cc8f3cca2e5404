"""Jackpot on mathematics with Qwen3 4B Base and rollouts from 8-bit numbers.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_4b_8bit_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The quantisation experiment of Jackpot (v1, Figure 4b and Table 5): the KV cache
of the sampler is in float8, and one update is made on each rollout batch, so
that nothing else differs between the sampler and the policy. With
`qwen3_4b_8bit_math.py:int8` the sampler's weights and its cache are in int8: it
reads half the bytes. Evaluations sample without quantisation.

The paper does not name the model of this experiment, nor its sizes; those are
our choices. The data files must have the fields `problem` and `answer`. The
mesh is for 128 chips; launch/FITS.md has the memory and the estimated time. Not
run at this size yet.
"""

from configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = ('int8',)
TOPOLOGY = qwen3_4b_math.TOPOLOGY


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(
        f'{arg} is not a variant of this config: use int8, or none.')
  c = qwen3_4b_math.get_config()
  c.steps = 480  # 30,720 prompts
  c.prompts_per_step = 64
  c.learner.updates = 1
  c.mesh.learner_tensor = 1
  c.learner.tokens_per_microbatch = 9216
  c.sampling.kv = 'float8'
  if arg:
    c.sampling.weights = c.sampling.kv = 'int8'
  c.eval.every = 40
  c.checkpoint.every = 40
  return c


def get_hyper(hyper):
  """Returns sweeps over the types of weights and cache, and over parts."""
  return hyper.chainit([
      hyper.product([
          hyper.sweep('sampling.weights', [None, 'int8', 'float8']),
          hyper.sweep('sampling.kv', [None, 'int8', 'float8'])]),
      hyper.sweep('jackpot.weight', [True, False])])
