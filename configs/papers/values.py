"""Values of the papers' experiments and differences of the configs, as data.

`EXPERIMENTS` has an experiment for each config of a paper: a config file names
it (`PAPER`), and an argument adds ':ARGUMENT'. `paper` has the paper's values,
each with the equation, table or section that says so. `ours` has the values in
which a config differs, and those that the paper does not give, each with the
reason. `arms` are the runs that the paper compares, which `get_hyper` must
have, and those that only `get_hyper` has. Where a text can be read in two ways,
the source or the reason says how it was read.

tests/configs_papers_test.py builds every config and compares. `python -m
configs.papers` writes the lists of differences in the headers of the configs,
and docs/papers.md.
"""

import math
from typing import Any, Mapping, NamedTuple

Values = Mapping[str, tuple[Any, str]]


class Arm(NamedTuple):
  """A run that an experiment compares.

  Attributes:
    name: as the paper calls it.
    fields: config field to value, where it differs from the experiment.
    source: table or figure that has it; '' if it is ours alone.
    left_out: why get_hyper does not have it; '' if it has.
    ours: what the source does not say of it, or how it was read.
  """
  name: str
  fields: Mapping[str, Any]
  source: str = ''
  left_out: str = ''
  ours: str = ''


class Experiment(NamedTuple):
  """An experiment of a paper and the config that is made after it.

  Attributes:
    title: for the reader.
    paper: config field to the paper's value and where the paper says so; a
      text where a field cannot have it, and is in `ours` too.
    ours: config field to our value and why. With a field of `paper` it is a
      difference, else the paper does not say.
    arms: runs that are compared; the one without fields is the config itself.
    small: whether it is a model of this repository's own on a small task. Only
      the method is the paper's then.
  """
  title: str
  paper: Values
  ours: Values
  arms: tuple[Arm, ...]
  small: bool = False


def _arms(source: str, field: str, values: Mapping[Any, str] | list[Any],
          **fixed: Any) -> tuple[Arm, ...]:
  """Makes an arm for each value of a field; '__' in names stands for a dot."""
  fixed = {name.replace('__', '.'): value for name, value in fixed.items()}
  return tuple(Arm(
      f'{field}={value}', {field: value, **fixed}, source) for value in values)


# PKPO, arXiv:2505.15201.

PKPO = {
    'samples_per_prompt': (16, 'section 5.2'),
    'advantage': ('pkpo', 'section 5.2'),
    'pkpo.transform': ('sloo_minus_one', 'section 5.2, Eq. 33'),
    'pkpo.batch_std': (False, 'Eq. 18'),
    'loss.aggregation': ('constant', 'Eq. 18, a sum over samples'),
    'loss.objective': ('clip', 'section 5.2, PPO'),
    'loss.entropy_bonus': (0.0, 'section 5.2, a baseline of its own'),
    'eval_k': ((1, 2, 4, 8, 12, 16), 'section 5.2')}
PKPO_LARGE = PKPO | {'pkpo.k': (8, 'section 5.2, one of 1, 2, 4, 8')}
PKPO_OURS = {
    'loss.objective': (
        'no_clip', 'with one update per step the ratio is 1, and clipping has '
        'no effect'),
    'learner.updates': (1, 'not given'),
    'steps': (3000, 'not given; Figure 3 changes k at step 1500'),
    'optimizer.learning_rate': (1e-6, 'not given'),
    'optimizer.warmup_steps': (10, 'not given'),
    'task.template': ('chat', 'not given'),
    'max_prompt': (512, 'not given'),
    'max_response': (1024, 'not given')}
_TANG = Arm('k=n=16, Tang et al.', {'pkpo.k': 16})
_REG = [0.001, 0.005, 0.01, 0.05, 0.1]
_ANNEALED = '0:8,1500:1'


def _pkpo_arms(source: str, ks: list[int], annealed: bool) -> tuple[Arm, ...]:
  """Returns the arms of a table: baselines, each k, and k that falls."""
  return (
      Arm('k=1, leave-one-out', {'pkpo.k': 1}, source),
      _TANG._replace(source=source),
      *_arms(f'{source}, EntropyReg', 'loss.entropy_bonus', _REG, pkpo__k=1),
      *_arms(source, 'pkpo.k', ks), Arm('k=8', {}, source),
      *[Arm('annealed k', {'pkpo.k': _ANNEALED}, 'Figure 3, whose model and '
            'task are not said: read as those of Figure 7')] * annealed)


