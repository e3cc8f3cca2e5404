"""SPEED on mathematics with Qwen2.5-Math 1.5B: the paper's experiment.

  python -m jaxrl_llm.train --config=configs/speed/qwen25_1p5b_math.py:rloo \
      --config.task.path=problems.jsonl

Settings of arXiv:2506.09016 (withdrawn by an author on 4 March 2026, v3): 64
new prompts a step are screened, those that are neither all right nor all wrong
get the rest of 24 samples, and 16 prompts make a train batch. The learning rate
is 1e-6 after 10 updates of warm-up, the weight decay is .1.

The argument is one of:
- rloo (the default), dapo: SPEED on these. DAPO has the clips .2 and .28.
- rloo_alone, dapo_alone: the baselines without SPEED, of 16 prompts with 24
  samples. DAPO's is dynamic sampling.
- pkpo: ours, SPEED under PKPO with k=8 and the rule "signal".

The paper reports the time to an accuracy, on four GH200: .30 on DAPO-1k, .70 on
MATH500, .40 on AMC2023 and .10 on AIME. The sweep has the arms of its Table 1
(where DAPO on DAPO-17k is missing) and Figure 5 (on DAPO-17k), and the rule
"signal", which is ours. Training files and the five held-out ones
(`task.heldout`) must have the fields `problem` and `answer`. The mesh fits any
number of devices that divides 32. launch/FITS.md has the memory and the
estimated time on 32 chips of v5e. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- task.path=problems.jsonl, in the paper NuminaMath with integer answers
  (220,000), or DAPO-17k without the 1,000 that are held out (section 5.1, Table
  1): your file of one of them.
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

from jaxrl_llm import config

PAPER = 'speed/1.5B'
TOPOLOGY = 'v5e:4x8'  # v5litepod-32
HELDOUT = ('dapo1k.jsonl', 'math500.jsonl', 'aime24.jsonl', 'aime25.jsonl',
           'amc23.jsonl')
RLOO = {'advantage': 'rloo', 'loss.aggregation': 'constant',
        'loss.clip_high': 0.2}
DAPO = {'advantage': 'grpo', 'loss.aggregation': 'token_mean',
        'loss.clip_high': 0.28}
SPEED = {'curriculum': 'speed', 'curriculum_prompts': 64, 'speed.n_init': 4,
         'speed.rule': 'pass_rate'}
# What each argument says of the objective and of the prompts.
ARMS = {
    'rloo_alone': {
        **RLOO, 'curriculum': 'uniform', 'curriculum_prompts': None},
    'dapo_alone': {
        **DAPO, 'curriculum': 'dynamic', 'curriculum_prompts': None},
    'rloo': {**RLOO, **SPEED},
    'dapo': {**DAPO, **SPEED},
    'pkpo': {**RLOO, **SPEED, 'advantage': 'pkpo', 'pkpo.k': 8,
             'speed.rule': 'signal'}}
ARGS = tuple(ARMS)


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
  c.task.heldout = HELDOUT
  c.task.template = 'qwen'

  c.update_from_flattened_dict(ARMS[arg])
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


def table_1(hyper):
  """Returns the paper's algorithms, baselines first, and ours."""
  del hyper
  names = 'rloo_alone', 'dapo_alone', 'rloo', 'dapo'
  return [*map(ARMS.get, names), {**ARMS['rloo'], 'speed.rule': 'signal'}]


def get_hyper(hyper):
  """Returns `table_1`, and the larger screens of Figure 5."""
  return table_1(hyper) + [
      {**ARMS['rloo'], **more} for more in hyper.sweep('speed.n_init', [6, 8])]
