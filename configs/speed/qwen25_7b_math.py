"""SPEED on mathematics with Qwen2.5-Math 7B.

  python -m jaxrl_llm.train --config=configs/speed/qwen25_7b_math.py:rloo \
      --config.task.path=problems.jsonl

As configs/speed/qwen25_1p5b_math.py, which has the arguments. 4 chips share the
weights for sampling. launch/FITS.md has the memory and the estimated time on 32
chips of v5e. Not run at this size yet.
"""

from configs.speed import qwen25_1p5b_math

ARGS = qwen25_1p5b_math.ARGS
PAPER = 'speed/7B'
TOPOLOGY = 'v5e:4x8'  # v5litepod-32
get_hyper = qwen25_1p5b_math.table_1


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS."""
  c = qwen25_1p5b_math.get_config(arg)
  c.model.hf = 'Qwen/Qwen2.5-Math-7B'
  c.mesh.tensor = 4
  c.mesh.learner_tensor = 1
  c.sampling.slots = 64
  return c