def _pkpo(model: str, hf: str, task: str, source: str) -> Experiment:
  """Returns the experiment of a model on a task: math, mbpp or arc."""
  ours = PKPO_OURS | {'model.hf': (
      hf, f'{model}; whether it is instruction-tuned is not said')}
  paper = dict(PKPO_LARGE)
  prompts = {'prompts_per_step': (16, 'not given for this task')}
  if task == 'math':
    paper |= {
        'task.name': ('math', 'section 5.2'),
        'task.path': (('math/train.jsonl',), 'section 5.2.1, 12,000 problems'),
        'task.heldout': (('math/test.jsonl',), 'section 5.2.2')}
    ours |= {'eval.problems': (
        500, 'not given; MATH has 12,500 problems, so its test split beside '
        '12,000 has 500')}
    if 'Gemma' in model:
      paper |= {'prompts_per_step': (
          16, 'Figure 6, of a Gemma 2: 12,000 problems in 750 steps')}
    else:
      ours |= {'prompts_per_step': (16, 'not given for this model')}
  elif task == 'mbpp':
    paper |= {
        'task.name': ('code', 'section 5.2'),
        'task.path': (('mbpp.jsonl',), 'section 5.2.2'),
        'task.heldout': (('humaneval.jsonl',), 'section 5.2.2'),
        'task.reward': ('tests', 'section 5.2.2, the share of unit tests')}
    ours |= prompts | {
        'max_prompt': (1024, 'not given'), 'max_response': (512, 'not given'),
        'task.ids': ('', 'all 974 problems of MBPP, since the paper does not '
                     'say; 601-974 is its training set')}
  else:
    paper, ours = _pkpo_arc(paper, ours | prompts, source)
  if task == 'arc' and 'llama' in hf:
    ours |= {
        'max_prompt': (6144, 'not given'), 'max_response': (2048, 'not given'),
        'task.digits': ('spaced', "each digit is a token of Llama's own")}
  ks = [4] if task == 'arc' else [2, 4]
  figure_3 = (task, model) == ('math', 'Gemma2-2B')
  arms = _pkpo_arms(source, ks, figure_3)
  if 'Figure 8' in source:  # which has no other baselines
    arms = tuple(
        arm._replace(source='', ours='as in Tables 5 and 6')
        if arm.fields.get('pkpo.k') == 16 or 'loss.entropy_bonus' in arm.fields
        else arm for arm in arms)
  return Experiment(f'PKPO: {model}, {source}', paper, ours, arms)


def _pkpo_arc(
    paper: Values, ours: Values, source: str) -> tuple[Values, Values]:
  """Returns both values with those of ARC-AGI-1."""
  paper = {
      **paper, 'task.name': ('arc', 'section 5.2'),
      'task.path': (('arc1_training.jsonl.gz',), 'section 5.2, "the easy '
                    'public subset", read as the public training set')}
  ours = {
      **ours, 'max_prompt': (4096, 'not given'),
      'max_response': (1024, 'not given'),
      'task.reward': ('cells', 'not given; exact is the other')}
  if 'Figure 8' in source:
    return paper, {**ours, 'task.heldout_share': (
        0.2, 'not given for this experiment; as in Tables 5 and 6')}
  split = {
      'task.heldout_share': (0.2, 'section 5.2.4'),
      'steps': ('until the cumulative solve rate has not changed for 1000 '
                'steps', 'section 5.2.4')}
  return {**paper, **split}, {**ours, 'steps': (
      3000, 'a run has a number of steps; stop it by hand when solve_rate has '
      'not changed')}


def _larger(one: Experiment, prompts: int, **ours: Any) -> Experiment:
  """Returns an experiment with more prompts in a step, for a whole pod."""
  return one._replace(ours={
      **one.ours, 'prompts_per_step': (
          prompts, '16 prompts leave most of a pod idle'),
      **{name: (value, 'not given') for name, value in ours.items()}})


def _pkpo_experiments() -> dict[str, Experiment]:
  """Returns PKPO's experiments."""
  models = {'gemma2_2b': ('Gemma2-2B', 'google/gemma-2-2b-it'),
            'gemma2_9b': ('Gemma2-9B', 'google/gemma-2-9b-it'),
            'llama31_8b': ('Llama3.1-8B', 'meta-llama/Llama-3.1-8B-Instruct')}
  sources = {
      'math': ('Table 7', 'Table 1', 'Table 2'),
      'mbpp': ('Table 8', 'Table 3', 'Table 4'),
      'arc': ('Figure 8, whose model is not said', 'Table 5', 'Table 6')}
  made = {
      f'pkpo/{name}_{task}': _pkpo(*models[name], task, source)
      for task, of_models in sources.items()
      for name, source in zip(models, of_models)}
  two, eight = (made[f'pkpo/{name}_math'] for name in (
      'gemma2_2b', 'llama31_8b'))
  return made | {
      'pkpo/gemma2_2b_math:pod': _larger(two, 128),
      'pkpo/gemma2_2b_math:4k': _larger(two, 128, max_response=3584),
      'pkpo/gemma2_2b_math:slices': _larger(two, 256),
      'pkpo/llama31_8b_math:4k': _larger(eight, 128, max_response=3584)}


_SCALE = (True, 'fewer samples have an advantage for larger k; this keeps the '
          'scale equal')
_SMALL_PKPO = {
    'pkpo.batch_std': _SCALE,
    'loss.aggregation': ('token_mean', 'as configs/countdown.py')}


def _pkpo_small() -> dict[str, Experiment]:
  """Returns PKPO's method on small tasks."""
  paper, ours = PKPO, _SMALL_PKPO

  def arms(base, annealed, regs, table='Table 7', ks=(2, 4, 8)):
    return (
        Arm('k=1, leave-one-out', {'pkpo.k': 1}, table),
        _TANG._replace(source=table),
        *_arms(f'{table}, EntropyReg', 'loss.entropy_bonus', regs, pkpo__k=1),
        *(Arm(f'pkpo.k={k}', {'pkpo.k': k}, table if k in ks else '')
          for k in (2, 4, 8) if k != base),
        Arm(f'k={base}', {}, table),
        Arm(f'k annealed, {annealed}', {'pkpo.k': annealed}))
  k = lambda value: {'pkpo.k': (value, 'section 5.2, one of 1, 2, 4, 8')}
  mixed = Experiment(
      'PKPO on Countdown, hard prompts', paper | k(8), ours | {
          'drop_zero_advantage': (
              True, 'faster; it changes only the scale of the gradient')},
      arms(8, '0:8,300:2', _REG), small=True)
  return {
      'pkpo/countdown': Experiment(
          'PKPO on Countdown', paper | k(4), ours,
          arms(4, '0:2,250:1', _REG), small=True),
      'pkpo/countdown_hard': mixed, 'pkpo/countdown_hard:mixed': mixed,
      'pkpo/countdown_hard:hard': mixed,
      'pkpo/arc_mini': Experiment(
          'PKPO on small grids', paper | k(8), ours, arms(
              8, '0:8,160:1', _REG, 'Tables 5, 6', (4, 8)), small=True)}


