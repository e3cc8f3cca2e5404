"""Tests of supervised fine-tuning: loss, batches, its folder, and RL from it.
"""

import itertools
import json
import shutil
import signal
import types

import jax
import numpy as np
import optax
import pytest
import torch
import transformers

from jaxrl_llm import checkpoint, evaluate, export, train
from jaxrl_llm import config as config_lib
from jaxrl_llm import sft as program
from jaxrl_llm.evaluation import weights
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.models import hf
from jaxrl_llm.prepare import (
  arguments,
  build,
  programs,
  sft,
  sft_data,
  start_weights,
)
from jaxrl_llm.tasks import sft_rows
from jaxrl_llm.types import Stopped
from tests.helpers import many, tiny, tiny_hf

ROWS = tiny_hf.word_problems(40)


@pytest.fixture(scope='module')
def origin(tmp_path_factory):
  folder = tmp_path_factory.mktemp('origin')
  tiny_hf.write(folder / 'rows.jsonl', [
      {'messages': [
          {'role': 'user', 'content': row['problem']},
          {'role': 'assistant', 'content': row['answer']},
          {'role': 'user', 'content': 'So?'},
          {'role': 'assistant', 'content': row['answer']}]}
      for row in ROWS])
  tiny_hf.write(folder / 'problems.jsonl', ROWS)
  return tiny_hf.make(folder / 'model', ROWS, num_hidden_layers=1)


def load(origin, workdir, **fields):
  """Returns the config of a short run on rows of messages."""
  c = config_lib.load(tiny.FILE, {
      'task': 'math', 'task.path': f'{origin.parent}/problems.jsonl',
      'task.heldout_count': 5, 'task.take': 'number', 'model.hf': str(origin),
      'max_prompt': 150, 'max_response': 60, 'workdir': str(workdir),
      'sft.path': f'{origin.parent}/rows.jsonl', 'sft.heldout_count': 6,
      'sft.steps': 8, 'sft.learning_rate': 3e-3, 'sft.eval_every': 3,
      'checkpoint.keep': 1, 'log.tensorboard': False, **{
          name.replace('__', '.'): x for name, x in fields.items()}})
  program.check(c)
  return c


def rows_of(folder):
  """Returns the metrics of the phase, but for its speed."""
  lines = (folder / 'sft/metrics.jsonl').read_text().splitlines()
  return [{k: v for k, v in json.loads(line).items()
           if not k.startswith('seconds')} for line in lines]


@pytest.fixture(scope='module')
def tuned(origin, tmp_path_factory):
  """A whole phase: its config, and the folder of the run."""
  folder = tmp_path_factory.mktemp('tuned')
  c = load(origin, folder)
  program.fine_tune(c)
  return c, folder


def reference(origin, data, step, dtype):
  """Returns transformers' loss of a step's rows, and its gradients."""
  model = transformers.AutoModelForCausalLM.from_pretrained(
      origin, attn_implementation='eager').to(dtype)
  total, count = 0.0, 0
  for row in data.rows(step):
    ids = torch.tensor(np.concatenate([row.prompt, row.response]))[None].long()
    labels = ids.clone()
    labels[0, :len(row.prompt)] = -100
    labels[0, len(row.prompt):][~torch.tensor(row.learned)] = -100
    logits = model(ids).logits[:, :-1]
    total = total + torch.nn.functional.cross_entropy(
        logits[0], labels[0, 1:], reduction='sum')
    count += int((labels[0, 1:] != -100).sum())
  (total / count).backward()
  return float(total.detach()) / count, {
      name: weight.grad.numpy() for name, weight in model.named_parameters()}


@pytest.mark.parametrize('tokens,lengths', [
    (1, {}), (4000, {'sft__max_length': 210})])
