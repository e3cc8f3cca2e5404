"""SPEED on mathematics with Qwen2.5-Math 7B.

  python -m jaxrl_llm.train --config=configs/speed/qwen25_7b_math.py:rloo \
      --config.task.path=problems.jsonl

As configs/speed/qwen25_1p5b_math.py, which has the arguments. The paper's
targets are .45 on DAPO-1k, .80 on MATH500, .55 on AMC2023 and .18 on AIME, and
its data DAPO-17k and DeepScaleR. 4 chips share the
weights for sampling. launch/FITS.md has the memory and the estimated time on 32
chips of v5e. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- task.path=problems.jsonl, in the paper DAPO-17k without the 1,000 that are
  held out, or DeepScaleR (section 5.1, Table 1): your file of one of them.
- dapo_alone: dynamic.max_rounds=none, in the paper 1 (DAPO's, which section 5.1
  names): groups beyond a batch wait for the next one; dropped, half of such
  waves would be lost.
- pkpo: advantage=pkpo, in the paper rloo (Eq. 8): SPEED with PKPO is ours.
- pkpo: speed.rule=signal, in the paper pass_rate (Algorithm 1): the rule for
  PKPO is ours.
- not given in the paper: steps=500 (the paper reports the time to an accuracy);
  max_prompt=1024; max_response=3072; task.template=qwen.
- rloo_alone, rloo, pkpo: not given in the paper: loss.clip_low=0.2;
  loss.clip_high=0.2.
- dapo_alone: not given in the paper: curriculum_prompts=none (a wave has the
  prompts of a batch).
- rloo, dapo, pkpo: not given in the paper: speed.n_init=4 (about 4 to 8 in
  section 4.1, and 4 does best in Figure 5).
- pkpo: not given in the paper: pkpo.k=8 (SPEED with PKPO is ours).
"""

from jaxrl_llm.configs.speed import qwen25_1p5b_math

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