# Jackpot, v1 (under review) and v2.

# The papers give a rollout batch, a train batch and a number of examples. All
# three are read as prompts: in responses, a batch of 64 in v2 Table 1 and one
# of 32 on-policy would have 8 and 4 prompts.
def _steps(examples: int, prompts: int) -> tuple[int, str]:
  """Returns the steps of so many examples, and how that was read."""
  return math.ceil(examples / prompts), (
      f'{examples:,} examples, read as prompts')


OBRS = {
    'off_policy': ('jackpot', 'v2 Algorithm 1'),
    'advantage': ('grpo', 'v2 section 5'),
    'jackpot.mask': ('sampled', 'v2 section 4.2'),
    'jackpot.weight': (True, 'v2 Eq. 5'),
    'jackpot.lam': (1.0, 'v1 section 4.3'),
    'jackpot.z': ('topk', 'v2 section 4.4.1'),
    'jackpot.top_k': (20, 'v1 appendix C.3'),
    'jackpot.alpha': ('mask', 'v2 section 4.4.2, the share accepted'),
    'jackpot.two_pass': (True, 'v2 section 4.4.2, of the same batch'),
    'jackpot.target': ('p_new', 'v2 Algorithm 1; section 4.3 has p_ref too')}
OBRS_OURS = {
    'jackpot.alpha': (
        'acceptance', 'the same mean as that of the mask, with less variance'),
    'jackpot.two_pass': (
        False, 'kappa of the update before saves a forward pass'),
    'jackpot.c1': (3.0, 'not given for this experiment; 2 to 10 in v1 appendix '
                   'C.2, and 2, 3, 4 and 8 in v1 Table 7'),
    'jackpot.denominator': (
        'accepted', 'not given; the estimate of the mean over kept tokens')}
_SIX = (('gsm8k.jsonl', 'math500.jsonl', 'amc22_23.jsonl', 'amc12_2024.jsonl',
         'aime24.jsonl', 'aime25.jsonl'), 'v2 Table 3')
JACKPOT = OBRS | {
    'task.name': ('math', 'v2 section 5'),
    'max_response': (8192, 'v2 section 5'),
    'task.path': ('DeepScaleR-Preview', 'v2 section 5'),
    'task.heldout': _SIX,
    'eval.samples': ('4, on AIME 16', 'v2 Tables 2 and 3'),
    'eval.k': ('1, on AIME 1 and 16', 'v2 Tables 2 and 3')}
_ONE_NUMBER = ('one number for all files; evaluate a checkpoint again with '
               'eval.samples=16 eval.k=1,16')
JACKPOT_OURS = OBRS_OURS | {
    'task.path': (('problems.jsonl',), 'your file of it'),
    'eval.samples': (4, _ONE_NUMBER), 'eval.k': ((1, 4), _ONE_NUMBER),
    'samples_per_prompt': (8, 'not given'),
    'optimizer.learning_rate': (1e-6, 'not given'),
    'max_prompt': (1024, 'not given'),
    'task.template': ('qwen', 'not given'),
    'loss.aggregation': (
        'token_mean', 'not given; v2 Eq. 5 is a mean over tokens, the GRPO '
        'that it names one over responses')}
_NONE = {'off_policy': 'none', 'loss.objective': 'clip'}
_TIS = Arm('TIS', {**_NONE, 'loss.importance': 'tis',
                   'loss.importance_cap': 3.0}, ours='the cap is not given')
_NO_CLIP = Arm(
    'No-Clip (TIS + Adjustment)', {
        'off_policy': 'none', 'loss.objective': 'cispo', 'loss.clip_low': 1.0,
        'loss.clip_high': 2.0},
    ours='weights p_new / p_old of at most 3; in appendix B.1 p_new / p_inf, '
    'and no bound')


