"""SPEED on mathematics with Qwen2.5-Math 1.5B: the paper's experiment.

  python -m jaxrl_llm.train --config=configs/speed/qwen25_1p5b_math.py:rloo \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

Settings of arXiv:2506.09016: 64 new prompts a step are screened with 8 samples,
those that qualify get 16 more, and 16 prompts make a train batch. The learning
rate is 1e-6 after 10 updates of warm-up, the weight decay is .1.

The argument is one of:
- rloo (the default), dapo: SPEED on these. DAPO has the clips .2 and .28.
- rloo_alone, dapo_alone: the baselines without SPEED, of 16 prompts with 24
  samples. DAPO's is dynamic sampling.
- pkpo: SPEED under PKPO with k=8, where the rule "signal" differs from the
  paper's `speed.rule=pass_rate`.

The paper trains on NuminaMath, DAPO-17k or DeepScaleR, and reports the time to
an accuracy, on four GH200. The data files must have the fields `problem` and
`answer`. The paper does not give the lengths, the temperature or the number of
steps; these are our choices. The mesh fits any number of devices that divides
32. launch/FITS.md has the memory and the estimated time on 32 chips of v5e. Not
run at this size yet.
"""

from jaxrl_llm import config

ARGS = 'rloo', 'dapo', 'pkpo', 'rloo_alone', 'dapo_alone'
TOPOLOGY = 'v5e:4x8'  # v5litepod-32


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS."""
  arg = 'rloo' if arg is None else arg
  if arg not in ARGS:
    raise ValueError(
        f'{arg} is not a variant of this config: use one of {", ".join(ARGS)}.')
  c = config.base()
  c.steps = 500
  c.prompts_per_step = 16
  c.samples_per_prompt = 24
  c.max_prompt = 1024
  c.max_response = 3072

  c.model.hf = 'Qwen/Qwen2.5-Math-1.5B'
  c.task.name = 'math'
  c.task.path = ('problems.jsonl',)
  c.task.heldout = ('math500.jsonl',)
  c.task.template = 'qwen'

  c.advantage = 'rloo'
  c.loss.aggregation = 'sequence_mean'
  if arg.startswith('dapo'):
    c.advantage = 'grpo'
    c.loss.aggregation = 'token_mean'
    c.loss.clip_high = 0.28
  if arg == 'pkpo':
    c.advantage = 'pkpo'
    c.pkpo.k = 8
  if arg == 'dapo_alone':
    c.curriculum = 'dynamic'
  elif arg != 'rloo_alone':
    c.curriculum = 'speed'
    c.curriculum_prompts = 64
    c.speed.n_init = 8

  c.optimizer.learning_rate = 1e-6
  c.optimizer.warmup_steps = 10
  c.optimizer.weight_decay = 0.1

  c.mesh.data = 1
  c.mesh.fsdp = -1
  c.sampling.slots = 32
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 4096
  c.learner.remat = 'attention'
  c.eval.every = 20
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns a sweep: three seeds."""
  return hyper.sweep('seed', [0, 1, 2])