def test_loss_and_gradient_are_those_of_transformers(
    origin, tmp_path, monkeypatch, tokens, lengths):
  """One row in a list, and all rows in one; SGD steps by the gradient.

  Gradients are as close to those of float64 as transformers' in float32, twice
  as far at most.
  """
  rate = 64.0  # The step is long beside the rounding of the weights.
  monkeypatch.setattr(
      optimizer_lib, 'make_optimizer', lambda *_: optimizer_lib.Optimizer(
          optax.sgd(rate), optax.constant_schedule(rate)))
  parts = build.parts(load(
      origin, tmp_path, learner__tokens_per_microbatch=tokens, **lengths),
                      training=False)
  data = sft.load(parts)
  learner = programs.sft_learner(parts.programs, data.limits, data.steps)
  assert (data.limits.max_prompt == 1) == bool(lengths)
  params = parts.programs.policy.init(parts.key)
  before = jax.tree.map(np.asarray, params)
  batch = data.batch(data.rows(0))
  plan = sft.SftSetting(parts, data, learner, None, None, None).plan(batch)
  assert plan.sizes.single == (tokens > 1)
  after, metrics = learner.update(
      learner.init({'policy': params}), parts.shard_rows(batch), plan,
      parts.replicate(sft.choices.supervised_params(parts.config)))
  loss, exact = reference(origin, data, 0, torch.float64)
  _, rounded = reference(origin, data, 0, torch.float32)
  np.testing.assert_allclose(float(metrics['loss']), loss, rtol=1e-5)
  moved = jax.tree.map(
      lambda a, b: (a - np.asarray(b)) / rate, before,
      after['policy'].params)
  names = set()
  for name, grad in hf.tensors(
      jax.tree.map(jax.numpy.asarray, moved), parts.programs.model):
    error, theirs, norm = (np.linalg.norm(x) for x in (
        grad - exact[name], rounded[name] - exact[name], exact[name]))
    assert error <= max(2 * theirs, 1e-5 * norm) and error < 1e-4 * norm, name
    names.add(name)
  assert names == exact.keys()


def test_the_held_out_loss_is_the_mean_over_tokens(tuned, origin):
  c, folder = tuned
  parts = build.parts(c, training=False)
  data = sft.load(parts)
  assert len(data.heldout) == 6
  model = transformers.AutoModelForCausalLM.from_pretrained(origin).double()
  total, count = 0.0, 0
  for row in data.heldout:
    ids = np.concatenate([row.prompt, row.response])
    with torch.no_grad():
      logprobs = model(torch.tensor(ids)[None].long()).logits[0].log_softmax(-1)
    for i, learned in enumerate(row.learned, len(row.prompt)):
      if learned:
        total, count = total - float(logprobs[i - 1, ids[i]]), count + 1
  first = rows_of(folder)[0]
  np.testing.assert_allclose(
      first['sft/heldout_loss'], total / count, rtol=1e-5)
  np.testing.assert_allclose(
      first['sft/perplexity'], np.exp(total / count), rtol=1e-5)
  out = {sft_data._key(row) for row in data.heldout}
  assert out.isdisjoint(
      sft_data._key(row) for step in range(8) for row in data.rows(step))


def test_the_folder_is_like_that_of_a_run(tuned, tmp_path, monkeypatch):
  _, folder = tuned
  rows = rows_of(folder)
  assert [row['step'] for row in rows] == [*range(9)]
  assert [row['step'] for row in rows if 'sft/heldout_loss' in row] == [
      0, 3, 6, 8]
  said = json.loads((folder / 'sft/summary.json').read_text())
  losses = [row['sft/heldout_loss'] for row in rows if row['step'] in (0, 8)]
  assert [*said['heldout_loss'].values()][:2] == losses
  assert losses[1] < losses[0] and said['steps'] == 8
  assert (folder / 'sft/report.html').exists()
  # It is exported and evaluated by its own config.
  c = config_lib.load(f'{folder}/sft/config.json')
  merged, _, step = export.parameters(c, 'last')
  assert step == 8
  export.export(c, tmp_path / 'out')
  card = (tmp_path / 'out/README.md').read_text()
  assert 'supervised fine-tuning' in card and 'reinforcement' not in card
  assert hf.open_checkpoint(tmp_path / 'out')
  parts = build.parts(c, training=False)
  params, step, _ = weights.load(parts, 'last', None)
  assert step == 8 and tiny.same(params, merged)
  tiny_task = evaluate.evaluate(config_lib.load(
      f'{folder}/sft/config.json', {'eval.samples': 1, 'eval.k': (1,)}))
  assert tiny_task['step'] in (0, 3, 6, 8)


def test_the_best_weights_are_what_rl_starts_from(
    origin, tmp_path, monkeypatch):
  """A rate that is too high ends with a higher loss than in between."""
  losses = iter([3.0, 1.0, 2.0, 4.0])
  monkeypatch.setattr(sft, '_heldout_loss', lambda *_: next(losses))
  c = load(origin, tmp_path, steps=0)
  program.fine_tune(c)
  best, _, step = export.parameters(
      config_lib.load(f'{tmp_path}/sft/config.json'), 'best')
  assert step == 3
  monkeypatch.setattr(sft, '_steps', lambda phase, state, first, host, *_: (
      state, host['best']))  # nothing is left to do
  parts = build.parts(c, training=False)
  start = start_weights.start(parts, lambda *_: None, False)
  assert tiny.same(start.params, best)


