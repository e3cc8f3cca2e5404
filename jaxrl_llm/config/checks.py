"""Checks of fields against each other."""

import re
from typing import Iterable, Iterator, Mapping

from ml_collections import ConfigDict

from jaxrl_llm.base import schedules
from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.config import plugs, values
from jaxrl_llm.config.model import model_config
from jaxrl_llm.config.nested import flatten
from jaxrl_llm.config.sections import MODELS
from jaxrl_llm.config.table import players, table
from jaxrl_llm.config.values import to_text
from jaxrl_llm.learner.options import ACTOR, POLICY, REWARD, TEACHER
from jaxrl_llm.models.config import ModelConfig, NotOnDisk

_MOST = 3  # sentences about one config


def validate(
    config: ConfigDict, *, hub: bool = True, models: bool = True) -> None:
  """Checks the fields one by one and against each other.

  Args:
    config: from `load`, or made in code.
    hub: whether the hub and buckets may be asked for the models. If not, what
      depends on a model that is not on disk is not checked.
    models: whether to read the models, and to check what depends on them.

  Raises:
    ValueError: a sentence for each of the first faults, with the field and
      the fix.
  """
  flat = flatten(config)
  values.check(flat)
  for field in plugs.PLUG_FIELDS:
    plugs.chosen(field, flat)  # a plug's own options may contradict each other
  found = {name: _found(config, name, hub) for name in players(flat) if models}
  model = found.get(POLICY)
  faults = [fault for check in (
      _groups, _screens, _sft, _pkpo, _replay, _off_policy, _scope, _batches,
      _carried, _lengths, _evaluation, _devices)
            for fault in check(config, model)]
  faults += [
      *_attention(config, found), *_vocabularies(found),
      *_actor(config, model), *_teacher(config, model), *_reward(config)]
  if len(faults) > _MOST:
    faults[_MOST - 1:] = [f'{len(faults) - _MOST + 1} more values do not fit.']
  if faults:
    raise ValueError('\n'.join(faults))


def _found(config: ConfigDict, player: str, hub: bool) -> ModelConfig | None:
  """Returns the model of a player; None if it is not on disk."""
  try:
    return model_config(config, player, hub=hub)
  except NotOnDisk:
    return None


