"""CBS on mathematics with Qwen3 8B Base.

  python -m jaxrl_llm.train --config=configs/cbs/qwen3_8b_math.py \
      --config.task.path=problems.jsonl

As configs/cbs/qwen3_1p7b_math.py, with the same arguments; the paper's Table 4
gives DAPO an e_min of .8. The mesh is for 128 chips; launch/FITS.md has the
memory and the estimated time. Not run at this size yet.
"""

from configs.cbs import qwen3_1p7b_math as smaller

ARGS = smaller.ARGS
PAPER = 'cbs/8B'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = smaller.get_hyper


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  c = smaller.get_config(arg)
  c.model.hf = 'Qwen/Qwen3-8B-Base'
  if arg == 'dapo':
    c.cbs.entropy_min = 0.8
  c.mesh.fsdp = 32
  c.mesh.tensor = 4
  c.mesh.learner_tensor = 1
  c.learner.tokens_per_microbatch = 5120
  return c
