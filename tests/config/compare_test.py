"""Tests of the differences between configs, and of unused hyperparameters."""

import hashlib
import json
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
      'mesh.fsdp': 2, 'warm_start.cache': 'none', 'sampling.slots': 3,
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


@pytest.mark.parametrize('fields, lines', [
    ({}, []), ({'loss.importance': 'tis'}, []), ({'sampling.top_p': .9}, []),
    ({'loss.importance': 'tis', 'sampling.top_p': .9},
     ['loss.behaviour: sampled -> tempered'])])
def test_runs_from_before_loss_behaviour_had_sampled(fields, lines):
  """It matters where the sampler truncates and the ratio is used."""
  old = config.flatten(config.load(CONFIG, fields))
  del old['loss.behaviour']
  new = config.load(CONFIG, fields)
  assert [*config.difference(old, new).values()] == lines
  if lines:
    same = config.load(CONFIG, {**fields, 'loss.behaviour': 'sampled'})
    config.validate(same)
    assert config.difference(old, same) == {}


def test_fields_that_did_not_exist_yet_have_their_defaults():
  old = config.flatten(config.load(CONFIG))
  del old['pkpo.k'], old['task.shown']
  assert config.difference(old, config.load(CONFIG)) == {}
  assert list(config.difference(
      old, config.load(CONFIG, {'pkpo.k': 2})).values()) == ['pkpo.k: 4 -> 2']


def test_fingerprint_is_of_names_and_values():
  golden = hashlib.sha256(b'{"seed": 0, "steps": 300}').hexdigest()[:16]
  assert config.fingerprint({'steps': 300, 'seed': 0}) == golden
  assert config.fingerprint({'steps': 300, 'seed': 1}) != golden


def test_files_that_runs_have_left_are_found_again():
  """Names made by the version before `affects`; see CHANGELOG.

  That of the cache is of the version with `learner.tokens_per_microbatch`.
  """
  c = config.load(CONFIG, {'seed': 3})
  warm = config.affecting(c, config.WARM_START)
  assert config.fingerprint(warm) == 'b0713306b4320b43'
  c.learner.remat = 'none'  # as a run chooses it
  cache = config.affecting(c, config.WARM_START, config.ROUNDING)
  assert config.fingerprint(cache) == '722d4e7089bdcd54'
  other = config.affecting(
      config.load(
          CONFIG, {'seed': 3, 'loss.clip_low': .1, 'sampling.slots': 2,
                   'learner.remat': 'none'}),
      config.WARM_START, config.ROUNDING)
  assert cache == other
  evaluated = config.affecting(c, config.EVALUATION)
  assert config.fingerprint(evaluated) == '17c9d013ee6ffee3'


@pytest.mark.parametrize('given,words', [
    ({'loss.objective': 'cispo', 'loss.dual_clip': 3},
     ['loss.dual_clip=3.0', 'loss.objective=cispo', 'default, none']),
    ({'loss.objective': 'no_clip', 'loss.clip_high': .28},
     ['loss.clip_high=0.28', 'loss.objective=no_clip', 'default, 0.2']),
    ({'loss.importance_cap': 3},
     ['loss.importance_cap', 'loss.importance=none']),
    ({'loss.importance': 'tis', 'loss.importance_low': .1},
     ['loss.importance_low=0.1', 'loss.importance=tis', 'default, 0.5']),
])
def test_a_hyperparameter_that_nothing_uses_is_refused(given, words):
  with pytest.raises(ValueError) as error:
    config.validate(config.load(CONFIG, given))
  assert '\n' not in str(error.value)
  for word in words:
    assert word in str(error.value)


def test_a_saved_run_with_an_ignored_hyperparameter_goes_on(tmp_path, caplog):
  """Versions before this one took it in silence."""
  saved = tmp_path / 'config.json'
  old = {**config.flatten(config.load(CONFIG)), 'loss.objective': 'cispo',
         'loss.dual_clip': 3.0}
  saved.write_text(json.dumps(old))
  got = config.load(str(saved))
  config.validate(got)
  assert got.loss.dual_clip is None
  assert 'loss.dual_clip=3.0 had no effect with loss.objective=cispo' in (
      caplog.text)
  assert config.resume_conflicts(old, got) == []
  # With an objective that uses it, the two differ.
  assert config.resume_conflicts(
      {**old, 'loss.objective': 'clip'}, got) != []
