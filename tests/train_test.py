"""Tests of a whole run: its files, its programs, and its end."""

import base64
import gzip
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
import pytest

from jaxrl_llm import checkpoint, rewards, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.monitoring import compiles, health, metrics, summary, timing
from jaxrl_llm.ops import buckets
from jaxrl_llm.prepare import build, choices, programs
from jaxrl_llm.rewards import Verdict
from tests.helpers import tiny
from tests.helpers.tolerance import policy_gap


def rows_of(run):
  return metrics.read(run.config.workdir + '/metrics.jsonl')


def test_the_summary_has_its_promised_shape(run):
  found = json.loads(open(run.config.workdir + '/summary.json').read())
  assert found == run.summary
  assert list(found) == [
      'pass@1', 'pass@4', 'greedy', 'seconds', 'steps', 'compiled', 'warnings']
  # The tests before may have kept some of its programs.
  assert found['compiled']['programs'] + found['compiled']['loaded'] >= 4
  assert found['steps'] == 20 and found['seconds'] > 0
  rows = rows_of(run)
  for name in ('pass@1', 'pass@4', 'greedy'):
    assert found[name] == {
        'start': rows[0][f'eval/{name}'], 'final': rows[-1][f'eval/{name}']}
    assert 0 <= found[name]['start'] <= 1
  # Random weights hardly ever end a response.
  warning, = health.warnings(rows)
  assert found['warnings'] == [warning._asdict()]
  assert warning.kind == 'truncated' and warning.step == 10


def test_a_figure_that_is_not_known_is_null():
  got = summary.summary(
      {'pass@1': .25, 'pass@1_error': .1}, {
          'pass@1': np.nan, 'pass@1_error': np.nan, 'pass@8': .5, 'greedy': 1.0,
          'mean': .3}, 2.0, 7, compiles.Compiles(2, .5, 1, 9.0),
      [health.Symptom('reward', 5, 'it fell')])
  assert json.loads(json.dumps(got, allow_nan=False)) == {
      'pass@1': {'start': .25, 'final': None},
      'pass@8': {'start': None, 'final': .5},
      'greedy': {'start': None, 'final': 1.0}, 'seconds': 2.0, 'steps': 7,
      'compiled': {'programs': 2, 'seconds': .5, 'loaded': 1, 'saved': 9.0},
      'warnings': [{'kind': 'reward', 'step': 5, 'text': 'it fell'}]}


# Every metric that a step's row must have, but for those of verdicts.
STEP = {
    'reward': 'mean std group_std no_signal signal pass@1 pass@2 pass@4',
    'response': 'count length length_max truncated entropy',
    'sampler': 'slot_use steps',
    'batch': 'rounds rows reward staleness staleness_max age usage replayed '
    'held',
    'update': 'loss policy_loss entropy clip_low clip_high ratio ratio_max '
    'kl_old behaviour_gap behaviour_gap_max importance importance_capped '
    'grad_norm learning_rate tokens processed real_tokens real_tokens_limit '
    'skipped skipped_in_row',
    'seconds': 'step propose sample verify batch score update reshard select',
    'speed': 'tokens_per_second flops flops_share flops_share/sample '
    'flops_share/update',
    'memory': 'peak',
}
NAMES = {f'{head}/{name}' for head, x in STEP.items() for name in x.split()}
FIGURES = {
    f'eval/{name}{end}' for name in ('pass@1', 'pass@4', 'greedy', 'mean')
    for end in ('', '_error')}


def test_every_metric_is_written(run):
  start, *rows = rows_of(run)
  assert set(start) == {'step'} | FIGURES
  assert [row['step'] for row in rows] == list(range(1, 21))
  for row in rows:
    verdicts = {k: v for k, v in row.items() if k.startswith('verdict/')}
    assert set(verdicts) <= {'verdict/odd', 'verdict/even', 'verdict/error'}
    assert sum(verdicts.values()) == pytest.approx(1)
    expected = NAMES | {'step', 'solve_rate', *verdicts}
    if row['step'] % 5 == 0:
      expected |= FIGURES
    assert set(row) == expected
    # The verifier may have failed once in every group.
    unknown = {name for name, value in row.items() if value is None}
    assert unknown <= {'reward/pass@4'}
    assert all(np.isfinite(row[name]) for name in row.keys() - unknown)
  assert any(row['reward/pass@4'] is not None for row in rows)


