"""CBS on mathematics with Qwen3 1.7B Base.

  python -m jaxrl_llm.train --config=configs/cbs/qwen3_1p7b_math.py \
      --config.task.path=problems.jsonl

The paper's setting: 128 prompts with 8 samples each, mini-batches of 16
prompts, learning rate 1e-6, responses of 4096 tokens, and the scheduler of its
Table 4. The argument chooses the objective and the scope. grpo (default), dapo
and gspo pick 1024 responses of the last 2048, for 8 updates. With _intra, 2 of
the 8 responses to each prompt are picked, for 2 updates; `--config.cbs.pool=1`
picks 307 of 1024, for 3 updates, where the paper makes 2 and drops 51 (appendix
D). The sweep has the objective without a bandit,
random responses, the ablations and buffers of 1024 to 5120 responses. A
buffered response has 53 kB: 2048 have 109 MB, of which 55 MB are held between
steps.

DAPO samples three times the prompts (the paper upsamples "the rollout by a
factor of three"), trains on one batch of those whose rewards
differ, and has a higher upper bound and a penalty of long responses. GSPO has
the bounds of its paper. Training files and the six held-out ones
(`task.heldout`) must have the fields `problem` and `answer`. The mesh fits any
number of devices that divides 32. launch/FITS.md has the memory and the
estimated time on 32 chips of v5e. Not run at this size yet.

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

from jaxrl_llm.configs.grpo import qwen3_1p7b_math as grpo

PAPER = 'cbs/1.7B'
TOPOLOGY = grpo.TOPOLOGY
OBJECTIVES = 'grpo', 'dapo', 'gspo'
ARGS = (*OBJECTIVES, *(f'{name}_intra' for name in OBJECTIVES))
VARIANTS = ('grpo_intra',)
HELDOUT = ('aime24.jsonl', 'aime25.jsonl', 'amc23.jsonl', 'math500.jsonl',
           'minerva.jsonl', 'olympiad.jsonl')


def get_config(arg=None):
  """Returns the config; `arg` is one of ARGS or None."""
  if arg not in (None, *ARGS):
    raise ValueError(f'{arg} is not a variant of this config: '
                     f'use one of {", ".join(ARGS)}, or none.')
  objective, _, scope = (arg or 'grpo').partition('_')
  c = grpo.get_config()
  c.task.heldout = HELDOUT
  c.selection = 'cbs'
  c.cbs.scope = 'intra_group' if scope else 'global'
  c.cbs.entropy_min = 0.1 if objective == 'grpo' else 0.5
  if objective == 'dapo':
    c.steps = 200
    c.curriculum = 'dynamic'
    c.curriculum_prompts = 384
    c.dynamic.max_rounds = 1
    c.overlong.mode = 'penalty'
    c.overlong.window = 819
    c.loss.aggregation = 'token_mean'
    c.loss.clip_high = 0.28
  if objective == 'gspo':
    c.loss.objective = 'gspo'
    c.loss.clip_low = 3e-4
    c.loss.clip_high = 4e-4
    c.cbs.epsilon_min = 0.005
  return c


def get_hyper(hyper):
  """Returns the paper's arms: baselines, ablations, and L of a global buffer.
  """
  return hyper.chainit([
      hyper.fixed('selection', 'all_rows'),
      hyper.product([
          hyper.fixed('selection', 'random'),
          hyper.fixed('random.rounds', 2)]),
      hyper.sweep('cbs.ablate', ['none', 'raw_gain', 'no_entropy']),
      hyper.product([
          hyper.fixed('cbs.scope', 'global'),
          hyper.sweep('cbs.rounds', [1, 3, 4, 5])])])