def test_it_goes_on_to_the_bit(tuned, origin, tmp_path, monkeypatch):
  """Stopped after 5 steps, and after 6, where a checkpoint is due."""
  _, folder = tuned
  config, read = load(origin, tmp_path), sft_data.load
  for last in 4, 5:
    def load_data(*args, last=last):
      made = read(*args)

      def rows(step):
        if step == last:
          signal.raise_signal(signal.SIGTERM)
        return made.rows(step)

      return made._replace(rows=rows)

    monkeypatch.setattr(sft_data, 'load', load_data)
    with pytest.raises(Stopped, match=f'after step {last + 1} .* goes on'):
      program.fine_tune(config)
  monkeypatch.setattr(sft_data, 'load', read)
  program.fine_tune(config)
  assert rows_of(tmp_path) == rows_of(folder)
  a, b = (export.parameters(config_lib.load(f'{x}/sft/config.json'), 'last')
          for x in (folder, tmp_path))
  assert tiny.same(a[0], b[0])


def test_a_damaged_checkpoint_is_made_again(tuned, tmp_path, origin):
  shutil.copytree(tuned[1], tmp_path, dirs_exist_ok=True)
  file = tmp_path / 'sft/checkpoints/8/state/manifest.ocdbt'
  file.write_bytes(file.read_bytes()[:-1])
  program.fine_tune(load(origin, tmp_path))
  assert checkpoint.fault(tmp_path / 'sft/checkpoints/8') is None
  assert rows_of(tmp_path) == rows_of(tuned[1])


def test_a_full_disk_costs_the_best_weights_alone(
    origin, tmp_path, monkeypatch, caplog):
  losses = iter([3.0, 1.0, 2.0, 4.0])
  monkeypatch.setattr(sft, '_heldout_loss', lambda *_: next(losses))
  monkeypatch.setattr(checkpoint.Checkpointer, 'save', lambda *_, **__: None)
  program.fine_tune(load(origin, tmp_path))
  assert 'Step 3 had the lowest' in caplog.text
  assert len(rows_of(tmp_path)) == 9


@pytest.mark.parametrize('change,said', [
    (dict(sft__learning_rate=1e-3), 'sft.learning_rate: 0.003 -> 0.001'),
    (dict(sft__heldout_count=5), 'the rows were others')])
def test_another_config_does_not_go_on(tuned, tmp_path, origin, change, said):
  shutil.copytree(tuned[1], tmp_path, dirs_exist_ok=True)
  with pytest.raises(ValueError, match=said):
    program.fine_tune(load(origin, tmp_path, **change))


def test_rl_goes_on_from_it(tuned, tmp_path, origin):
  """In the same workdir, without the cache; the phase is not done again."""
  shutil.copytree(tuned[1], tmp_path, dirs_exist_ok=True)
  c = load(origin, tmp_path, steps=0)
  before = rows_of(tmp_path)
  train.train(c)
  assert rows_of(tmp_path) == before
  start, _, step = export.parameters(c, 'last')
  best, _, _ = export.parameters(
      config_lib.load(f'{tmp_path}/sft/config.json'), 'best')
  assert step == 0 and tiny.same(start, best)


def test_demonstrations_alone_stay(tmp_path, parts):
  """RL goes on from the folder, and does not remove it."""
  c = tiny.load(tmp_path, sft__steps=2, steps=0)
  program.fine_tune(c)
  train.train(c)
  own = config_lib.load(f'{tmp_path}/sft/config.json')
  assert tiny.same(
      export.parameters(c, 'last')[0], export.parameters(own, 'last')[0])


def test_an_evaluation_leaves_the_frozen_weights(origin, tmp_path):
  """A run with LoRA after SFT of all weights needs the very same ones."""
  c = load(origin, tmp_path, lora__rank=2, sft__lora=False, steps=0)
  train.train(c)
  file, = tmp_path.glob('base-*')
  before = file.stat().st_mtime_ns
  parts = build.parts(c, training=False)
  params, *_ = weights.load(parts, 'start', lambda *_: None)
  assert file.stat().st_mtime_ns == before
  frozen = start_weights.load(file, parts.programs.policy.shapes)
  assert tiny.same(params['layers']['q'], frozen['layers']['q'])
  assert not (tmp_path / 'evaluation').exists()  # nothing was trained


