"""Tests of supervised fine-tuning on demonstrations, and of its cache."""

import types

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxrl_llm.prepare import choices, describe, sft, sft_data, start_weights
from tests.helpers import learners, tiny

STEPS = 8


@pytest.fixture(scope='module')
def warmed(parts, tmp_path_factory):
  """A new warm start in the cache: parts, parameters, reports, file."""
  cache = tmp_path_factory.mktemp('cache') / 'new'
  config = tiny.load(
      sft__steps=STEPS, sft__cache=cache,
      sft__learning_rate=3e-2)
  parts = tiny.changed(parts, config=config)
  reports = []
  with pytest.MonkeyPatch.context() as patch:
    counts = tiny.counts(patch)
    params = start_weights.parameters(
        parts, lambda step, row: reports.append((step, row, counts[:])))
  path, = cache.iterdir()
  return parts, jax.device_get(params), reports, path


@pytest.fixture
def no_training(monkeypatch):
  """Replaces training: a warm start outside of the cache gives parameters 7."""
  def run(parts, *_, **__):
    return jax.tree.map(
        lambda x: np.full(x.shape, 7, x.dtype), parts.programs.policy.shapes)
  monkeypatch.setattr(sft, 'run', run)


def test_each_step_counts_once_it_is_done(warmed):
  """Before its report, which the display waits for."""
  assert [counts for *_, counts in warmed[2]] == [
      [('SFT', done, STEPS) for done in range(1, last + 1)]
      for last in range(1, STEPS + 1)]


def made_again(params):
  return all((leaf == 7).all() for leaf in jax.tree.leaves(params))


def test_it_learns_to_answer_and_to_stop(warmed):
  parts, params, reports, _ = warmed
  assert [step for step, *_ in reports] == [*range(1, STEPS + 1)]
  batch = demonstrations(parts.task, seed=1, start=0, count=16)
  rows = parts.shard_rows(batch)
  loss = parts.replicate(choices.loss_params(parts.config))

  def logprobs(params):
    params = jax.device_put(params, describe.param_shardings(parts))
    return np.asarray(
        learners.score(
            parts.programs.learner, params, rows, loss).logprobs)

  key = parts.replicate(jax.random.key(0))
  before = logprobs(parts.programs.policy.init(key))
  gain = logprobs(params) - before
  assert gain[batch.mask].mean() > 0.2
  last = batch.response_length - 1
  assert gain[np.arange(16), last].mean() > 0.2


def demonstrations(task, *, seed, start, count, max_response=10):
  limits = sft_data.sft_rows.RowLimits(9, max_response)
  return sft_data.Data(limits, None, count, 1).batch([
      sft_data.demonstration(task, limits, seed, start + i)
      for i in range(count)])


def test_demonstrations_end_with_the_stop_token(parts):
  batch = demonstrations(parts.task, seed=3, start=5, count=6)
  decode = parts.task.tokenizer.decode
  for i in range(6):
    problem, answer = parts.task.demonstration(5 + i, seed=3)
    p, n = batch.prompt_length[i], batch.response_length[i]
    assert decode(batch.tokens[i, :p]) == problem.prompt
    assert decode(batch.tokens[i, p:p + n - 1]) == answer
    assert batch.tokens[i, p + n - 1] == 1
    assert (batch.tokens[i, p + n:] == 0).all()
    assert batch.mask[i].tolist() == [True] * n + [False] * (10 - n)
  assert (batch.advantages == 1).all()
  # The sequence does not depend on how it is cut.
  a, b = (demonstrations(parts.task, seed=3, start=s, count=3)
          for s in (5, 8))
  assert tiny.same(jax.tree.map(
      lambda *x: np.concatenate(x), a, b), batch)


def test_a_hit_is_bit_identical_and_trains_nothing(warmed, no_training):
  parts, params, _, path = warmed
  got = start_weights.parameters(parts, None)
  assert tiny.same(got, params)
  layout = jax.tree.map(lambda x: x.sharding, got)
  assert layout == describe.param_shardings(parts)
  assert set(load_file(path)) == {
      jax.tree_util.keystr(k, simple=True, separator='/')
      for k, _ in jax.tree_util.tree_leaves_with_path(params)}


def truncate(path):
  path.write_bytes(path.read_bytes()[:-100])


def flip(path):
  data = bytearray(path.read_bytes())
  data[-50] ^= 1
  path.write_bytes(bytes(data))


def less(path):
  leaves = load_file(path)
  leaves.pop('norm')
  save_file(leaves, path)


@pytest.mark.parametrize('harm', [
    truncate, flip, less, lambda path: path.write_bytes(b''),
    lambda path: path.write_text('no parameters')])
