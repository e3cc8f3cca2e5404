"""PKPO on mathematics with Gemma 2 2B: the paper's main experiment.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_2b_math.py \
      --config.task.path=math/train.jsonl \
      --config.task.heldout=math/test.jsonl

These settings follow arXiv:2505.15201: n=16; k_opt of 1, 2, 4 or 8, or annealed
from 8 to 1 at step 1500; k=n=16 and entropy bonuses with k=1 as baselines; and
the metrics of each step. The paper reports about four hours per 1000 steps on a
TPU v5litepod-128. The mesh is for its 128 chips; elsewhere, set mesh.data=1
mesh.fsdp=-1 mesh.tensor=1. The paper trains on Hendrycks MATH, 12,000 problems,
and evaluates on its test split: read as the split whose test is MATH-500.
Provide both as files with the fields `problem` and `answer` (bare, or the
solution with its box).

Sampling takes most of a step: each of its 1024 decode steps reads a chip's part
of the weights, and 256 responses leave most of a pod idle.
`gemma2_2b_math.py:pod` has 128 prompts per step, and `:4k` has also rows of
4096 tokens. `:slices` is `:pod` on two such slices, with 256 prompts per step:
the network between them carries gradients alone. launch/FITS.md has the memory
and the estimated time of each. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- pod, 4k: prompts_per_step=128, in the paper 16 (Figure 6, of a Gemma 2: 12,000
  problems in 750 steps): 16 prompts leave most of a pod idle.
- slices: prompts_per_step=256, in the paper 16 (Figure 6, of a Gemma 2: 12,000
  problems in 750 steps): 16 prompts leave most of a pod idle.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=512; model.hf=google/gemma-2-2b-it (Gemma2-2B;
  whether it is instruction-tuned is not said); eval.problems=500 (MATH has
  12,500 problems, so its test split beside 12,000 has 500).
- without argument, pod, slices: not given in the paper: max_response=1024.
- 4k: not given in the paper: max_response=3584.
"""

from jaxrl_llm import config

PAPER = 'pkpo/gemma2_2b_math'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
VARIANTS = ('pod', '4k', 'slices')
TOPOLOGIES = {'slices': '2xv5e:16x8'}  # of variants that need another slice


def get_config(arg=None):
  """Returns the config; `arg` is one of VARIANTS or None."""
  if arg not in (None, *VARIANTS):
    raise ValueError(f'{arg} is not a variant of this config: '
                     f'use one of {", ".join(VARIANTS)}, or none.')
  c = config.base()
  c.steps = 3000
  c.prompts_per_step = 16
  c.samples_per_prompt = 16
  c.max_prompt = 512
  c.max_response = 1024

  c.model.hf = 'google/gemma-2-2b-it'
  c.task.name = 'math'
  c.task.path = ('math/train.jsonl',)
  c.task.heldout = ('math/test.jsonl',)
  c.task.template = 'chat'

  c.advantage = 'pkpo'
  c.pkpo.k = 8
  # The transforms are unbiased for this gradient: one update per step, so
  # clipping has no effect, and a sum over tokens divided by a constant.
  c.loss.objective = 'no_clip'
  c.loss.aggregation = 'constant'
  c.optimizer.learning_rate = 1e-6
  c.optimizer.warmup_steps = 10
  c.eval_k = (1, 2, 4, 8, 12, 16)

  # In sampling, 4 chips share a copy of the weights: with few responses per
  # chip, a decode step is bound by reading the weights. Updates split no matrix
  # over these 4.
  c.mesh.data = 4
  c.mesh.fsdp = 8
  c.mesh.tensor = 4
  c.mesh.learner_tensor = 1
  c.sampling.slots = 64
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 2560
  c.learner.remat = 'matmuls'
  c.eval.every = 250
  c.eval.problems = 500
  c.eval.samples = 16
  c.eval.k = (1, 2, 4, 8, 12, 16)
  c.checkpoint.every = 100
  if arg is not None:
    c.prompts_per_step = 128
    # 8 full rows on each chip: weights are gathered a quarter as often.
    c.learner.tokens_per_microbatch = 8704
    c.learner.remat = 'attention'
  if arg == 'slices':
    c.prompts_per_step = 256
    c.mesh.data = 8
  if arg == '4k':
    c.max_response = 3584
    c.mesh.data = 8
    c.mesh.fsdp = 16
    c.mesh.tensor = 1
    c.sampling.slots = 16
    c.learner.tokens_per_microbatch = 14848
    c.learner.remat = 'attention'
  return c


def arms(hyper, ks):
  """Returns the runs of one of the paper's tables, with three seeds each.

  Args:
    hyper: module launch.hyper.
    ks: the table's k_opt between the baselines 1 and 16=n (of Tang et al.).
  """
  return hyper.product([
      hyper.chainit([
          hyper.sweep('pkpo.k', [1, 16]),
          hyper.product([
              hyper.fixed('pkpo.k', 1),
              hyper.sweep('loss.entropy_bonus',
                          [0.001, 0.005, 0.01, 0.05, 0.1])]),
          hyper.sweep('pkpo.k', ks)]),
      hyper.sweep('seed', [0, 1, 2])])


def get_hyper(hyper):
  """Returns the paper's sweep: baselines, every k, and annealed k."""
  return arms(hyper, [2, 4, 8, '0:8,1500:1'])
