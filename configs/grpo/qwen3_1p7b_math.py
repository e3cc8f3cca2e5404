"""GRPO on mathematics with Qwen3 1.7B Base.

  python -m jaxrl_llm.train --config=configs/grpo/qwen3_1p7b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

This is the baseline of the paper on contextual bandit scheduling: 128 prompts
with 8 samples each, 8 updates of 16 prompts per step, the mean over responses
of each one's mean over tokens, learning rate 1e-6, responses of 4096 tokens,
and the paper's prompt template. The data files must have the fields `problem`
and `answer`. The mesh fits any number of devices that divides 32.
launch/FITS.md has the memory and the estimated time on 32 chips of v5e. Not run
at this size yet.

Beside the paper, as python -m configs.papers writes it:
- task.path=problems.jsonl, in the paper DAPO and MATH, levels 3 to 5, 21,723
  problems (section 6.1): your file of them.
- task.judge=answers, in the paper math_verify (appendix D): this library's own
  judge, which accepts fewer wrong answers and needs no extra.
- eval.samples=4, in the paper 1 (appendix D, in training; 16 on AIME, and 4 and
  32 after it): one number for all files.
- task.heldout=math500.jsonl, in the paper
  aime24.jsonl,aime25.jsonl,amc23.jsonl,math500.jsonl,minerva.jsonl,olympiad.jsonl
  (section 6.1): this config is a start for your own, too.
- not given in the paper: max_prompt=1024; loss.clip_low=0.2;
  loss.clip_high=0.2.
"""

from jaxrl_llm import config

PAPER = 'cbs/alone'
TOPOLOGY = 'v5e:4x8'  # v5litepod-32


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 500
  c.prompts_per_step = 128
  c.samples_per_prompt = 8
  c.max_prompt = 1024
  c.max_response = 4096

  c.model.hf = 'Qwen/Qwen3-1.7B-Base'
  c.task.name = 'math'
  c.task.path = ('problems.jsonl',)
  c.task.heldout = ('math500.jsonl',)
  c.task.template = 'qwen'

  c.advantage = 'grpo'
  c.loss.aggregation = 'sequence_mean'
  c.learner.updates = 8
  c.optimizer.learning_rate = 1e-6

  c.mesh.data = 1
  c.mesh.fsdp = -1
  c.sampling.slots = 16
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 5120
  c.learner.remat = 'attention'
  c.eval.every = 20
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns a sweep: two treatments of truncated responses, three seeds each.
  """
  return hyper.product([
      hyper.sweep('overlong.mode', ['none', 'mask']),
      hyper.sweep('seed', [0, 1, 2])])
