"""Jackpot on mathematics: Qwen3 1.7B Base writes, Qwen3 4B Base learns.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_1p7b_4b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The decoupled experiment of Jackpot (v2, Table 1): the smaller model writes all
responses, and both learn from each batch of 64 prompts, the actor by PPO and by
distillation. `qwen3_1p7b_4b_math.py:8b` has Qwen3 8B Base as the policy.

The paper trains on DeepScaleR-Preview for 20,000 examples (15,000 with 8B),
with responses of at most 8192 tokens. It gives no lambda_distill: 1 is our
choice, as are the samples of a prompt (8), the learning rate, the template and
the evaluation. The data files must have the fields `problem` and `answer`. The
mesh is for 128 chips; launch/FITS.md has the memory and the estimated time. Not
run at this size yet.
"""

from configs.jackpot import qwen3_4b_math

ARGS = VARIANTS = ('8b',)
TOPOLOGY = qwen3_4b_math.TOPOLOGY


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
  c.mesh.learner_tensor = 1
  c.learner.tokens_per_microbatch = 9216
  c.eval.every = 20
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns sweeps over lambda_distill, constant or held at a KL."""
  return hyper.chainit([
      hyper.sweep('actor.distill', [0.1, 0.3, 1.0, 3.0]),
      hyper.sweep('actor.kl_target', [0.01, 0.03, 0.1])])