def _groups(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields what needs groups of several samples."""
  from jaxrl_llm.ops.advantages import GROUP_RELATIVE
  if c.samples_per_prompt < 2 and c.advantage in {*GROUP_RELATIVE, 'pkpo'}:
    yield (f'samples_per_prompt=1 leaves advantage={c.advantage} nothing to '
           'compare: use 2 or more, or advantage=reinforce.')
  if c.samples_per_prompt < 2 and c.advantage == 'turns' and c.turns.by_turn:
    yield ('samples_per_prompt=1 leaves advantage=turns nothing to compare: '
           'use 2 or more, or turns.by_turn=False.')
  if c.samples_per_prompt < 2 and c.curriculum == 'dynamic':
    yield ('samples_per_prompt=1 leaves curriculum=dynamic nothing to compare: '
           'use 2 or more, or curriculum=uniform.')


def _screens(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields conflicts of curriculum=speed."""
  if c.curriculum == 'speed' and c.speed.rule == 'signal':
    for given, use in (('advantage=reinforce', 'advantage=rloo'),
                       ('pkpo.transform=s', 'pkpo.transform=sloo_minus_one')):
      name, _, value = given.partition('=')
      if flatten(c).get(name) == value:
        yield ('speed.rule=signal measures a group by its |advantage|, which '
               f'with {given} is largest where all samples are right: use '
               f'speed.rule=pass_rate, or {use}.')
  if c.curriculum == 'speed':
    yield from _without_effect(c, [
        (name, c.speed.rule == 'pass_rate', f'speed.rule={c.speed.rule}')
        for name in ('speed.p_low', 'speed.p_high')])


def _sft(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields conflicts of supervised fine-tuning."""
  sft = c.sft
  if sft.steps and sft.epochs:
    yield (f'sft.steps={sft.steps} and sft.epochs={sft.epochs} both say how '
           'long: leave one of them out.')
  if (sft.path or sft.heldout) and not (sft.steps or sft.epochs):
    yield ('sft.path and sft.heldout have no effect without steps: set '
           'sft.epochs or sft.steps.')
  if sft.weights and len(sft.weights) != len(sft.path):
    yield (f'sft.weights has {len(sft.weights)} numbers for the '
           f'{len(sft.path)} sources of sft.path: give one for each, or none.')
  if len({*sft.path}) < len(sft.path):
    yield f'sft.path={to_text(sft.path)} has a source twice: set sft.weights.'
  if sft.heldout_count and sft.heldout:
    yield ('sft.heldout_count and sft.heldout both say what is held out: leave '
           'one of them out.')
  if sft.lora and not c.lora.rank:
    yield 'sft.lora=True needs lora.rank: set it, or leave out sft.lora.'


def _pkpo(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields a k that the groups are too small for."""
  if c.advantage == 'pkpo' and c.samples_per_prompt > 1:
    most = c.samples_per_prompt - (c.pkpo.transform == 'sloo')
    for _, k in schedules.pieces(c.pkpo.k):
      if not 1 <= k <= most:
        yield (f'pkpo.k={k} does not fit samples_per_prompt='
               f'{c.samples_per_prompt}: {c.pkpo.transform} can use k of 1 to '
               f'{most}.')


def _scope(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields fields of the selection that its scope does not use."""
  if c.selection in ('cbs', 'largest_advantage'):
    scope = c[c.selection].scope
    yield from _without_effect(c, [
        (f'{c.selection}.{name}', scope == needed, f'{c.selection}.{scope=!s}')
        for name, needed in (
            ('rounds', 'global'), ('keep', 'intra_group'),
            ('pool', 'intra_group'))])


def _batches(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields numbers that do not divide a batch."""
  rows = c.prompts_per_step * c.samples_per_prompt
  updates = c.learner.updates
  if rows % updates:
    fewer = next(n for n in range(min(rows, updates), 0, -1) if rows % n == 0)
    yield (f'learner.updates={updates} does not divide the {rows} responses of '
           f'a step (prompts_per_step x samples_per_prompt): use {fewer}.')
  yield from _without_effect(c, [
      ('learner.skip_zero', not c.drop_zero_advantage,
       'drop_zero_advantage=true')])


def _carried(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields conflicts of sampling.carry_over."""
  yield from _without_effect(c, [
      (f'sampling.{name}', c.sampling.carry_over, 'sampling.carry_over=False')
      for name in ('wave_steps', 'carry_groups')])
  if not c.sampling.carry_over:
    return
  for name, given, wrong in (
      ('actor.lag', c.actor.lag, c.actor.lag > 0),
      ('sampling.temperature', c.sampling.temperature,
       isinstance(c.sampling.temperature, str))):
    if wrong:
      yield (f'sampling.carry_over=True does not work with {name}={given}: '
             'leave one of them out.')


def _lengths(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields conflicts of the lengths of prompts and responses."""
  full = c.max_prompt + c.max_response
  if c.sampling.chunk and c.sampling.chunk > full:
    yield (f'sampling.chunk={c.sampling.chunk} is more than the {full} '
           'positions of the cache (max_prompt + max_response): use at most '
           f'{full}, or none.')
  for length in () if c.sampling.buckets == AUTO else c.sampling.buckets:
    if length >= c.max_prompt:
      yield (f'sampling.buckets has {length}, but prompt lengths below the '
             f'full one lie between 1 and {c.max_prompt - 1} (max_prompt - 1): '
             'leave it out.')
  if c.overlong.mode == 'penalty' and c.advantage == 'gdpo' and (
      isinstance(c.task.get('reward'), tuple) and c.task.reward):
    yield ('overlong.mode=penalty changes the sum of the rewards, and '
           'advantage=gdpo takes each function of task.reward by itself: make '
           'the penalty one of the functions, or set overlong.mode=mask.')
  if c.overlong.mode == 'penalty' and c.advantage == 'maxrl':
    yield ('overlong.mode=penalty makes rewards below 0, and advantage=maxrl '
           'needs 0 or more: set overlong.mode=mask.')
  if c.overlong.mode == 'penalty' and not (
      1 <= c.overlong.window <= c.max_response):
    yield (f'overlong.window={c.overlong.window} must lie between 1 and '
           f'max_response={c.max_response} when overlong.mode=penalty.')


def _evaluation(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields conflicts of numbers of responses, and of texts."""
  if not c.eval.k:
    yield 'eval.k is empty: give at least one number, such as 1.'
  for name in ('eval_k', 'eval.k', 'sampling.buckets'):
    value = flatten(c)[name]
    if isinstance(value, tuple) and len({*value}) < len(value):
      yield (f'{name}={to_text(value)} has a value twice: leave one of them '
             'out.')
  for k in c.eval.k:
    if k > c.eval.samples:
      yield (f'eval.k={k} needs as many responses to each problem, but '
             f'eval.samples={c.eval.samples}: raise it, or leave out that k.')
  if c.lora.rank:
    try:
      re.compile(c.lora.targets)
    except re.error as error:
      yield (f'lora.targets={c.lora.targets} is no regular expression '
             f'({error}): correct it.')


def _devices(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields a mesh that no devices can have."""
  axes = (c.mesh.data, c.mesh.fsdp, c.mesh.tensor)
  if axes.count(-1) > 1 or any(size < 1 and size != -1 for size in axes):
    yield (f'mesh={to_text(axes)} (data, fsdp, tensor): use sizes of at least '
           '1, and -1 (all that are left) for one of them at most.')


def _attention(
    c: ConfigDict, found: Mapping[str, ModelConfig | None]) -> Iterator[str]:
  """Yields what learner.attention=cudnn cannot compute."""
  for player, model in found.items() if c.learner.attention == 'cudnn' else ():
    section = MODELS[player]
    if model and model.dtype == 'float32':
      yield ('learner.attention=cudnn works on 16-bit types: set '
             f'{section}.dtype=bfloat16, or learner.attention=xla.')
    if model and (model.window or model.attention_softcap):
      given = flatten(c)
      yield ('learner.attention=cudnn has no sliding window or soft cap, which '
             f'{given[f"{section}.hf"] or given[f"{section}.preset"]} has: use '
             'learner.attention=xla.')


def _replay(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields what loss.replay_experts does not work with."""
  if not c.loss.replay_experts:
    return
  if model and model.experts is None:
    yield ('loss.replay_experts=True needs a model with experts, which '
           f'{c.model.hf or c.model.preset} has not: leave it out.')
  if ACTOR in players(flatten(c)):
    yield ('loss.replay_experts=True replays what the policy itself has '
           'chosen, but the actor is another model: leave it out.')


def _off_policy(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields a sentence for each conflict of off_policy=jackpot."""
  if c.off_policy != 'jackpot':
    return
  j, importance = c.jackpot, c.loss.importance
  if c.loss.behaviour == 'sampled':
    yield ('off_policy=jackpot compares policies before top-k, top-p and '
           'min-p: leave out loss.behaviour=sampled.')
  if importance in ('sequence_tis', 'geometric_mask'):
    yield (f'loss.importance={importance} weights whole responses, but '
           'off_policy=jackpot rejects single tokens: use tis, icepop, '
           'identity or none.')
  if j.mask == 'none' and not j.weight:
    yield ('jackpot.mask=none and jackpot.weight=False leave off_policy='
           'jackpot nothing to do: use off_policy=none.')
  if j.alpha == 'mask' and j.mask != 'sampled':
    yield (f'jackpot.alpha=mask needs a sampled mask, not jackpot.mask={j.mask}'
           ': use jackpot.alpha=acceptance.')
  if j.z == 'topk' and not j.top_k:
    yield ('jackpot.top_k=0 leaves jackpot.z=topk no tokens: use 20, or '
           'jackpot.z=exact.')
  if model and j.top_k > model.vocab_size:
    yield (f'jackpot.top_k={j.top_k} exceeds the vocabulary: use at most '
           f'{model.vocab_size}.')
  for name in ('weights', 'kv'):
    if j.z == 'exact' and c.sampling[name]:
      yield (f'jackpot.z=exact computes the policy that wrote the rows in full '
             f'precision, which sampling.{name}={c.sampling[name]} does not '
             'have: use jackpot.z=topk.')
  clipped = c.loss.objective != 'no_clip'
  yield from _without_effect(c, (
      ('jackpot.c1', j.weight, 'jackpot.weight=False'),
      ('jackpot.c1', importance == 'none', f'loss.importance={importance}'),
      ('jackpot.c2', j.weight, 'jackpot.weight=False'),
      ('jackpot.c2', j.target == 'p_new', f'jackpot.target={j.target}'),
      ('jackpot.c2', clipped, 'loss.objective=no_clip'),
      ('jackpot.z', j.weight, 'jackpot.weight=False'),
      ('jackpot.two_pass', j.target == 'p_new', f'jackpot.target={j.target}'),
      ('jackpot.denominator', c.loss.aggregation != 'constant',
       'loss.aggregation=constant'),
      ('loss.importance', j.weight, 'jackpot.weight=False')))


def _without_effect(
    c: ConfigDict, uses: Iterable[tuple[str, bool, str]]) -> Iterator[str]:
  """Yields a sentence for each field that is set, but not used.

  Args:
    c: the config.
    uses: name of each field, whether it is used, and the choice that says so.
  """
  flat = flatten(c)
  fields = table(flat)
  for name, used, reason in uses:
    value, default = flat[name], fields[name].default
    if not used and value != default:
      yield (f'{name}={to_text(value)} has no effect with {reason}: leave it '
             f'out, or set it to its default, {to_text(default)}.')


def _teacher(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields a sentence for each conflict of a teacher."""
  if TEACHER not in players(flatten(c)) and not c.teacher.hint:
    if c.advantage == 'none':
      yield ('advantage=none leaves nothing to learn from: set a teacher '
             '(teacher.model.hf or teacher.hint), or choose another '
             'advantage.')
    return
  form = f'teacher.kl={c.teacher.kl}'
  yield from _without_effect(c, [
      ('teacher.max_tokens', bool(c.teacher.hint), "teacher.hint=''"),
      ('teacher.top_k', c.teacher.kl == 'top_k', form),
      ('teacher.temperature', c.teacher.kl != 'sampled', form)])
  if c.loss.replay_experts:
    yield ('loss.replay_experts=True replays what the policy itself has '
           'chosen, but the teacher chooses others: leave it out.')
  if c.advantage == 'none':
    yield from _unrewarded(c)
  if model and c.teacher.top_k >= model.vocab_size and c.teacher.kl == 'top_k':
    yield (f'teacher.top_k={c.teacher.top_k} is not below the '
           f'{model.vocab_size} tokens of the vocabulary: use teacher.kl=all.')


def _unrewarded(c: ConfigDict) -> Iterator[str]:
  """Yields what a run that learns from its teacher alone cannot use."""
  if not c.teacher.coef:
    yield ('advantage=none and teacher.coef=0 leave nothing to learn from: '
           'raise teacher.coef.')
  if c.drop_zero_advantage:
    yield ('drop_zero_advantage=True leaves out all rows with advantage=none: '
           'set it to false.')
  if c.selection in ('cbs', 'largest_advantage'):
    yield (f'selection={c.selection} picks rows by their advantages, and '
           'advantage=none has none: use selection=all_rows.')
  if c.curriculum == 'speed':
    yield ('curriculum=speed measures groups by their advantages, and '
           'advantage=none has none: use curriculum=uniform.')


def _reward(c: ConfigDict) -> Iterator[str]:
  """Yields a sentence for each conflict of a reward model."""
  if REWARD not in players(flatten(c)):
    return
  if not (c.reward.coef or c.reward.verifier):
    yield ('reward.coef=0 and reward.verifier=0 leave no reward: set one of '
           'them.')
  if c.curriculum == 'speed':
    yield ('curriculum=speed screens by right responses, but a reward model '
           'gives scores: use curriculum=dynamic.')
  if c.advantage == 'maxrl':
    yield ('advantage=maxrl needs rewards of 0 or more, but scores of a reward '
           'model may be below: choose another advantage.')
  flat = flatten(c)
  for field in 'advantage', 'loss.objective', 'loss.importance', 'loss.term':
    for name in sorted({'separate', 'turn_rewards'} & {
        *plugs.chosen(field, flat)[0].columns}):
      yield (f'{field}={flat[field]} reads the column {name}, of which a '
             "reward model's score is no part: choose another one.")


def _vocabularies(found: Mapping[str, ModelConfig | None]) -> Iterator[str]:
  """Yields a sentence for each player with other tokens than the policy's."""
  sizes = {name: model.vocab_size for name, model in found.items() if model}
  for name, other in sizes.items():
    fewer, more = sorted((other, size := sizes.get(POLICY, other)))
    if fewer < more:
      yield (f'{MODELS[name]} has {other} tokens and model {size}: ids {fewer} '
             f'to {more - 1} are of one alone. Choose a{"n" * (name == ACTOR)} '
             f'{name}{" model" * (name == REWARD)} with the vocabulary of the '
             'policy.')


def _actor(c: ConfigDict, model: ModelConfig | None) -> Iterator[str]:
  """Yields a sentence for each conflict of an actor that is another model."""
  if ACTOR not in players(flatten(c)):
    return
  if not c.actor.ppo and not c.actor.distill:
    yield from _without_effect(c, [
        (f'actor.{name}', False, 'actor.ppo=False and actor.distill=0, an '
         'actor that does not learn')
        for name in ('learning_rate', 'clip_low', 'clip_high',
                     'distill_top_k')])
  if c.actor.kl_target is not None and not c.actor.distill:
    yield ('actor.kl_target changes lambda_distill by factors, from '
           'actor.distill=0 on: raise that.')
  if model and c.actor.distill_top_k >= model.vocab_size:
    yield (f'actor.distill_top_k={c.actor.distill_top_k} is not below the '
           f'{model.vocab_size} tokens of the vocabulary: use 0 for all.')
