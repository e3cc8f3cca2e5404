"""PKPO on mathematics with Gemma 2 9B.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_9b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

All settings except the model, the mesh and the batch sizes that depend on it
equal those of configs/pkpo/gemma2_2b_math.py. The mesh is for a TPU
v5litepod-128; in sampling, 8 chips share a copy of the weights. launch/FITS.md
has the memory and the estimated time. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=512; max_response=1024;
  model.hf=google/gemma-2-9b-it (Gemma2-9B; whether it is instruction-tuned is
  not said); eval.problems=500 (MATH has 12,500 problems, so its test split
  beside 12,000 has 500).
"""

from jaxrl_llm.configs.pkpo import gemma2_2b_math

PAPER = 'pkpo/gemma2_9b_math'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128


def get_config():
  """Returns the config."""
  c = gemma2_2b_math.get_config()
  c.model.hf = 'google/gemma-2-9b-it'
  c.mesh.data = 1
  c.mesh.fsdp = 16
  c.mesh.tensor = 8
  c.sampling.slots = 16
  c.learner.tokens_per_microbatch = 2560
  c.learner.remat = 'attention'
  return c


def get_hyper(hyper):
  """Returns the paper's sweep: baselines, and every k."""
  return gemma2_2b_math.arms(hyper, [2, 4, 8])
