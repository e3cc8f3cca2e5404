"""Jackpot on mathematics with Qwen3 4B Base: 64 updates on each rollout batch.

  python -m jaxrl_llm.train --config=configs/jackpot/qwen3_4b_math.py \
      --config.task.path=problems.jsonl

The staleness experiment of Jackpot (v1, Table 1; v2, Tables 2 and 3): a rollout
batch of 2048 prompts is split into mini-batches of 32, so the last update is
made 64 updates after its rows were written. `qwen3_4b_math.py:128x` has 4096
prompts and 128 updates. Tokens are masked and weighted by OBRS towards the
policy in training, and the loss is not clipped: lam 1, c1 3, Z over the 20
likeliest tokens. The sweep has the papers' baselines. `qwen3_4b_math.py:int8`
samples with an int8 cache and more slots. Jackpot corrects for the
rounding, and so does TIS, but not the other baselines: run these without it.

The papers train for 30,000 examples, with responses of at most 8192 tokens.
They give batches and examples without a unit; all are read as prompts, since in
responses an on-policy batch of 32 would have 4 prompts. Training files and the
six held-out ones (`task.heldout`) must have the fields `problem` and `answer`.
The mesh is for 128 chips, with 128x for 256, since the rollouts of a step stay
on the chips; launch/FITS.md has the memory and the estimated time. Not run at
this size yet.

Beside the paper, as python -m configs.papers writes it:
- jackpot.alpha=acceptance, in the paper mask (v2 section 4.4.2, the share
  accepted): the same mean as that of the mask, with less variance.
- jackpot.two_pass=false, in the paper true (v2 section 4.4.2, of the same
  batch): kappa of the update before saves a forward pass.
- task.path=problems.jsonl, in the paper DeepScaleR-Preview (v2 section 5): your
  file of it.
- eval.samples=4, in the paper 4, on AIME 16 (v2 Tables 2 and 3): one number for
  all files; evaluate a checkpoint again with eval.samples=16 eval.k=1,16.
- eval.k=1,4, in the paper 1, on AIME 1 and 16 (v2 Tables 2 and 3): one number
  for all files; evaluate a checkpoint again with eval.samples=16 eval.k=1,16.
- not given in the paper: jackpot.c1=3.0 (2 to 10 in v1 appendix C.2, and 2, 3,
  4 and 8 in v1 Table 7); jackpot.denominator=accepted (the estimate of the mean
  over kept tokens); samples_per_prompt=8; optimizer.learning_rate=1e-06;
  max_prompt=1024; task.template=qwen; loss.aggregation=token_mean (v2 Eq. 5 is
  a mean over tokens, the GRPO that it names one over responses).
- int8: not given in the paper: sampling.kv=int8 (half the bytes, and Jackpot
  corrects it).
"""

from jaxrl_llm import config

ARGS = ('128x', 'int8')
VARIANTS = ARGS
PAPER = 'jackpot/4b'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128
TOPOLOGIES = {'128x': 'v5e:16x16'}
HELDOUT = ('gsm8k.jsonl', 'math500.jsonl', 'amc22_23.jsonl', 'amc12_2024.jsonl',
           'aime24.jsonl', 'aime25.jsonl')
# Baselines: clipped PPO, also with truncated importance sampling, and v1's "TIS
# with Adjustment", v2's "No-Clip": the gradient of min(p_new / p_old, 3) log
# p_new.
CLIP = {'off_policy': 'none', 'loss.objective': 'clip'}
TIS = {**CLIP, 'loss.importance': 'tis', 'loss.importance_cap': 3.0}
NO_CLIP = {'off_policy': 'none', 'loss.objective': 'cispo',
           'loss.clip_low': 1.0, 'loss.clip_high': 2.0}


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(f'{arg} is not a variant of this config: '
                     f'use one of {", ".join(ARGS)}, or none.')
  c = config.base()
  c.steps = 15  # 30,720 prompts
  c.prompts_per_step = 2048
  c.samples_per_prompt = 8
  c.learner.updates = 64
  if arg == '128x':
    c.steps = 8  # 32,768 prompts
    c.prompts_per_step = 4096
    c.learner.updates = 128
  c.max_prompt = 1024
  c.max_response = 8192

  c.model.hf = 'Qwen/Qwen3-4B-Base'
  c.task.name = 'math'
  c.task.path = ('problems.jsonl',)
  c.task.heldout = HELDOUT
  c.task.template = 'qwen'

  c.off_policy = 'jackpot'
  c.loss.objective = 'no_clip'
  c.optimizer.learning_rate = 1e-6

  c.mesh.data = 2 if arg == '128x' else 1
  c.mesh.fsdp = 32
  c.mesh.tensor = 4
  c.mesh.learner_tensor = 1
  c.sampling.slots = 32 if arg == 'int8' else 16
  c.sampling.kv = 'int8' if arg == 'int8' else None
  c.sampling.prefill_prompts = 8  # of 64 on a data shard
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 9216
  c.learner.remat = 'attention'
  c.eval.every = 1
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 1
  return c


def get_hyper(hyper, steps=938):
  """Returns the papers' arms, baselines first; `steps` are those on-policy."""
  del hyper
  on_policy = {**CLIP, 'prompts_per_step': 32, 'learner.updates': 1,
               'steps': steps, 'eval.every': 64, 'checkpoint.every': 64}
  return [on_policy, CLIP, TIS, NO_CLIP,
          {'loss.objective': 'clip', 'jackpot.c2': 1.3},
          {'loss.objective': 'no_clip'}]
