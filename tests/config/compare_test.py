"""Tests of the differences between configs, and of unused hyperparameters."""

import hashlib
import pathlib

import pytest

from jaxrl_llm import config

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')


def test_difference_is_readable():
  a, b = config.load(CONFIG), config.load(CONFIG, {
      'loss.clip_high': 0.3, 'eval.k': '1,2', 'loss.dual_clip': 3})
  assert config.difference(a, b) == {
      'loss.clip_high': 'loss.clip_high: 0.2 -> 0.3',
      'loss.dual_clip': 'loss.dual_clip: none -> 3.0',
      'eval.k': 'eval.k: 1,8 -> 1,2'}
  assert list(config.difference(a, b, ['loss'])) == [
      'loss.clip_high', 'loss.dual_clip']
  assert config.difference(a, b, ['loss.clip_high', 'eval']).keys() == {
      'loss.clip_high', 'eval.k'}
  # 'loss.clip' is neither a field nor a section.
  assert config.difference(a, b, ['loss.clip']) == {}
  assert config.difference({'a': None, **config.flatten(b)}, b) == {
      'a': 'a: none -> -'}


def test_a_run_goes_on_where_what_it_learns_stays():
  def conflicts(new, **old):
    return config.resume_conflicts(
        config.load(CONFIG, old), config.load(CONFIG, new))

  free = {
      'eval.k': '1,2', 'workdir': 'x', 'eval_k': 3, 'log.samples': 1,
      'mesh.fsdp': 2, 'sft.cache': 'none', 'sampling.slots': 3,
      'sampling.prefill_prompts': 1, 'learner.tokens_per_microbatch': 400,
      'learner.remat': 'full'}
  assert conflicts(free) == []
  assert sorted(conflicts({'loss.clip_high': .3, 'seed': 2, **free})) == [
      'loss.clip_high: 0.2 -> 0.3', 'seed: 0 -> 2']
  assert conflicts({'task.train': '1,2,3,4'}) == [
      'task.train: 210,1400,1000,400 -> 1,2,3,4']
  # A rate that decays over the run depends on the number of steps.
  assert conflicts({'steps': 5}) == ['steps: 400 -> 5']
  horizon = {'optimizer.decay_steps': 30}
  assert conflicts({'steps': 5, **horizon}, **horizon) == []
  constant = {'optimizer.schedule': 'constant'}
  assert conflicts({'steps': 5, **constant}, **constant) == []


def test_fields_that_did_not_exist_yet_have_their_defaults():
  old = config.flatten(config.load(CONFIG))
  del old['loss.clip_low'], old['task.shown']
  assert config.difference(old, config.load(CONFIG)) == {}
  assert list(config.difference(
      old, config.load(CONFIG, {'loss.clip_low': .1})).values()) == [
          'loss.clip_low: 0.2 -> 0.1']


def test_fingerprint_is_of_names_and_values():
  golden = hashlib.sha256(b'{"seed": 0, "steps": 300}').hexdigest()[:16]
  assert config.fingerprint({'steps': 300, 'seed': 0}) == golden
  assert config.fingerprint({'steps': 300, 'seed': 1}) != golden


def test_names_of_files_that_runs_leave():
  """What a field affects does not change without notice."""
  c = config.load(CONFIG, {'seed': 3})
  warm = config.affecting(c, config.SFT)
  assert config.fingerprint(warm) == '0b5a694292b5130e'
  c.learner.remat = 'none'  # as a run chooses it
  cache = config.affecting(c, config.SFT, config.ROUNDING)
  assert config.fingerprint(cache) == '826fc70e2b9ef7ea'
  other = config.affecting(
      config.load(
          CONFIG, {'seed': 3, 'loss.clip_low': .1, 'sampling.slots': 2,
                   'learner.remat': 'none'}),
      config.SFT, config.ROUNDING)
  assert cache == other
  evaluated = config.affecting(c, config.EVALUATION)
  assert config.fingerprint(evaluated) == 'd879f721de51db52'


@pytest.mark.parametrize('given,words', [
    ({'loss.objective': 'cispo', 'loss.dual_clip': 3},
     ['loss.dual_clip has no effect', 'loss.objective=clip']),
    ({'loss.objective': 'no_clip', 'loss.clip_high': .28},
     ['loss.clip_high has no effect', 'loss.objective=clip']),
    ({'loss.importance_cap': 3},
     ['loss.importance_cap has no effect', 'loss.importance=tis']),
    ({'loss.importance': 'tis', 'loss.importance_low': .1},
     ['loss.importance_low has no effect', 'loss.importance=icepop']),
    ({'pkpo.k': 2}, ['pkpo.k has no effect', 'advantage=pkpo']),
    ({'cbs.warmup': 2}, ['cbs.warmup has no effect', 'selection=cbs']),
    ({'speed.n_init': 2}, ['speed.n_init has no effect', 'curriculum=speed']),
    ({'jackpot.lam': 2}, ['jackpot.lam has no effect', 'off_policy=jackpot']),
    ({'actor.distill': 2}, ['actor.distill has no effect', 'actor.model.hf']),
])
def test_a_hyperparameter_that_nothing_uses_is_refused(given, words):
  with pytest.raises(ValueError) as error:
    config.load(CONFIG, given)
  assert '\n' not in str(error.value)
  for word in words:
    assert word in str(error.value)


def test_another_choice_leaves_out_what_a_file_said_of_the_former():
  spec = str(ROOT / 'configs/pkpo/countdown.py')
  assert config.load(spec).pkpo.k == '4'
  other = config.load(spec, {'advantage': 'grpo', 'loss.clip_high': .3})
  assert 'pkpo' not in other and other.grpo.ddof == 1
  # An objective's bounds are those of the loss: a value that was set stays.
  c = config.load(CONFIG, {'loss.clip_high': .28})
  flat = config.flatten(c)
  gspo = config.complete(flat, {'loss.objective': 'gspo'}, 'x')
  assert (gspo.loss.clip_low, gspo.loss.clip_high) == (3e-4, .28)
