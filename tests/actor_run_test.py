"""Tests of runs whose responses another model writes."""

import json
import sys

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, evaluate, export, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.monitoring import metrics, timing
from jaxrl_llm.prepare import build, describe, stages
from tests.helpers import tiny, tiny_hf

RUN = dict(
    **tiny.ACTOR, off_policy='jackpot', jackpot__top_k=6, actor__lag=1,
    actor__kl_target=.05, learner__updates=2, optimizer__learning_rate=1e-2,
    actor__learning_rate=2e-2, sft__steps=2, steps=4, eval__every=4,
    seed=3)


def state_in(workdir, step):
  """Returns the arrays of a checkpoint by their dotted names."""
  folder = workdir / 'checkpoints' / str(step)
  names = json.loads((folder / 'tree/metadata').read_text())
  like = {}
  for name, (shape, kind) in names.items():
    *sections, leaf = name.split('.')
    at = like
    for section in sections:
      at = at.setdefault(section, {})
    at[leaf] = np.zeros(shape, kind)
  assert checkpoint.steps(workdir / 'checkpoints')[-1] == step
  return checkpoint.restore(workdir / 'checkpoints', like).state


@pytest.fixture(scope='module')
def built():
  """Parts of RUN, whose programs all runs of this file share."""
  return tiny.watch(
      build.parts(tiny.load(**RUN)), tiny.by_length).parts


@pytest.fixture(scope='module')
def workdir(built, tmp_path_factory):
  """Folder of a run of 4 steps."""
  folder = tmp_path_factory.mktemp('actor') / 'run'
  go(built, folder)
  return folder


def go(built, folder, **fields):
  config = tiny.load(folder, **{**RUN, **fields})
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        build, 'parts', lambda _: tiny.changed(built, config=config))
    return train.train(config)


def test_both_models_learn_and_say_so(workdir):
  rows = metrics.read(workdir / 'metrics.jsonl')
  last = rows[-1]
  for name in ('actor_kl', 'actor_loss', 'actor_policy_loss', 'actor_grad_norm',
               'actor_distill_loss', 'actor_learning_rate', 'actor_ratio',
               'actor_importance', 'actor_clip', 'actor_gap', 'lambda_distill',
               'grad_norm', 'obrs_acceptance'):
    assert np.isfinite(last[f'update/{name}']), name
  assert last['update/actor_learning_rate'] == np.float32(2e-2)
  # The KL is above its target, so that lambda_distill has grown.
  assert 1 < last['update/lambda_distill'] < 1.02 ** 6
  # The actor's own log-probs, as the trainer computes them: the sampler's.
  assert last['update/actor_gap'] < 1e-4 < last['update/behaviour_gap']
  for a, b in zip(*(
      state_in(workdir, 4)['learners'][n]['params']['layers'].values()
      for n in '01')):
    assert a.shape != b.shape or (a != b).any()


def test_it_goes_on_bit_for_bit(built, workdir, tmp_path):
  """Parameters, moments, lambda_distill, waves in flight and their scores."""
  go(built, tmp_path / 'run', steps=2)
  saved = state_in(tmp_path / 'run', 2)
  wave, = saved['in_flight'].values()
  assert (wave['rows']['tokens']['actor_logprobs'] != 0).any()
  assert saved['learners']['1']['distill'] > 1
  go(built, tmp_path / 'run')
  assert tiny.same(state_in(tmp_path / 'run', 4), state_in(workdir, 4))


def test_another_actor_is_one_sentence(built, workdir):
  with pytest.raises(ValueError, match=(
      'of another config: actor.model.mlp_width: 16 -> 32. Set it back')):
    go(built, workdir, actor__model__mlp_width=32)


def test_evaluate_and_export_take_the_policy_or_the_actor(
    workdir, tmp_path, monkeypatch, capsys):
  saved, found = state_in(workdir, 4)['learners'], {}
  for number, player in enumerate(config_lib.PLAYERS):
    monkeypatch.setattr(sys, 'argv', [
        'evaluate', f'--config={workdir}/config.json', f'--player={player}',
        '--checkpoint=last', '--config.eval.samples=1', '--config.eval.k=1'])
    evaluate.main()
    found[player] = json.loads((workdir / 'evaluation.json').read_text())
    out = tmp_path / player
    monkeypatch.setattr(sys, 'argv', [
        'export', f'--workdir={workdir}', f'--out={out}', f'--player={player}',
        '--checkpoint=last'])
    monkeypatch.setattr(jax.config, 'update', lambda *_: None)
    export.main()
    config = config_lib.of_player(tiny.load(**RUN), player)
    params, model, step = export.parameters(
        tiny.load(workdir, **RUN) if not number else config_lib.of_player(
            tiny.load(workdir, **RUN), player), 'last', player)
    assert step == 4 and model == config_lib.model_config(config)
    assert tiny.same(params, saved[str(number)]['params'])
    assert json.loads((out / 'config.json').read_text())[
        'hidden_size'] == model.width
  assert found['policy']['responses'] != found['actor']['responses']
  capsys.readouterr()


def test_the_config_of_one_player_names_no_column_of_the_actor(tmp_path):
  """An evaluation computes no loss, and no run of one model has the column."""
  own = tmp_path / 'own.py'
  own.write_text(
      'def f(new, old, entropy, mask, actor_logprobs):\n'
      '  return actor_logprobs - new\n')
  config = tiny.load(**RUN, loss__term=f'{own}:f')
  assert 'actor_logprobs' in stages.make_stages(config).needs.columns
  for player in config_lib.PLAYERS:
    stages.validate(config_lib.of_player(config, player))


