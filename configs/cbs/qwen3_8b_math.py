"""CBS on mathematics with Qwen3 8B Base.

  python -m jaxrl_llm.train --config=configs/cbs/qwen3_8b_math.py \
      --config.task.path=problems.jsonl

As configs/cbs/qwen3_1p7b_math.py, with the same arguments; the paper's Table 4
gives DAPO an e_min of .8. The mesh is for 128 chips; launch/FITS.md has the
memory and the estimated time. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- task.path=problems.jsonl, in the paper DAPO and MATH, levels 3 to 5, 21,723
  problems (section 6.1): your file of them.
- task.judge=answers, in the paper math_verify (appendix D): this library's own
  judge, which accepts fewer wrong answers and needs no extra.
- eval.samples=4, in the paper 1 (appendix D, in training; 16 on AIME, and 4 and
  32 after it): one number for all files.
- grpo_intra, dapo_intra, gspo_intra: cbs.pool=false, in the paper true
  (appendix D, an approximation): by Definition 3.1, 2 of 8 of each group;
  cbs.pool=1 picks 307 of 1024, for 3 updates, where the paper makes 2 and drops
  51.
- not given in the paper: max_prompt=1024; cbs.width=64; cbs.layers=2.
- grpo, grpo_intra: not given in the paper: loss.clip_low=0.2;
  loss.clip_high=0.2.
- dapo, dapo_intra: not given in the paper: loss.clip_low=0.2 (DAPO's);
  loss.clip_high=0.28 (DAPO's); overlong.window=819 (DAPO's, a fifth of the
  response; appendix D has rewards of 0 and 1, without this penalty).
- gspo, gspo_intra: not given in the paper: loss.clip_low=0.0003 (GSPO's);
  loss.clip_high=0.0004 (GSPO's).
"""

from jaxrl_llm.configs.cbs import qwen3_1p7b_math as smaller

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
