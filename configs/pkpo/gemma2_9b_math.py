"""PKPO on mathematics with Gemma 2 9B.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_9b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

All but the model and the mesh, for a TPU v5litepod-128, is that of
configs/pkpo/gemma2_2b_math.py: one copy of the weights is split over 8 chips in
sampling. launch/FITS.md has its memory and its estimated time. Not run at this
size yet.
"""

from configs.pkpo import gemma2_2b_math

TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = gemma2_2b_math.get_hyper


def get_config(arg=None):
  """The experiment; `arg` is that of the 2B's config."""
  c = gemma2_2b_math.get_config(arg)
  c.model.hf = 'google/gemma-2-9b-it'
  c.mesh.data = 1
  c.mesh.fsdp = 16
  c.mesh.tensor = 8
  c.sampling.slots = 16
  c.learner.microbatch = 32
  return c
