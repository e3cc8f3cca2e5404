"""PKPO on ARC-AGI-1 with Llama 3.1 8B: the paper's Table 6.

  python -m jaxrl_llm.train --config=configs/pkpo/llama31_8b_arc.py \
      --config.task.path=arc1_training.jsonl.gz

All settings except the model and the text of grids equal those of
configs/pkpo/gemma2_9b_arc.py. Llama 3's tokeniser joins up to three digits into
one token, so that the cells of a column would stand at different places of
tokens: here the digits have spaces between them, and each is a token of its
own. By characters, 95% of the prompts have at most 6144 and the longest answer
has 1799. The paper reports a cumulative solve rate of 22% with k=1 and of 89%
with k=8, and a pass@16 of 8% and 43%. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- steps=3000, in the paper until the cumulative solve rate has not changed for
  1000 steps (section 5.2.4): a run has a number of steps; stop it by hand when
  solve_rate has not changed.
- not given in the paper: learner.updates=1; optimizer.learning_rate=1e-06;
  optimizer.warmup_steps=10; task.template=chat; max_prompt=6144;
  max_response=2048; model.hf=meta-llama/Llama-3.1-8B-Instruct (Llama3.1-8B;
  whether it is instruction-tuned is not said); prompts_per_step=16;
  task.reward=cells (exact is the other); task.digits=spaced (each digit is a
  token of Llama's own).
"""

from jaxrl_llm.configs.pkpo import gemma2_9b_arc

PAPER = 'pkpo/llama31_8b_arc'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
get_hyper = gemma2_9b_arc.get_hyper


def get_config():
  """Returns the config."""
  c = gemma2_9b_arc.get_config()
  c.model.hf = 'meta-llama/Llama-3.1-8B-Instruct'
  c.task.digits = 'spaced'
  c.max_prompt = 6144
  c.max_response = 2048
  c.learner.tokens_per_microbatch = 10240
  return c