@pytest.mark.parametrize('program', [evaluate, export])
def test_a_run_without_an_actor_has_none(
    program, run, monkeypatch, capsys, tmp_path):
  workdir = run.config.workdir
  argv = ['--config={0}/config.json'] if program is evaluate else [
      '--workdir={0}', f'--out={tmp_path}/out']
  monkeypatch.setattr(sys, 'argv', [
      'program', *(x.format(workdir) for x in argv), '--player=actor'])
  monkeypatch.setattr(jax.config, 'update', lambda *_: None)
  with pytest.raises(SystemExit) as end:
    program.main()
  said = f'{end.value}{capsys.readouterr().err}'
  assert 'has no actor beside its policy: set config.actor.model.hf' in said


def test_the_models_of_the_players_have_their_own_weights(built):
  parts = describe.of_player(built, 'actor')
  config = parts.config
  assert config.model.width == 16 and config.actor.model.preset is None
  start = train.start_weights.start(parts, lambda *_: None, resumed=False)
  assert start.frozen is None and start.anchors == {}
  model = parts.programs.model
  want = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  assert jax.tree.map(lambda x: x.shape, start.params) == jax.tree.map(
      lambda x: x.shape, want)


def test_a_wave_of_nothing_new_is_scored_once(built):
  """The joint score fills the old log-probs of both players."""
  state, fixed, _ = tiny.begin(built)
  state, _ = train.take_step(built, state, fixed, timing.Timer())
  assert isinstance(state, state_lib.RunState) and len(state.learners) == 2
  tokens = state.in_flight[0].rows.tokens
  real = np.arange(tokens.response.shape[1]) < tokens.length[:, None]
  for old in (tokens.old_logprobs, tokens.actor_logprobs):
    assert (old[real] < 0).all() and (old[~real] == 0).all()
  np.testing.assert_allclose(
      tokens.actor_logprobs, tokens.behaviour_logprobs, atol=1e-4)


def hf_config(folder, policy, actor, **fields):
  """Returns the config of a run with two models in folders."""
  config = config_lib.load(tiny.FILE, {
      'task': 'math', 'task.path': str(folder / 'problems.jsonl'),
      'task.heldout_count': '3', 'task.take': 'number',
      'task.template': 'question', 'model.hf': str(policy), 'max_prompt': '150',
      'max_response': '4', 'actor.model.hf': str(actor),
      'workdir': str(folder / 'run'),
      **{name.replace('__', '.'): str(x) for name, x in fields.items()}})
  config_lib.validate(config)
  return config


def test_an_actor_that_does_not_learn_writes_under_tis(monkeypatch):
  """The correction's weights are of the policy over what the actor sampled."""
  watched = tiny.watch(build.parts(tiny.load(
      **tiny.ACTOR, actor__ppo=False, actor__distill=0.0,
      loss__importance='tis', learner__updates=2, optimizer__weight_decay=.1)),
                       tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  before = jax.device_get(state.learners)
  state, report = train.take_step(watched.parts, state, fixed, timing.Timer())
  assert tiny.same(state.learners['actor'].params, before['actor'].params)
  assert not tiny.same(
      state.learners['policy'].params, before['policy'].params)
  batch = watched.batches[0]
  assert batch.actor_logprobs is None
  # Two models, not one that is computed twice; and some weights are cut.
  assert report.row['update/behaviour_gap'] > 1e-3
  assert abs(report.row['update/importance'] - 1) > 1e-3
  assert not [name for name in report.row if name.startswith('update/actor_')]


def test_another_vocabulary_is_one_sentence(tmp_path):
  """It says which ids differ; equal ones are accepted, with LoRA too."""
  rows = tiny_hf.word_problems(30)
  tiny_hf.write(tmp_path / 'problems.jsonl', rows)
  policy = tiny_hf.make(tmp_path / 'policy', rows)
  same = tiny_hf.make(tmp_path / 'same', rows, num_hidden_layers=1)
  other = tiny_hf.make(tmp_path / 'other', [
      {'text': 'zyx wvu tsr qpo nml kji hgf edc ba ' * 3}])
  with pytest.raises(ValueError) as error:
    build.parts(hf_config(tmp_path, policy, other))
  said = str(error.value)
  assert said.count('.') <= said.count('actor.model.hf') + 3
  for part in ('actor.model.hf=', str(other), 'another vocabulary than',
               'ids differ, such as', "policy's vocabulary"):
    assert part in said, said
  # A policy of the task's characters, with as many of them.
  size = json.loads((same / 'config.json').read_text())['vocab_size']
  with pytest.raises(ValueError, match='hf=.* has a tokenizer of its own.*a '
                     r'policy \(model.hf\) with a tokenizer'):
    build.parts(tiny.load(
        tmp_path / 'run', model__vocab_size=size, advantage='none',
        teacher__model__hf=str(same)))
  parts = build.parts(hf_config(tmp_path, policy, same, lora__rank=2))
  assert {'problems', 'model', 'actor'} == parts.contents.keys()
  assert describe.of_player(parts, 'actor').contents['model'] == (
      parts.contents['actor'])
  assert parts.config.actor.model.dtype == 'float32'
  parts.close()
