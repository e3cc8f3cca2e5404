"""PKPO on code with Gemma 2 2B: trains on MBPP, evaluates on HumanEval.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_2b_mbpp.py \
      --config.task.path=mbpp.jsonl --config.task.heldout=humaneval.jsonl

From arXiv:2505.15201 (section 5.2, Tables 3, 4 and 8): n=16; k_opt of 1, 2, 4
and 8; k=n and entropy bonuses of .001, .005, .01, .05 and .1 as baselines; the
reward is the share of unit tests passed, a continuous one; evaluation on
HumanEval. Tables report pass@k of HumanEval for k of 1 to 16.

The prompt shows a problem's three tests, as in MBPP's own paper; a held-out
problem counts as solved when its whole check passes. Programs run in bubblewrap
on the hosts of the TPUs; see docs/sandbox.md for `task.sandbox=remote`.

The mesh is for a TPU v5litepod-128; elsewhere, set mesh.data=1 mesh.fsdp=-1
mesh.tensor=1. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=1024; max_response=512;
  model.hf=google/gemma-2-2b-it (Gemma2-2B; whether it is instruction-tuned is
  not said); prompts_per_step=16; task.ids='' (all 974 problems of MBPP, since
  the paper does not say; 601-974 is its training set).
"""

from jaxrl_llm.configs.pkpo import gemma2_2b_math

PAPER = 'pkpo/gemma2_2b_mbpp'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128


def get_config():
  """Returns the config."""
  c = gemma2_2b_math.get_config()
  c.task.name = 'code'
  c.task.path = ('mbpp.jsonl',)
  c.task.heldout = ('humaneval.jsonl',)
  # Responses that are full of reasoning are of no use here.
  c.max_response = 512
  c.max_prompt = 1024
  c.eval.problems = 164
  return c


def get_hyper(hyper):
  """Returns the paper's sweep: baselines, and every k."""
  return gemma2_2b_math.arms(hyper, [2, 4, 8])
