"""PKPO on ARC-AGI-1 with Gemma 2 9B: the paper's Table 5.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_9b_arc.py \
      --config.task.path=arc1_training.jsonl.gz

All settings except the model, the mesh and the slots equal those of
configs/pkpo/gemma2_2b_arc.py, which says what is the paper's and what is ours.
The paper reports a cumulative solve rate of 12% with k=1 and of 84% with k=8,
and a pass@16 of 8% and 45% on the held-out fifth. The mesh is for a TPU
v5litepod-128; in sampling, 8 chips share a copy of the weights. Not run at this
size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- steps=3000, in the paper until the cumulative solve rate has not changed for
  1000 steps (section 5.2.4): a run has a number of steps; stop it by hand when
  solve_rate has not changed.
- not given in the paper: learner.updates=1; optimizer.learning_rate=1e-06;
  optimizer.warmup_steps=10; task.template=chat; max_prompt=4096;
  max_response=1024; model.hf=google/gemma-2-9b-it (Gemma2-9B; whether it is
  instruction-tuned is not said); prompts_per_step=16; task.reward=cells (exact
  is the other).
"""

from jaxrl_llm.configs.pkpo import gemma2_2b_arc

PAPER = 'pkpo/gemma2_9b_arc'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = gemma2_2b_arc.get_hyper


def get_config():
  """Returns the config."""
  c = gemma2_2b_arc.get_config()
  c.model.hf = 'google/gemma-2-9b-it'
  c.mesh.data = 1
  c.mesh.fsdp = 16
  c.mesh.tensor = 8
  c.sampling.slots = 16
  return c
