"""PKPO on mathematics with Llama 3.1 8B.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

All settings except the model equal those of configs/pkpo/gemma2_9b_math.py.
`llama31_8b_math.py:4k` has 128 prompts per step, rows of 4096 tokens, and a
mesh of its own. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=512; model.hf=meta-llama/Llama-3.1-8B-Instruct
  (Llama3.1-8B; whether it is instruction-tuned is not said); eval.problems=500
  (MATH has 12,500 problems, so its test split beside 12,000 has 500).
- without argument: not given in the paper: max_response=1024;
  prompts_per_step=16.
- 4k: not given in the paper: max_response=3584; prompts_per_step=128 (16
  prompts leave most of a pod idle).
"""

from jaxrl_llm.configs.pkpo import gemma2_9b_math

PAPER = 'pkpo/llama31_8b_math'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
VARIANTS = ('4k',)
get_hyper = gemma2_9b_math.get_hyper


def get_config(arg=None):
  """Returns the config; `arg` is '4k' or None."""
  if arg not in (None, *VARIANTS):
    raise ValueError(
        f'{arg} is not a variant of this config: use 4k, or none.')
  c = gemma2_9b_math.get_config()
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  if arg == '4k':
    c.prompts_per_step = 128
    c.max_response = 3584
    # Long rows are bound by arithmetic. Splitting each over 8 chips would cost
    # more in collectives than it gains.
    c.mesh.data = 2
    c.mesh.fsdp = 32
    c.mesh.tensor = 2
    c.sampling.slots = 16
    c.learner.tokens_per_microbatch = 7680
    c.learner.remat = 'full'
  return c