def test_lora_alone(origin, tmp_path):
  """Its matrices are trained here and by RL; the anchor has them too."""
  c = load(origin, tmp_path, lora__rank=2, lora__targets='q|down', steps=1,
           loss__kl_coef=.1, sft__steps=3, sft__heldout_count=0,
           sft__cache=str(tmp_path / 'cache'))
  program.fine_tune(c)
  own = config_lib.load(f'{tmp_path}/sft/config.json')
  merged, _, _ = export.parameters(own, 'best')
  parts = build.parts(c, training=False)
  start = start_weights.start(parts, None, False)  # from the cache
  assert {*start.params['layers']} == {
      f'{name}_lora_{x}' for name in ('q', 'down') for x in 'ab'}
  assert tiny.same(start.params, start.anchors['anchor_logprobs'])
  assert any(np.abs(leaf).max() > 0 for name, leaf in
             start.params['layers'].items() if name.endswith('_b'))
  made = start_weights._start(parts)['layers']
  for name, leaf in merged['layers'].items():
    same = np.array_equal(leaf, made[name])
    assert same == (name not in ('q', 'down')), name
  train.train(c)
  assert export.parameters(c, 'last')[2] == 1


@pytest.mark.parametrize('fields,phases', [
    (dict(steps=0), ['sft']), (dict(steps=1, lora__rank=2, sft__lora=True), [
        'sft', 'reshard', 'sample', 'update'])])
def test_its_update_is_compiled_ahead_of_time(parts, fields, phases):
  """With the shapes that the phase has."""
  c = tiny.load(sft__steps=1, sft__max_length=12, **fields)
  made = build.parts(c).programs
  found = arguments.lowered(made)
  assert [*found] == phases
  (state, batch, *_), _ = found['sft']().args_info
  assert batch.tokens.shape == (8, 12) and batch.mask.shape == (8, 11)
  adapters = any('_lora_' in name for name in state['policy'].params['layers'])
  assert adapters == ('lora__rank' in fields)


def test_sources_are_mixed_evenly():
  """Twins: counts by share, at every cut."""
  for shares in (3, 1), (5, 2, 3), (1,), (.1, .7):
    rows = [*itertools.islice(sft_data.mixed(shares), 50)]
    for end in range(1, 51):
      for i, share in enumerate(shares):
        numbers = [number for source, number in rows[:end] if source == i]
        assert numbers == [*range(len(numbers))]
        assert abs(len(numbers) - end * share / sum(shares)) <= 1, (shares, end)


def example(length, value=1):
  return sft_rows.Example(
      np.array([9], np.int32), np.full(length, value, np.int32),
      np.ones(length, bool))


def data(sources, monkeypatch, shards=1, **fields):
  """Returns the data of rows by the names of their sources."""
  c = tiny.load(sft__path=tuple(sources), max_response=30, **fields)
  monkeypatch.setattr(
      sft_rows, 'read', lambda source, *_: (sources[source], []))
  return sft_data.load(c, types.SimpleNamespace(), shards)


def test_each_row_comes_once_in_an_epoch(monkeypatch):
  sources = {'a': [example(2, i) for i in range(11)],
             'b': [example(2, 50 + i) for i in range(4)]}
  made = data(sources, monkeypatch, sft__epochs=2, sft__batch=4)
  seen = [int(row.response[0]) for step in range(made.steps)
          for row in made.rows(step)]
  assert made.steps == 8 and len(seen) == 30  # the last batch has 2
  every = sorted([*range(11), *range(50, 54)])
  assert sorted(seen[:15]) == sorted(seen[15:]) == every
  assert seen[:15] != seen[15:]
  batch = made.batch(made.rows(7))
  assert batch.response_length.tolist() == [2, 2, 0, 0]
  # With weights a source may come more often.
  made = data(sources, monkeypatch, sft__epochs=2, sft__batch=4,
              sft__weights=(1, 1))
  seen = [int(row.response[0]) for step in range(made.steps)
          for row in made.rows(step)]
  assert sum(x >= 50 for x in seen) == 15