def test_metrics_are_within_what_they_can_be(run):
  _, *rows = rows_of(run)
  for row, batch in zip(rows, run.watched.batches, strict=True):
    assert row['update/behaviour_gap_max'] < policy_gap(
        run.config, batch.behaviour_logprobs)  # one policy, computed twice
    assert row['update/ratio'] == row['update/ratio_max'] == 1
    assert row['update/learning_rate'] == np.float32(1e-3)
    assert row['update/tokens'] == batch.mask.sum()
    assert 0 < row['sampler/slot_use'] <= 1
    assert 0 < row['update/entropy'] < np.log(24) + 1e-3
    assert row['update/grad_norm'] > 0
    phases = sum(
        row[f'seconds/{name}'] for name in STEP['seconds'].split()[1:])
    assert 0 < phases <= row['seconds/step']
    assert row['memory/peak'] > 1e7
    assert row['speed/flops_share'] < row['speed/flops_share/update'] + row[
        'speed/flops_share/sample']


def test_samples_are_what_was_judged(run):
  lines = open(run.config.workdir + '/samples.jsonl').read().splitlines()
  records = [json.loads(line) for line in lines]
  assert [r['step'] for r in records] == [s for s in range(1, 21)
                                          for _ in range(4 * 2)]
  # Whole groups of two problems, which are not the same at every step.
  groups = [[r['group'] for r in records[i:i + 8:4]]
            for i in range(0, len(records), 8)]
  assert [(r['group'], r['sample']) for r in records] == [
      (group, j) for pair in groups for group in pair for j in range(4)]
  assert all(4 * step <= a < b < 4 * step + 4
             for step, (a, b) in enumerate(groups))
  assert len({(a % 4, b % 4) for a, b in groups}) > 3
  problems = {p.id: p for p in run.parts.task.train}
  errors = 0
  for record in records:
    assert list(record) == [
        'step', 'group', 'sample', 'problem_id', 'kind', 'prompt', 'reference',
        'response', 'reward', 'verdict', 'detail', 'used', 'advantage',
        'token_chars', 'token_logprobs']
    # A row whose verification failed is in no round.
    assert record['used'] == (None if record['verdict'] == 'error' else 1)
    problem = problems[record['problem_id']]
    assert record['reference'] == problem.answer != ''
    assert (problem.prompt, problem.kind) == (record['prompt'], record['kind'])
    if (problem.id + len(record['response'])) % 5 == 0:
      errors += 1
      assert record['verdict'] == 'error'
      assert record['detail'] == 'RuntimeError: no sandbox'
    else:
      assert record['reward'] == len(record['response']) % 2
  assert 0 < errors < len(records)