def _stale(size: str, batch: int, examples: int) -> Experiment:
  """Returns the experiment without clipping on a large rollout batch."""
  base = 32 * 64 if size == '8B' else batch
  source = f'v2 Table 3, Qwen3-{size}-Base, {base // 32}x'
  own = base == batch
  both = (size, batch) == ('4B', 2048)
  on = 'v2 Table 3' if batch == 2048 else ''
  paper = JACKPOT | {
      'model.hf': (f'Qwen/Qwen3-{size}-Base', 'v2 Table 3'),
      'prompts_per_step': (base, f'{source}, read as prompts'),
      'learner.updates': (base // 32, f'{source}, mini-batches of 32'),
      'steps': (_steps(examples, base)[0],
                f'v2 Table 3, {_steps(examples, base)[1]}'),
      'loss.objective': ('no_clip', 'v2 section 6.2')}
  ours = dict(JACKPOT_OURS)
  if not own:
    why = 'the paper has 128x with the 4B model alone'
    ours |= {'prompts_per_step': (batch, why), 'learner.updates': (
        batch // 32, why), 'steps': (_steps(examples, batch)[0], why)}
  table = 'v2 Table 3' if own else ''
  return Experiment(f'Jackpot: {source}', paper, ours, (
      Arm('On Policy', {
          **_NONE, 'prompts_per_step': 32, 'learner.updates': 1,
          'steps': _steps(examples, 32)[0]}, on),
      Arm('Off Policy', _NONE, 'v2 Tables 2 and 3' if both else table,
          ours='Table 2 has other figures, of steps that it does not give'
          if both else ''),
      _TIS._replace(source='v1 Table 1' if both else ''),
      _NO_CLIP._replace(source=table and f'{table}, v1 appendix B.1'),
      Arm('Jackpot with clip', {'loss.objective': 'clip', 'jackpot.c2': 1.3},
          'v2 Table 2' if both else '', ours='steps and c2 are not given'),
      Arm('Jackpot', {}, table)))


def _jackpot_experiments() -> dict[str, Experiment]:
  """Returns Jackpot's experiments."""
  table_7 = 'v1 Table 7'
  given = {k: v for k, v in JACKPOT.items()
           if k not in ('eval.samples', 'eval.k')}
  sensitivity = Experiment(
      'Jackpot: v1 Tables 6, 7 and 9', given | {
          'model.hf': ('Qwen/Qwen3-4B-Base', table_7),
          'prompts_per_step': (2048, f'{table_7}, read as prompts'),
          'learner.updates': (32, f'{table_7}, mini-batches of 64'),
          'steps': (_steps(100_000, 2048)[0],
                    f'{table_7}, {_steps(100_000, 2048)[1]}'),
          'loss.objective': ('clip', table_7),
          'task.heldout': (
              tuple(_SIX[0][i] for i in (0, 1, 2, 4)), table_7),
          'loss.clip_low': (0.4, table_7), 'loss.clip_high': (0.7, table_7),
          'jackpot.c2': (3.0, table_7),
          'jackpot.c1': (3.0, 'v1 Table 7; Table 9 has the same row, Table 6 '
                         'too, with another figure for GSM8K')},
      {k: v for k, v in JACKPOT_OURS.items() if k != 'jackpot.c1'} | {
          name: (value, 'not given for this experiment') for name, value in (
              ('eval.samples', 4), ('eval.k', (1, 4)))}, (
          Arm('Masking-only', {'jackpot.weight': False, 'jackpot.c2': 1.3},
              'v1 Table 6', ours='of the setting, the table gives 64/2048 '
              'alone'),
          Arm('c1=3, k=20, Masking & reweighting', {}, 'v1 Tables 6, 7, 9'),
          *_arms(table_7, 'jackpot.c1', [2.0, 4.0, 8.0]),
          *_arms('v1 Table 9', 'jackpot.top_k', [10, 40])))
  stale = {
      'jackpot/4b': _stale('4B', 2048, 30_000),
      'jackpot/4b:128x': _stale('4B', 4096, 30_000),
      'jackpot/8b': _stale('8B', 2048, 50_000),
      'jackpot/8b:128x': _stale('8B', 4096, 50_000)}
  for name in 'jackpot/4b', 'jackpot/8b':
    one = stale[name]
    stale[f'{name}:int8'] = one._replace(ours={**one.ours, 'sampling.kv': (
        'int8', 'not given; half the bytes, and Jackpot corrects it')})
  return {
      **stale, 'jackpot/32x': sensitivity, **_quantised(), **_decoupled()}


def _quantised() -> dict[str, Experiment]:
  """Returns the experiments with a quantised cache."""
  table = 'v2 Table 2'
  exact = {'prompts_per_step': 64, 'learner.updates': 1,
           'steps': _steps(30_000, 64)[0]}
  one = Experiment(
      'Jackpot: v2 Table 2 and v1 Table 5, a cache of float8', JACKPOT | {
          'model.hf': ('Qwen/Qwen3-4B-Base', table),
          'prompts_per_step': (128, f'{table}, read as prompts'),
          'learner.updates': (2, f'{table}, train batches of 64'),
          'sampling.kv': ('float8', table),
          'sampling.weights': (None, f'{table}, the cache alone'),
          'loss.objective': ('clip', 'v2 section 6.1')},
      JACKPOT_OURS | {
          'steps': (_steps(30_000, 128)[0], 'not given; 30,000 prompts'),
          'jackpot.c2': (1.3, 'not given; above 1 + clip_high, as v1 appendix '
                         'C.2 has it')},
      (_TIS._replace(source=table), *(
          Arm(name, {**fields, **exact}, 'v1 Table 5',
              ours='model, batch and steps are not given')
          for name, fields in (
              ('Vanilla', _NONE), ('Masking-only', {'jackpot.weight': False}),
              ('Masking & reweighting', {}))),
       Arm('Jackpot', {}, table)))
  why = 'half the bytes of the weights too'
  return {'jackpot/8bit': one, 'jackpot/8bit:int8': one._replace(ours={
      **one.ours, 'sampling.kv': ('int8', why),
      'sampling.weights': ('int8', why)})}


def _decoupled() -> dict[str, Experiment]:
  """Returns the experiments in which another model writes the rollouts."""
  frozen = {'actor.ppo': False, 'actor.distill': 0.0}

  def made(actor, policy, examples, source, only_kl=False, table_8='',
           figure_1=''):
    steps, read = _steps(examples, 64)
    paper = JACKPOT | {
        'actor.model.hf': (actor, source), 'model.hf': (policy, source),
        'prompts_per_step': (64, f'{source}, read as prompts'),
        'learner.updates': (1, source), 'steps': (steps, f'{source}, {read}'),
        'loss.objective': ('clip', 'v2 Eq. 5'),
        'actor.ppo': (True, 'v2 Eq. 6'),
        'task.heldout': (_SIX[0], 'v2 Table 1'),
        'eval.samples': (4, 'v2 Table 1'), 'eval.k': ((1, 4), 'v2 Table 1')}
    ours = {k: v for k, v in JACKPOT_OURS.items()
            if k not in ('eval.samples', 'eval.k')} | {
        'jackpot.c2': (1.3, 'not given; above 1 + clip_high, as v1 appendix '
                       'C.2 has it'),
        'actor.distill': (1.0, 'lambda_distill is not given'),
        'actor.learning_rate': (None, "not given; the policy's")}
    lams = [0.8, 0.9, 1.0, 1.1, 1.2]
    short = {'steps': _steps(9_000, 64)[0]}
    return Experiment(f'Jackpot: {source}', paper, ours, (
        Arm('On-policy', {'actor.model.hf': None, **_NONE}, source),
        Arm('On-policy of the actor', {
            'model.hf': actor, 'actor.model.hf': None, **_NONE}, source,
            'run the arm On-policy with config.model.hf of the actor'),
        *(Arm(name, {**fields, **frozen}, figure_1, ours='read as those of '
              'an actor that does not learn') for name, fields in (
                  ('Without alignment', _NONE), ('TIS alone', _TIS.fields))),
        Arm('Only Reverse KL', _NONE, source if only_kl else '',
            ours='read as an actor with PPO and reverse KL, and no '
            'correction'),
        _TIS._replace(name='TIS + Reverse KL', source=source),
        Arm('Jackpot', {}, source),
        *[Arm(f'lam={lam}', {'jackpot.lam': lam, **frozen, **short}, table_8)
          for lam in lams],
        *_arms('', 'actor.distill', [0.1, 0.3, 3.0]),
        *_arms('', 'actor.kl_target', [0.01, 0.03, 0.1])))

  small, q25 = 'Qwen/Qwen3-1.7B-Base', 'Qwen/Qwen2.5-'
  pair = made(f'{q25}1.5B', f'{q25}3B', 14_000, 'v2 Table 1, Qwen2.5', True)
  pair = pair._replace(
      paper=pair.paper | {
          'task.heldout': (_SIX[0][:4], 'v2 Table 1'),
          'task.path': ('MATH, in Table 1 MATH-8K', 'v2 section 5')},
      arms=tuple(arm for arm in pair.arms if not arm.left_out
                 and 'jackpot.lam' not in arm.fields))
  eight = made(small, 'Qwen/Qwen3-8B-Base', 15_000,
               'v2 Table 1, Qwen3-1.7B to 8B', figure_1='v2 Figure 1')
  return {
      'jackpot/decoupled': made(
          small, 'Qwen/Qwen3-4B-Base', 20_000, 'v2 Table 1, Qwen3-1.7B to 4B',
          table_8='v1 Table 8, a fixed actor; its batch is not said'),
      'jackpot/decoupled:8b': eight._replace(
          arms=tuple(arm for arm in eight.arms if not arm.left_out)),
      'jackpot/qwen25': pair}


def _jackpot_small() -> dict[str, Experiment]:
  """Returns Jackpot's method on Countdown."""
  ours = {k: OBRS_OURS[k] for k in ('jackpot.alpha', 'jackpot.two_pass')}
  return {
      'jackpot/countdown': Experiment(
          'Jackpot on Countdown', OBRS | {
              'learner.updates': (32, 'v1 Table 7'),
              'loss.objective': ('no_clip', 'v2 section 6.2'),
              'jackpot.c1': (3.0, 'v1 Table 7')}, ours, (
                  *_arms('v1 Table 7', 'jackpot.c1', [2.0, 4.0, 8.0]),
                  *_arms('v1 Table 8, there with another model as the actor',
                         'jackpot.lam', [0.8, 0.9, 1.1, 1.2]),
                  *_arms('v1 Table 9', 'jackpot.top_k', [10]),
                  *_arms('', 'jackpot.top_k', [5]), Arm(
                      'c1=3, lam=1, k=20', {}, 'v1 Tables 7, 9'),
                  Arm('k=40', {'jackpot.top_k': 40}, 'v1 Table 9',
                      'the vocabulary has 24 tokens')), small=True),
      'jackpot/countdown_actor': Experiment(
          'Jackpot on Countdown with another actor', OBRS | {
              'learner.updates': (1, 'v2 Table 1'),
              'loss.objective': ('clip', 'v2 Eq. 5'),
              'actor.ppo': (True, 'v2 Eq. 6')}, ours | {
                  'loss.objective': (
                      'no_clip', 'with one update per step the ratio is 1, and '
                      'clipping has no effect'),
                  'actor.distill': (4.0, 'lambda_distill is not given'),
                  'actor.learning_rate': (
                      1e-3, 'not given; the actor has to follow')},
          (*_arms('', 'actor.distill', [0.3, 1.0]), Arm('Jackpot', {}, 'v2 '
           'Table 1'), *_arms('', 'actor.kl_target', [0.03, 0.1, 0.3])),
          small=True)}


# CBS, arXiv:2602.08499.

CBS = {
    'task.name': ('math', 'section 6.1'),
    'task.path': ('DAPO and MATH, levels 3 to 5, 21,723 problems',
                  'section 6.1'),
    'task.judge': ('math_verify', 'appendix D'),
    'prompts_per_step': (128, 'appendix D'),
    'samples_per_prompt': (8, 'appendix D'),
    'learner.updates': (8, 'appendix D, mini-batches of 16 prompts'),
    'max_response': (4096, 'section 6.1'),
    'optimizer.learning_rate': (1e-6, 'appendix D'),
    'sampling.temperature': (1.0, 'appendix D'),
    'task.template': ('qwen', 'appendix D'),
    'task.heldout': (
        ('aime24.jsonl', 'aime25.jsonl', 'amc23.jsonl', 'math500.jsonl',
         'minerva.jsonl', 'olympiad.jsonl'), 'section 6.1'),
    'eval.every': (20, 'appendix D'),
    'eval.samples': (1, 'appendix D, in training; 16 on AIME, and 4 and 32 '
                     'after it')}
CBS_OURS = {
    'task.path': (('problems.jsonl',), 'your file of them'),
    'task.judge': ('answers', "this library's own judge, which accepts fewer "
                   'wrong answers and needs no extra'),
    'max_prompt': (1024, 'not given'),
    'eval.samples': (4, 'one number for all files')}
# Section A says what the objectives are.
OBJECTIVES = {
    'grpo': {
        'steps': (500, 'appendix D'), 'advantage': ('grpo', 'section 3.1.1'),
        'loss.objective': ('clip', 'Eq. 14'),
        'loss.aggregation': ('sequence_mean', 'Eq. 14'),
        'curriculum': ('uniform', 'section 3.1.2')},
    'dapo': {
        'steps': (200, 'appendix D'), 'advantage': ('grpo', 'section 3.1.1'),
        'loss.objective': ('clip', 'Eq. 16'),
        'loss.aggregation': ('token_mean', 'Eq. 16'),
        'curriculum': ('dynamic', 'appendix D'),
        'curriculum_prompts': (
            384, 'appendix D, "by a factor of three", read as prompts'),
        'dynamic.max_rounds': (1, 'appendix D, sampled down to one batch'),
        'overlong.mode': ('penalty', 'appendix A, "Overlong Filter"')},
    'gspo': {
        'steps': (500, 'appendix D'), 'advantage': ('grpo', 'section 3.1.1'),
        'loss.objective': ('gspo', 'Eq. 17'),
        'loss.aggregation': ('sequence_mean', 'Eq. 17'),
        'curriculum': ('uniform', 'section 3.1.2')}}
OBJECTIVES_OURS = {
    'grpo': {'loss.clip_low': (0.2, 'not given'),
             'loss.clip_high': (0.2, 'not given')},
    'dapo': {'loss.clip_low': (0.2, "not given; DAPO's"),
             'loss.clip_high': (0.28, "not given; DAPO's"),
             'overlong.window': (819, "not given; DAPO's, a fifth of the "
                                 'response; appendix D has rewards of 0 and 1, '
                                 'without this penalty')},
    'gspo': {'loss.clip_low': (3e-4, "not given; GSPO's"),
             'loss.clip_high': (4e-4, "not given; GSPO's")}}
SCHEDULER = {
    'selection': ('cbs', 'Algorithm 1'),
    'cbs.epsilon': (1.0, 'Table 4'), 'cbs.learning_rate': (1e-4, 'Table 4'),
    'cbs.alpha': (0.9, 'Table 4'), 'cbs.epsilon_decay': (0.008, 'Table 4'),
    'cbs.entropy_weight': (100.0, 'appendix D'),
    'cbs.ablate': ('none', 'Eq. 10')}
# Rows of Table 4 that depend on the objective: e_min and epsilon_min.
TABLE_4 = {'grpo': (0.1, 0.2), 'dapo': (0.5, 0.2), 'gspo': (0.5, 0.005)}


def _scheduler(size: str, objective: str, intra: bool) -> Values:
  """Returns a row of Table 4."""
  entropy_min, least = TABLE_4[objective]
  warmup = 50
  if not intra and (size, objective) == ('8B', 'dapo'):
    entropy_min = 0.8
  if not intra and (size, objective) == ('4B', 'gspo'):
    warmup = 0
  scope = {
      'cbs.scope': ('intra_group', 'Definition 3.1'),
      'cbs.keep': (0.3, 'Table 4'),
      'cbs.pool': (True, 'appendix D, an approximation')} if intra else {
          'cbs.scope': ('global', 'Definition 3.2'),
          'cbs.rounds': (2, 'Table 4, a buffer of 2048')}
  return SCHEDULER | scope | {
      'cbs.warmup': (warmup, 'Table 4'),
      'cbs.entropy_min': (entropy_min, 'Table 4'),
      'cbs.epsilon_min': (least, 'Table 4')}


def _cbs_arms(size: str, objective: str, intra: bool) -> tuple[Arm, ...]:
  """Returns the arms of Table 2, Table 5 and Figure 10."""
  whole = {'cbs.scope': 'global'} if intra else {}
  table_5 = 'Table 5' if size == '4B' and not intra else ''
  figure_10 = table_5 and 'Figure 10' if objective == 'grpo' else ''
  return (
      Arm(f'{objective.upper()} alone', {'selection': 'all_rows'}, 'Table 2'),
      Arm('Random', {'selection': 'random', 'random.rounds': 2}, table_5),
      Arm('CBS*' if intra else 'CBS', {}, 'Table 2'),
      Arm('w/o EMA', {'cbs.ablate': 'raw_gain'}, table_5),
      Arm('w/o Entropy', {'cbs.ablate': 'no_entropy'}, table_5),
      *(Arm(f'buffer of {1024 * rounds}', {'cbs.rounds': rounds, **whole},
            figure_10) for rounds in (1, 3, 4, 5)))


def _cbs_experiments() -> dict[str, Experiment]:
  """Returns CBS's experiments: a model's, an objective's and a scope's."""
  made = {}
  for size in '1.7B', '4B', '8B':
    for objective in OBJECTIVES:
      for intra in False, True:
        ours = CBS_OURS | OBJECTIVES_OURS[objective] | {
            'cbs.width': (64, 'not given'), 'cbs.layers': (2, 'not given')}
        if intra:
          ours |= {'cbs.pool': (
              False, 'by Definition 3.1, 2 of 8 of each group; cbs.pool=1 '
              'picks 307 of 1024, for 3 updates, where the paper makes 2 and '
              'drops 51')}
        name = objective + '_intra' * intra
        made[f'cbs/{size}:{name}'] = Experiment(
            f'CBS: Qwen3-{size}-Base, {name}',
            CBS | OBJECTIVES[objective] | _scheduler(size, objective, intra) | {
                'model.hf': (f'Qwen/Qwen3-{size}-Base', 'section 6.1')},
            ours, _cbs_arms(size, objective, intra))
    made[f'cbs/{size}'] = made[f'cbs/{size}:grpo']
  made['cbs/alone'] = Experiment(
      'CBS: the baseline GRPO, Qwen3-1.7B-Base',
      CBS | OBJECTIVES['grpo'] | {
          'model.hf': ('Qwen/Qwen3-1.7B-Base', 'section 6.1')},
      CBS_OURS | OBJECTIVES_OURS['grpo'] | {'task.heldout': (
          ('math500.jsonl',), 'this config is a start for your own, too')}, (
              Arm('GRPO', {}, 'Table 2'),
              Arm('truncated responses masked', {'overlong.mode': 'mask'})))
  return made


def _cbs_small() -> dict[str, Experiment]:
  """Returns CBS's method on Countdown."""
  fewer = 'for 120 rounds, not 500'
  ours = {'cbs.warmup': (12, fewer), 'cbs.epsilon_decay': (0.03, fewer),
          'cbs.learning_rate': (1e-3, fewer)}
  mean = {'loss.aggregation': ('token_mean', 'as configs/countdown.py')}
  bounds = 'a small model moves further in an update'
  own = {
      'grpo': mean, 'dapo': {
          'curriculum_prompts': (None, 'a wave has the prompts of a batch'),
          'dynamic.max_rounds': (None, 'so that no group is dropped'),
          'overlong.mode': ('none', 'no response is truncated'),
          'loss.clip_high': OBJECTIVES_OURS['dapo']['loss.clip_high']},
      'gspo': {'loss.clip_low': (0.03, bounds),
               'loss.clip_high': (0.04, bounds)}}
  made = {}
  for objective, method in OBJECTIVES.items():
    for intra in False, True:
      method = {k: v for k, v in method.items() if k != 'steps'}
      pool = {'cbs.pool': (False, 'by Definition 3.1')} if intra else {}
      name = objective + '_intra' * intra
      made[f'cbs/countdown:{name}'] = Experiment(
          f'CBS on Countdown, {name}',
          method | _scheduler('1.7B', objective, intra) | {
              'samples_per_prompt': (8, 'appendix D')},
          ours | own[objective] | pool, _cbs_arms('', objective, intra),
          small=True)
  made['cbs/countdown'] = made['cbs/countdown:grpo']
  return made


# SPEED, arXiv:2506.09016, withdrawn by an author on 4 March 2026 (v3).

SPEED = {
    'task.name': ('math', 'section 5.1'),
    'prompts_per_step': (16, 'section 5.1'),
    'samples_per_prompt': (24, 'section 5.1'),
    'learner.updates': (1, 'Algorithm 1'),
    'optimizer.learning_rate': (1e-6, 'section 5.1'),
    'optimizer.warmup_steps': (10, 'section 5.1'),
    'optimizer.weight_decay': (0.1, 'section 5.1'),
    'task.heldout': (
        ('dapo1k.jsonl', 'math500.jsonl', 'aime24.jsonl', 'aime25.jsonl',
         'amc23.jsonl'), 'section 5.1')}
_DAPO_17K = 'DAPO-17k without the 1,000 that are held out'
SPEED_DATA = {
    '1.5B': f'NuminaMath with integer answers (220,000), or {_DAPO_17K}',
    '7B': f'{_DAPO_17K}, or DeepScaleR'}
SPEED_OURS = {
    'task.path': (('problems.jsonl',), 'your file of one of them'),
    'steps': (500, 'not given; the paper reports the time to an accuracy'),
    'max_prompt': (1024, 'not given'), 'max_response': (3072, 'not given'),
    'task.template': ('qwen', 'not given')}
RLOO = {'advantage': ('rloo', 'Eq. 8'),
        'loss.aggregation': ('constant', 'Eq. 7, a sum over tokens')}
DAPO = {'advantage': ('grpo', "DAPO's, which section 5.1 names"),
        'loss.aggregation': ('token_mean', "DAPO's, which section 5.1 names"),
        'loss.clip_low': (0.2, 'section 5.1'),
        'loss.clip_high': (0.28, 'section 5.1')}
SCREENING = {
    'curriculum': ('speed', 'Algorithm 2'),
    'curriculum_prompts': (
        64, 'section 5.1, the generation batch, read as new prompts'),
    'speed.rule': ('pass_rate', 'Algorithm 1'),
    'speed.p_low': (0.0, 'Algorithm 1'), 'speed.p_high': (1.0, 'Algorithm 1')}
_SCREEN = {'curriculum': 'speed', 'curriculum_prompts': 64, 'speed.n_init': 4,
           'speed.rule': 'pass_rate'}
_RLOO = {'advantage': 'rloo', 'loss.aggregation': 'constant',
         'loss.clip_high': 0.2}
_DAPO = {'advantage': 'grpo', 'loss.aggregation': 'token_mean',
         'loss.clip_high': 0.28}
_ALONE = {'curriculum': 'uniform', 'curriculum_prompts': None}
_DYNAMIC = {'curriculum': 'dynamic', 'curriculum_prompts': None}


def _speed_arms(size: str) -> tuple[Arm, ...]:
  """Returns the arms of Table 1 and Figure 5."""
  screens = (6, 8) if size == '1.5B' else ()
  return (
      Arm('RLOO', {**_RLOO, **_ALONE}, 'Table 1'),
      Arm('DAPO', {**_DAPO, **_DYNAMIC}, 'Table 1'),
      Arm('SPEED-RLOO', {**_RLOO, **_SCREEN}, 'Table 1'),
      Arm('SPEED-DAPO', {**_DAPO, **_SCREEN}, 'Table 1'),
      *(Arm(f'SPEED-RLOO, N_init={n}', {
          **_RLOO, **_SCREEN, 'speed.n_init': n}, 'Figure 5')
        for n in screens),
      Arm('SPEED-RLOO, rule "signal"', {
          **_RLOO, **_SCREEN, 'speed.rule': 'signal'}))


def _speed_experiments() -> dict[str, Experiment]:
  """Returns SPEED's experiments: a model's and an argument's."""
  made = {}
  for size in '1.5B', '7B':
    common = SPEED | {
        'model.hf': (f'Qwen/Qwen2.5-Math-{size}', 'section 5.1'),
        'task.path': (SPEED_DATA[size], 'section 5.1, Table 1')}
    # Section 4.1 says about 4 to 8; Figure 5 favours 4.
    screened = SPEED_OURS | {'speed.n_init': (
        4, 'not given for a model; about 4 to 8 in section 4.1, and 4 does '
        'best in Figure 5')}
    clip = {name: (0.2, 'not given') for name in (
        'loss.clip_low', 'loss.clip_high')}
    alone = {'curriculum': ('uniform', 'section 5.1')}
    dynamic = {
        'curriculum': ('dynamic', 'section 5.1'),
        'dynamic.max_rounds': (1, "DAPO's, which section 5.1 names")}
    arms = _speed_arms(size)
    of = {
        'rloo': (RLOO | SCREENING, screened | clip),
        'dapo': (DAPO | SCREENING, screened),
        'rloo_alone': (RLOO | alone, SPEED_OURS | clip),
        'dapo_alone': (DAPO | dynamic, SPEED_OURS | {
            'curriculum_prompts': (
                None, 'not given; a wave has the prompts of a batch'),
            'dynamic.max_rounds': (
                None, 'groups beyond a batch wait for the next one; dropped, '
                'half of such waves would be lost')}),
        'pkpo': (RLOO | SCREENING, screened | clip | {
            'advantage': ('pkpo', 'SPEED with PKPO is ours'),
            'pkpo.k': (8, 'SPEED with PKPO is ours'),
            'speed.rule': ('signal', 'the rule for PKPO is ours')})}
    for name, (paper, ours) in of.items():
      made[f'speed/{size}:{name}'] = Experiment(
          f'SPEED: Qwen2.5-Math-{size}, {name}', common | paper, ours,
          arms + (Arm('SPEED-PKPO', {}),) * (name == 'pkpo'))
    made[f'speed/{size}'] = made[f'speed/{size}:rloo']
  return made


def _speed_small() -> dict[str, Experiment]:
  """Returns SPEED's method on Countdown."""
  paper = SCREENING | RLOO | {
      name: SPEED[name] for name in (
          'prompts_per_step', 'samples_per_prompt', 'learner.updates')}
  table = {'speed.rule': 'pass_rate'}
  elsewhere = 'benchmarks/claims/speed.py runs it'
  return {'speed/countdown': Experiment(
      'SPEED on Countdown', {
          k: v for k, v in paper.items()
          if k not in ('speed.p_low', 'speed.p_high')}, {
              'samples_per_prompt': (16, 'a smaller model'),
              'speed.rule': ('signal', 'the default, ours'),
              'loss.aggregation': ('token_mean', 'as configs/countdown.py'),
              'speed.n_init': (4, 'not given for a model')},
      (Arm('SPEED-RLOO, rule "signal"', {}),
       *_arms('', 'speed.n_init', [6, 8]),
       Arm('SPEED-RLOO', table, 'Table 1'), *(
           Arm(name, fields, 'Table 1', elsewhere) for name, fields in (
               ('RLOO', {'curriculum': 'uniform'}),
               ('DAPO', {'curriculum': 'dynamic', 'advantage': 'grpo'}),
               ('SPEED-DAPO', {**table, 'advantage': 'grpo'})))), small=True)}


EXPERIMENTS: dict[str, Experiment] = {
    **_pkpo_experiments(), **_pkpo_small(), **_jackpot_experiments(),
    **_jackpot_small(), **_cbs_experiments(), **_cbs_small(),
    **_speed_experiments(), **_speed_small()}