def test_batches_of_tokens(monkeypatch):
  rng = np.random.default_rng(0)
  rows = [example(int(n), i) for i, n in enumerate(rng.integers(1, 30, 60))]
  made = data({'a': rows}, monkeypatch, sft__epochs=1, sft__batch_tokens=64,
              shards=4)
  seen = []
  for step in range(made.steps):
    batch = made.rows(step)
    total = sum(1 + len(row.response) for row in batch)
    assert total <= 64 and len(batch) <= made.size and made.size % 4 == 0
    seen += batch
    if step + 1 < made.steps:  # the next row would not have fitted
      assert total + 1 + len(made.rows(step + 1)[0].response) > 64
  assert sorted(int(row.response[0]) for row in seen) == [*range(60)]
  assert data({'a': rows}, monkeypatch, sft__steps=5,
              sft__batch_tokens=64).steps == 5
  with pytest.raises(ValueError, match='has 30 tokens, more than'):
    data({'a': rows}, monkeypatch, sft__steps=90, sft__batch_tokens=29)
  # A small part of the rows is one of them at least.
  assert data({'a': rows}, monkeypatch, sft__epochs=.001, sft__batch=8,
              ).rows(0)[1:] == []


@pytest.mark.parametrize('fields,said', [
    (dict(sft__path=('demonstrations',), sft__epochs=1), 'set sft.steps'),
    (dict(sft__path=('demonstrations', 'a'), sft__steps=1), 'sft.weights'),
    (dict(sft__path=('a',), sft__steps=1, sft__heldout_count=9),
     '3 are held out'),
    (dict(sft__path=('a',), sft__steps=1, sft__heldout_count=9,
          sft__max_length=7), 'more tokens than sft.max_length=7')])
def test_what_rows_cannot_be(monkeypatch, fields, said):
  monkeypatch.setattr(sft_rows, 'read', lambda *_: ([example(2)] * 3, [99]))
  task = types.SimpleNamespace(demonstration=None)
  with pytest.raises(ValueError, match=said):
    sft_data.load(tiny.load(**fields), task, 1)


@pytest.mark.parametrize('fields,said', [
    (dict(sft__steps=1, sft__epochs=1.), 'leave one of them out'),
    (dict(sft__path=('a',)), 'no effect without steps'),
    (dict(sft__steps=1, sft__weights=(1., 2.)), '2 numbers for the 0 sources'),
    (dict(sft__steps=1, sft__path=('a', 'a')), 'has a source twice'),
    (dict(sft__steps=1, sft__path=('a',), sft__heldout=('b',),
          sft__heldout_count=2), 'leave one of them out'),
    (dict(sft__steps=1, sft__lora=True), 'needs lora.rank'),
    ({}, 'There is nothing to do')])
def test_configs_that_do_not_fit(fields, said):
  with pytest.raises(ValueError, match=said):
    program.check(tiny.load(**fields))


def test_demonstrations_and_files_together(monkeypatch, parts):
  """Shares of the weights; each demonstration once, in its order."""
  rows = [example(2, i) for i in range(5)]
  monkeypatch.setattr(sft_rows, 'read', lambda *_: (rows, []))
  c = tiny.load(sft__path=('demonstrations', 'a'), sft__weights=(3, 1),
                sft__steps=4, sft__batch=8)
  made = sft_data.load(c, parts.task, 1)
  seen = [row for step in range(4) for row in made.rows(step)]
  wanted = [sft_data.demonstration(parts.task, made.limits, 0, i)
            for i in range(24)]
  got = [row for row in seen if not any(row is x for x in rows)]
  assert len(seen) == 32 and tiny.same(got, wanted)


@pytest.mark.processes
def test_two_processes_are_one(origin, tmp_path, tuned):
  """The same rows and losses; sums of two devices round in another order.

  AdamW amplifies the rounding of gradients near zero.
  """
  fields = {k.replace('.', '__'): v for k, v in config_lib.flatten(
      load(origin, tmp_path)).items()
            if k.startswith(('sft.', 'task.', 'max_')) or k in (
                'model.hf', 'checkpoint.keep')}
  fields = {k: ','.join(map(str, v)) if isinstance(v, tuple) else v
            for k, v in fields.items()
            if v not in (None, ()) and k != 'sft__cache'}
  many.finish(many.start(
      tmp_path / 'two', {**fields, 'mesh__fsdp': 2}, count=2,
      module='jaxrl_llm.sft'), tmp_path / 'two')
  got, want = rows_of(tmp_path / 'two/run'), rows_of(tuned[1])
  assert [{*row} for row in got] == [{*row} for row in want]
  for a, b in zip(got, want):
    assert a.get('sft/tokens') == b.get('sft/tokens')
    for name in 'sft/loss', 'sft/heldout_loss':
      if name in b:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-3)