def test_samples_have_the_values_of_their_tokens(run):
  records = metrics.read(run.config.workdir + '/samples.jsonl')
  size = len(run.parts.task.train)
  sampled = {
      (out.problem_id[row], out.sample[row]): (out, row)
      for out in run.watched.rollouts for row in range(len(out.length))}
  for record in records:
    # Sample j of visit v has the number v * 4 + j.
    out, row = sampled[
        record['problem_id'], record['group'] // size * 4 + record['sample']]
    length, batch = out.length[row], run.watched.batches[record['step'] - 1]
    ended = not out.truncated[row]
    assert record['token_chars'] == [
        len(run.parts.task.tokenizer.decode([i, 1]))
        for i in out.tokens[row, :length - ended]] + [0] * ended
    np.testing.assert_allclose(
        record['token_logprobs'], out.logprobs[row, :length], atol=5.1e-4)
    if record['verdict'] == 'error':
      assert record['advantage'] is None
      continue
    at = batch.prompt_length[:, None] + np.arange(length)
    same = (batch.response_length == length) & (np.take_along_axis(
        batch.tokens, np.minimum(at, batch.tokens.shape[1] - 1), 1)
        == out.tokens[row, :length]).all(1)
    assert np.abs(
        batch.advantages[same] - record['advantage']).min() < 5.1e-4


def test_the_curves_are_a_picture(parts, reuse, tmp_path, drawn):
  reuse(parts)
  train.train(tiny.load(tmp_path, steps=2))
  with Image.open(tmp_path / 'curves.png') as image:
    assert image.format == 'PNG'
    image.verify()
  with Image.open(tmp_path / 'curves.png') as image:
    assert image.size == (1350, 840)
    assert len(image.convert('RGB').getcolors(1 << 20)) > 20


def test_the_config_and_checkpoints_are_there(run):
  again = config_lib.load(run.config.workdir + '/config.json')
  assert again == run.config
  # Two newest, and the best if it is not among them.
  steps = checkpoint.steps(run.config.workdir + '/checkpoints')
  assert steps[-2:] == [14, 20] and len(steps) <= 3


def test_20_steps_compile_each_program_once(run):
  """With lengths, verdicts, numbers of rows and evaluations that differ."""
  tokens = {int(batch.mask.sum()) for batch in run.watched.batches}
  rows = {int((b.response_length > 0).sum()) for b in run.watched.batches}
  assert len(tokens) > 5 and len(rows) > 3
  assert tiny.programs(run.compiled) == [
      'jit(batch_advantages)', 'jit(sharded_generate)', 'jit(update)',
      'jit(wave_signal)']
  # Nothing at all is compiled after the first step.
  assert run.known[0] == run.known[-1] == len(run.compiled)


def test_a_run_keeps_the_lengths_that_it_chose(tmp_path, monkeypatch):
  auto = dict(
      sampling__buckets='auto', learner__tokens_per_microbatch='auto')
  config = tiny.load(tmp_path, steps=1, **auto)
  train.train(config)
  saved = tmp_path / 'choices.json'
  chosen = json.loads(saved.read_text())
  assert chosen['sampling.buckets']
  assert chosen['learner.tokens_per_microbatch'] == 512
  # Another run, such as an evaluation with shorter prompts, may choose others.
  asked = config_lib.load(str(tmp_path / 'config.json'))
  assert asked.learner.tokens_per_microbatch == 'auto'
  assert asked.sampling.buckets == 'auto'
  # Though another version might choose others.
  monkeypatch.setattr(buckets, 'choose', lambda *_, **__: (3,))
  monkeypatch.setattr(programs, '_TOKENS_CPU', 300)
  train.train(tiny.load(tmp_path, steps=2, **auto))
  assert json.loads(saved.read_text()) == chosen
  assert [row['step'] for row in metrics.read(tmp_path / 'metrics.jsonl')] == [
      0, 1, 2]


def test_annealing_k_compiles_nothing(parts, reuse, tmp_path, monkeypatch):
  """A run of its own, whose k changes at steps 2, 3 and 5."""
  config = tiny.load(
      tmp_path / 'run', steps=7, advantage='pkpo', pkpo__k='0:4,2:3,3:2,5:1',
      samples_per_prompt=4)
  watched = tiny.watch(
      tiny.changed(
          parts, config=config, advantages=choices.advantages(config)),
      tiny.by_length)
  reuse(watched.parts)
  names, known = tiny.compiled_by_step(monkeypatch)
  train.train(config)
  rows = metrics.read(tmp_path / 'run' / 'metrics.jsonl')[1:]
  assert [row['pkpo/k'] for row in rows] == [4, 4, 3, 2, 2, 1, 1]
  assert 'jit(batch_advantages)' in names and known[0] == known[-1]
  for program in watched.parts.advantages[:2]:
    assert program._cache_size() == 1
  # With k = n = 4, only a single right answer among four has a signal.
  silent = [row['reward/no_signal'] for row in rows]
  assert max(silent) > min(silent)
  assert all(row['pkpo/k_lowered'] == 0 for row in rows)


def test_a_scheduled_temperature_compiles_nothing_and_leaves_evaluations(
    tmp_path, monkeypatch):
  config = tiny.load(
      tmp_path / 'run', steps=5, sampling__temperature='0:2,2:1,4:.25')
  watched = tiny.watch(build.parts(config), tiny.by_length)
  heats, evaluated = [], []

  def noting(found, sample):
    return lambda *args, **given: found.append(
        float(args[4].temperature)) or sample(*args, **given)

  monkeypatch.setattr(build, 'parts', lambda _: watched.parts._replace(
      sample=noting(heats, watched.parts.sample),
      sample_policy=noting(evaluated, watched.parts.sample_policy)))
  names, known = tiny.compiled_by_step(monkeypatch)
  train.train(config)
  rows = metrics.read(tmp_path / 'run' / 'metrics.jsonl')[1:]
  assert [row['sampler/temperature'] for row in rows] == [2, 2, 1, 1, .25]
  assert known[0] == known[-1]
  assert heats == [2, 2, 1, 1, .25] and {*evaluated} == {0, .25}
  # Each row is trained as it was sampled: else the log-probs would differ.
  assert max(row['update/behaviour_gap_max'] for row in rows) < 1e-4
  assert rows[0]['update/entropy'] > 1.5 * rows[-1]['update/entropy']
  assert [float(batch.temperature.max()) for batch in watched.batches] == heats


@pytest.mark.parametrize('devices', [1, 2])
def test_layouts_are_told_of_several_devices(parts, devices):
  mesh, said = jax.sharding.AbstractMesh(
      (1, devices, 1), ('data', 'fsdp', 'tensor')), []
  train._announce(
      parts._replace(programs=parts.programs._replace(
          mesh=mesh, learner_mesh=mesh)),
      types.SimpleNamespace(note=said.append, say=said.append))
  assert 'An update takes lists' in said[0]
  assert all((title in said[0]) == (devices > 1)
             for title in ('Training:', 'Sampling:'))


def test_the_cumulative_solve_rate_goes_on_after_a_break(
    parts, reuse, tmp_path):
  reuse(tiny.watch(parts, tiny.by_length).parts)
  rates = []
  for name, stops in (('whole', (6,)), ('broken', (3, 6))):
    for steps in stops:
      train.train(tiny.load(tmp_path / name, steps=steps))
    rows = metrics.read(tmp_path / name / 'metrics.jsonl')[1:]
    rates.append([row['solve_rate'] for row in rows])
  whole, broken = rates
  assert whole == broken and 0 < whole[2] < whole[-1]


def test_other_hyperparameters_compile_nothing(run, parts):
  state, fixed, _ = tiny.begin(parts)
  watched = tiny.watch(parts, tiny.by_length)
  seen, counts = [], []
  for i in range(3):
    changed = fixed._replace(
        sampling=parts.sampling(
            temperature=1.0 - .2 * i, top_k=2 * i, top_p=1 - .1 * i),
        loss=parts.replicate(jax.tree.map(
            lambda x: x * np.float32(1 + i), choices.loss_params(
                parts.config))))
    with jax.transfer_guard('disallow'):
      state, outcome = train.take_step(
          watched.parts, state, changed, timing.Timer())
    seen.append(outcome.row['update/entropy'])
    counts.append([
        parts.programs.sampler.generate._cache_size(),
        parts.advantages.of_batch._cache_size(),
        parts.advantages.of_wave._cache_size(),
        parts.programs.learner.update.program._cache_size()])
  assert len(set(seen)) == 3
  assert counts[0] == counts[1] == counts[2] and 0 not in counts[0]


def test_evaluations_are_written_whatever_is_logged(
    parts, reuse, tmp_path, capsys):
  reuse(parts)
  config = tiny.load(
      tmp_path / 'run', steps=7, log__every=3, log__display=True,
      eval__every=2, checkpoint__every=0)
  result = train.train(config, 'a name')
  rows = metrics.read(tmp_path / 'run' / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [0, 2, 3, 4, 6, 7]
  assert ['eval/mean' in row for row in rows] == [
      True, True, False, True, True, True]
  assert checkpoint.steps(tmp_path / 'run' / 'checkpoints')[-1] == 7
  said = capsys.readouterr().out
  assert said.startswith(
      f'a name: tiny on countdown, in {tmp_path / "run"}\n')
  for part in ('held-out problems', 'before', 'pass@4', 'greedy',
               'summary.json', 'RL 7/7 steps ', 'step 6:', 'advantage',
               ', report.html\n'):
    assert part in said
  assert f'"path":"{tmp_path}/run"' in gzip.decompress(base64.b64decode(
      (tmp_path / 'run' / 'report.html').read_text().split('id="data">')[1]
      .split('<')[0])).decode()
  assert said.count('Compiled ') == 1  # after the first step

  # The same command again has nothing to do, and more steps go on.
  again = train.train(config)
  assert again['seconds'] > 0
  timed = ('seconds', 'compiled')
  assert {k: v for k, v in again.items() if k not in timed} == {
      k: v for k, v in result.items() if k not in timed}
  assert metrics.read(tmp_path / 'run' / 'metrics.jsonl') == rows
  longer = tiny.load(
      tmp_path / 'run', steps=8, eval__k=(1, 2), log__display=True)
  assert train.train(longer)['pass@2']['start'] is None
  said = capsys.readouterr().out
  assert 'Going on from step 7 of 8.' in said and 'nan' in said
  assert [r['step'] for r in metrics.read(
      tmp_path / 'run' / 'metrics.jsonl')] == [0, 2, 3, 4, 6, 7, 8]


def test_no_steps_are_an_evaluation(parts, reuse, tmp_path, capsys):
  reuse(parts)
  result = train.train(tiny.load(tmp_path, steps=0, log__report=False))
  assert not (tmp_path / 'report.html').exists()
  # Without a display, the run says where it is.
  first, *_, last = capsys.readouterr().out.splitlines()
  assert first == f'run: tiny on countdown, in {tmp_path}'
  assert last.startswith(f'{tmp_path}: summary.json, curves.png')
  assert result['steps'] == 0
  for name in ('pass@1', 'pass@4', 'greedy'):
    assert result[name]['start'] == result[name]['final'] is not None
  assert [r['step'] for r in metrics.read(tmp_path / 'metrics.jsonl')] == [0]
  assert checkpoint.steps(tmp_path / 'checkpoints') == [0]


def test_a_summary_is_of_a_run_that_is_finished(
    parts, reuse, tmp_path, monkeypatch):
  """Launchers tell by it a finished run from one that was asked to stop."""
  reuse(parts)
  file, take, seen = tmp_path / 'summary.json', train.take_step, []
  monkeypatch.setattr(loop, 'take_step', lambda *args: (
      seen.append(file.exists()), take(*args))[1])
  for steps in (1, 2, 2):
    train.train(tiny.load(tmp_path, steps=steps))
    assert json.loads(file.read_text())['steps'] == steps
  assert seen == [False, False]


def test_the_best_checkpoint_is_kept(parts, reuse, tmp_path, monkeypatch):
  scores = iter([.1, .5, .9, float('nan'), .3])
  reuse(parts)
  monkeypatch.setattr(
      heldout, 'evaluate', lambda *_: {'mean': next(scores), 'greedy': 0.0})
  config = tiny.load(
      tmp_path / 'run', steps=8, checkpoint__keep=1, checkpoint__every=1)
  train.train(config)
  root = tmp_path / 'run' / 'checkpoints'
  assert checkpoint.steps(root) == [4, 8]
  assert checkpoint.score(root, 4) == .9


@pytest.mark.parametrize('step, error, said', [
    (0, AttributeError, 'failed on all 16 responses'),
    (1, rewards.VerifierError, '')])  # as of a result of a wrong form
def test_a_verifier_that_fails_on_a_whole_step_ends_the_run(
    parts, reuse, tmp_path, monkeypatch, step, error, said):
  """Nothing is lost: mended, the same command goes on with that step."""
  calls = []

  def fails_later(problem, text, truncated):
    calls.append(text)
    if len(calls) > broken:
      raise error('no such service')
    return tiny.by_length(problem, text, truncated)

  def verdicts_before(step):
    return len(parts.task.heldout) * (4 + 1) + 16 * step

  broken = verdicts_before(step)
  reuse(tiny.watch(parts, fails_later).parts)
  config = tiny.load(tmp_path / 'run', steps=3, eval__every=0)
  monkeypatch.setattr(
      train.config_lib, 'parse', lambda *_, **__: (config, 'name'))
  monkeypatch.setattr(sys, 'argv', ['train'])
  with pytest.raises(SystemExit) as end:
    train.main()
  for part in (said, 'no such service', *(
      ['in fails_later', repr(calls[broken])] if said else [])):
    assert part in str(end.value.code)
  # Checkpoints are due every second step; step 1 is saved all the same.
  assert checkpoint.steps(tmp_path / 'run' / 'checkpoints') == [
      *range(step + 1)]
  broken = np.inf
  train.main()
  whole = tiny.load(tmp_path / 'whole', steps=3, eval__every=0)
  reuse(tiny.watch(parts, tiny.by_length).parts)
  train.train(whole)
  again, once = (
      [row['update/loss'] for row in metrics.read(
          tmp_path / name / 'metrics.jsonl')[1:]] for name in ('run', 'whole'))
  assert again == once and len(once) == 3


def test_64_bits_that_are_switched_on_change_nothing(parts, reuse, tmp_path):
  """By the shell before the run, or by a reward function in it."""
  def switches(problem, text, truncated):
    jax.config.update('jax_enable_x64', True)
    return tiny.by_length(problem, text, truncated)

  losses = []
  for number, verify in enumerate((tiny.by_length, switches)):
    reuse(tiny.watch(parts, verify).parts)
    folder = tmp_path / str(number)
    jax.config.update('jax_enable_x64', bool(number))
    try:
      train.train(tiny.load(folder, steps=2, eval__every=0))
      assert jax.config.jax_enable_x64 == bool(number)
    finally:
      jax.config.update('jax_enable_x64', False)
    losses.append([row['update/loss'] for row in metrics.read(
        folder / 'metrics.jsonl')[1:]])
  assert losses[0] == losses[1] and len(losses[0]) == 2


def test_a_verifier_may_use_jax(parts):
  """Inside a step too, where transfers are forbidden to the loop."""
  def verify(problem, text, truncated):
    return Verdict(float(jnp.asarray(len(text) % 2) * .5), 'odd')

  state, fixed, _ = tiny.begin(parts)
  with jax.transfer_guard('disallow'):
    _, outcome = train.take_step(
        tiny.watch(parts, verify).parts, state, fixed, timing.Timer())
  assert 'verdict/error' not in outcome.row


def test_a_run_without_a_full_batch_says_so(parts, reuse, tmp_path, caplog):
  reuse(tiny.watch(parts, lambda *_: Verdict(1.0, 'right')).parts)
  train.train(tiny.load(
      tmp_path, steps=2, curriculum='dynamic', eval__every=0))
  assert 'No train batch was full in 2 steps' in caplog.text


def test_a_step_without_a_valid_row_moves_nothing(parts):
  state, fixed, _ = tiny.begin(parts)
  # A first step, so that the optimiser has moments that could move something.
  state, _ = train.take_step(
      tiny.watch(parts, tiny.by_length).parts, state, fixed,
      timing.Timer())
  before = jax.device_get(state.learner)
  assert before.step == 1
  watched = tiny.watch(
      parts, lambda *_: Verdict(0.0, 'timeout', valid=False))
  state, outcome = train.take_step(
      watched.parts, state, fixed, timing.Timer())
  assert tiny.same(before, state.learner)
  assert np.isnan(outcome.row['update/entropy'])