def test_a_damaged_file_is_made_again(warmed, no_training, caplog, harm):
  parts, params, _, path = warmed
  whole = path.read_bytes()
  try:
    harm(path)
    assert made_again(start_weights.parameters(parts, None))
    assert f'{path} are damaged' in caplog.text
    # What was made is kept, and nothing beside it.
    caplog.clear()
    assert made_again(start_weights.load(path, parts.programs.policy.shapes))
    assert not caplog.records and list(path.parent.iterdir()) == [path]
  finally:
    path.write_bytes(whole)
  assert tiny.same(start_weights.parameters(parts, None), params)


def test_what_the_result_depends_on_misses_the_cache(
    warmed, no_training):
  parts, params, _, path = warmed
  fields = dict(
      sft__steps=STEPS, sft__learning_rate=3e-2,
      sft__cache=path.parent)

  def start(**changes):
    config = tiny.load(**{**fields, **changes})
    return start_weights.parameters(tiny.changed(parts, config=config), None)

  for change in (
      dict(seed=1), dict(sft__steps=9), dict(sft__batch=16),
      dict(sft__learning_rate=1e-2), dict(task__seed=1),
      dict(task__solved=.5), dict(model__rope_theta=7), dict(max_response=11),
      dict(learner__remat='full'), dict(learner__vocab_chunk=64)):
    assert made_again(start(**change)), change
  for change in (
      dict(steps=99), dict(loss__objective='gspo'), dict(workdir='elsewhere'),
      dict(optimizer__learning_rate=7), dict(samples_per_prompt=8)):
    assert tiny.same(start(**change), params), change


def test_the_demonstrations_of_a_users_task_are_in_the_name(warmed, tmp_path):
  """No config has the code of the user."""
  parts = warmed[0]
  (tmp_path / 'mine.py').write_text('def create(tokenizer): ...')
  config = parts.config.copy_and_resolve_references()
  config.task = {'name': f'{tmp_path}/mine.py'}

  def file(said):
    task = types.SimpleNamespace(
        train=[], demonstration=lambda i, *, seed: (i, said))
    return start_weights.cache_file(
        tiny.changed(parts, config=config, task=task))

  assert file('a') == file('a') != file('b')


def test_every_mesh_has_its_own_file(warmed):
  """Sums over other groups differ in their last bits."""
  parts, _, _, path = warmed
  assert start_weights.cache_file(parts) == path

  def file(*sizes):
    mesh = types.SimpleNamespace(
        shape=dict(zip(('data', 'fsdp', 'tensor'), sizes)))
    return start_weights.cache_file(tiny.changed(parts, learner_mesh=mesh))

  assert file(1, 1, 1) == path  # whatever axis the config left to the rest
  assert len({file(1, 1, 1), file(2, 1, 1), file(1, 2, 1), file(1, 1, 2)}) == 4


def test_a_cache_that_cannot_be_written_costs_only_the_cache(
    parts, no_training, tmp_path, caplog):
  (tmp_path / 'file').write_text('in the way')
  config = tiny.load(
      sft__steps=1, sft__cache=tmp_path / 'file')
  got = start_weights.parameters(tiny.changed(parts, config=config), None)
  assert made_again(got)
  assert 'could not be kept' in caplog.text and 'goes on' in caplog.text


def test_weights_that_lora_freezes_must_be_written(
    parts, no_training, tmp_path, caplog):
  """No checkpoint of the run could be evaluated or exported without them."""
  (tmp_path / 'file').write_text('in the way')
  config = tiny.load(
      tmp_path / 'file', sft__steps=1, lora__rank=2)
  with pytest.raises(OSError, match=f'{tmp_path}/file/base.*make room'):
    start_weights.start(tiny.changed(parts, config=config), None, False)


def test_no_steps_are_the_first_parameters(parts, tmp_path):
  config = tiny.load(sft__cache=tmp_path)
  got = start_weights.parameters(tiny.changed(parts, config=config), None)
  key = parts.replicate(jax.random.key(0))
  assert tiny.same(got, parts.programs.policy.init(key))
  assert not list(tmp_path.iterdir())


def test_what_cannot_be_warm_started_is_refused(parts):
  parts = tiny.changed(parts, config=tiny.load(sft__steps=1))
  with pytest.raises(ValueError, match='max_response=4: raise config.max_resp'):
    demonstrations(parts.task, seed=0, start=0, count=8, max_response=4)
  bare = types.SimpleNamespace(tokenizer=parts.task.tokenizer)
  with pytest.raises(ValueError, match='countdown has no demonstrations: name'):
    sft.load(parts._replace(task=bare))
  wide = types.SimpleNamespace(shape=dict(data=4, fsdp=3, tensor=1))
  with pytest.raises(ValueError, match='sft.batch=8 .* multiple of 12'):
    sft.load(tiny.changed(parts, learner_mesh=wide))
