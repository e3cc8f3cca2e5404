"""Tests of one step: sampling, verification and training."""

import dataclasses
import pathlib
import sys
import traceback

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, train
from jaxrl_llm.base import phases
from jaxrl_llm.evaluation import heldout
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.monitoring import metrics, timing
from jaxrl_llm.prepare import build, choices, describe
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.types import AdvantageError, Stopped
from tests.helpers import learners, stage_runs, tiny
from tests.helpers.tolerance import policy_gap, rounding
from tests.reference import advantages as reference


def take(watched, state, fixed):
  """Does a step of watched parts; returns state, row, rollouts and batches."""
  watched.rollouts.clear()
  watched.batches.clear()
  with jax.transfer_guard('disallow'):
    state, outcome = train.take_step(
        watched.parts, state, fixed, timing.Timer())
  return state, outcome.row, watched.rollouts[0], list(watched.batches)


def step(parts, verify=tiny.by_length, move=0, **changes):
  """Does the first step of a run, or the one that `move` selects.

  Returns:
    Row, rollouts, batch and verdicts of the step.
  """
  state, fixed, _ = tiny.begin(parts)
  verdicts = []

  def noted(*args):
    verdicts.append(args[1:])
    return verify(*args)

  watched = tiny.watch(parts, noted, **changes)
  _, row, rollouts, batches = take(
      watched, state._replace(step=move), fixed)
  return row, rollouts, batches[0], verdicts


def grouped(x):
  return np.reshape(x, (4, 4))


def test_the_stop_token_is_trained_wherever_it_stands(run):
  """In a response of one token too: stopping at once must be learned."""
  stop, = run.parts.task.tokenizer.stop_ids
  trained = [r for r in run.watched.rollouts if len(r.length) == 16]
  steps = iter(trained)
  at_once = 0
  for batch in run.watched.batches:
    # The step's rollouts: evaluations have other problems.
    rollouts = next(r for r in steps if np.isin(
        r.problem_id, [p.id for p in run.parts.task.train]).all())
    kept = batch.response_length > 0
    np.testing.assert_array_equal(
        batch.response_length[kept], rollouts.length[kept])
    # Every token of what is kept counts, the last one included.
    np.testing.assert_array_equal(batch.mask.sum(1), batch.response_length)
    last = batch.tokens[
        np.arange(16), batch.prompt_length + batch.response_length - 1]
    np.testing.assert_array_equal(
        (last == stop)[kept], ~rollouts.truncated[kept])
    at_once += (kept & (rollouts.length == 1) & ~rollouts.truncated).sum()
  assert at_once > 3


def test_a_step_says_what_it_does(parts, monkeypatch):
  began, begin = [], phases.begin

  def noted(name, total=0, unit='', *args, **kwargs):
    around = [phase.name for phase in phases.running()]
    began.append('/'.join([*around, f'{name} {total} {unit}'.rstrip()]))
    return begin(name, total, unit, *args, **kwargs)

  monkeypatch.setattr(phases, 'begin', noted)
  config = tiny.load(learner__updates=2, learner__epochs=2)
  watched = tiny.watch(
      tiny.changed(parts, config=config), tiny.by_length, train=[
          dataclasses.replace(p, text=f'Reach it: {p.prompt}')
          for p in parts.task.train])
  state, fixed, _ = tiny.begin(parts)
  del began[:]
  _, report = train.take_step(watched.parts, state, fixed, timing.Timer())
  ours = [line for line in dict.fromkeys(began) if not any(
      verb in line for verb in ('tracing', 'lowering', 'compiling'))]
  assert ours == [
      'propose 0', 'reshard 0', 'sample 0', 'sample/sampling 16 responses',
      'verify 0', 'verify/verification 16 responses', 'batch 0',
      'batch/select 0', 'score 0', 'update 0', 'update/select 0',
      'update/optimiser steps 4']
  # The sample to show has the problem without its template.
  assert report.sample[0]['prompt'].startswith('Reach it: ')
  assert not any('Reach' in record['prompt'] for record in report.records)


@pytest.mark.parametrize('passes, fields', [
    (0, {}), (1, dict(learner__updates=2)),
    (2, dict(learner__updates=2, loss__kl_coef=.1))])
def test_the_flops_of_old_log_probs_and_of_an_anchor_count(
    parts, passes, fields):
  """Each is a forward pass over the rows, a third of their update."""
  changed = tiny.changed(parts, config=tiny.load(**fields))
  watched, timer = tiny.watch(changed, tiny.by_length), timing.Timer()
  state, fixed, _ = tiny.begin(changed)
  _, report = train.take_step(watched.parts, state, fixed, timer)
  assert timer.take_flops() == ({'score': pytest.approx(
      passes * report.flops['update'] / 3)} if passes else {})


def test_rows_without_an_advantage_are_skipped_if_the_loss_leaves_them(parts):
  """A group all of whose rewards are equal has none."""
  equal = lambda problem, text, truncated: (
      Verdict(1.0, 'odd') if problem.id % 2 else tiny.by_length(
          problem, text, truncated))
  found, flops = {}, {}
  for name, fields in (
      ('all', {}), ('skipped', dict(learner__skip_zero=True)),
      ('bonus', dict(learner__skip_zero=True, loss__entropy_bonus=.1))):
    changed = tiny.changed(parts, config=tiny.load(**fields))
    watched = tiny.watch(changed, equal)
    state, fixed, _ = tiny.begin(changed)
    _, report = train.take_step(watched.parts, state, fixed, timing.Timer())
    found[name], flops[name] = report.row, report.flops
    off = 'learner.skip_zero is off: rows without an advantage matter to ' \
        'loss.entropy_bonus.\n'
    assert describe.updates(changed).startswith(off) == (name == 'bonus')
  for name in 'all', 'bonus':
    assert found[name]['update/processed'] == found[name]['update/tokens']
  assert flops['bonus'] == flops['all']
  assert flops['skipped']['sample'] == flops['all']['sample']
  assert 0 < flops['skipped']['update'] < flops['all']['update']
  less, all_ = found['skipped'], found['all']
  assert 0 < less['update/processed'] < all_['update/processed']
  for name in 'tokens', 'loss', 'grad_norm':
    assert less[f'update/{name}'] == pytest.approx(
        all_[f'update/{name}'], rel=1e-4, abs=1e-6)


def test_an_advantage_says_which_rewards_it_takes(parts):
  changed = tiny.changed(parts, config=tiny.load(advantage='maxrl'))
  below = lambda *args: Verdict(-.5, 'wrong')
  with pytest.raises(AdvantageError, match='reward -0.5, but this advantage'):
    step(changed, below)


def test_no_two_steps_share_noise(parts):
  """The same problems and policy at two steps: only the noise differs."""
  a, again, b = (step(parts, move=i)[1] for i in (0, 0, 1))
  assert tiny.same(a, again)
  np.testing.assert_array_equal(a.problem_id, b.problem_id)
  # Of 24 tokens nearly alike two draws agree once in 24 times.
  equal = (a.tokens == b.tokens)[:, 0]
  assert equal.mean() < 0.3
  assert not tiny.same(a.tokens, b.tokens)


def test_other_seeds_are_other_noise_problems_and_parameters(parts):
  other = build.parts(tiny.load(seed=1))
  mixed = parts._replace(step_key=other.step_key)
  a, b = step(parts)[1], step(mixed)[1]
  np.testing.assert_array_equal(a.problem_id, b.problem_id)
  assert (a.tokens == b.tokens)[:, 0].mean() < 0.3
  reseeded = tiny.changed(parts, config=other.config)
  assert (step(reseeded)[1].problem_id != a.problem_id).any()
  keys = [parts.replicate(jax.random.key(seed)) for seed in (0, 1)]
  assert not tiny.same(*map(parts.programs.policy.init, keys))


def test_a_problem_that_comes_twice_in_a_step_gets_other_samples(parts):
  _, rollouts, _, _ = step(parts, train=parts.task.train[:2])
  first, second = (
      rollouts.tokens[rollouts.problem_id == rollouts.problem_id[0]][part]
      for part in (slice(0, 4), slice(4, 8)))
  assert (first == second)[:, 0].mean() < 0.6
  assert not tiny.same(first, second)


def test_the_cumulative_solve_rate_counts_problems_ever_solved(parts):
  """Twice the whole set of 6 problems; valid rewards of at least 1 count."""
  few = parts.task.train[:6]
  ever = set()
  state, fixed, _ = tiny.begin(parts)
  state = state._replace(solved=np.zeros(6, bool))

  def verify(problem, text, truncated):
    if problem.id % 3 == 0:
      raise RuntimeError('no sandbox')
    reward = float(len(text) % 2) * (.9 if problem.id % 3 == 1 else 1.5)
    if reward >= 1:
      ever.add(problem.id)
    return Verdict(reward, 'parity')

  watched = tiny.watch(
      parts._replace(kinds=build.by_kind(few)), verify, train=few)
  for _ in range(3):
    before = state.solved.copy()
    state, row, _, _ = take(watched, state, fixed)
    assert row['solve_rate'] == pytest.approx(len(ever) / 6)
    assert {p.id for p, s in zip(few, state.solved) if s} == ever
    assert (state.solved >= before).all()
  assert 0 < len(ever) < 6


def test_overlong_responses(parts):
  """Masking changes only the mask, the penalty only the advantages."""
  def credited(**fields):
    config = tiny.load(**fields)
    return step(tiny.changed(
        parts, config=config, advantages=choices.advantages(config)))

  plain_row, rollouts, plain, _ = credited()
  cut = rollouts.truncated
  assert 0 < cut.sum() < 16 and (plain.mask.any(1)).all()

  row, _, masked, _ = credited(overlong__mode='mask')
  assert not masked.mask[cut].any()
  assert tiny.same(masked.replace(mask=plain.mask), plain)
  np.testing.assert_array_equal(masked.mask[~cut], plain.mask[~cut])
  assert row['reward/mean'] == plain_row['reward/mean']

  window = 6
  row, _, penalised, _ = credited(
      overlong__mode='penalty', overlong__window=window)
  assert tiny.same(
      penalised.replace(advantages=plain.advantages), plain)
  assert row['reward/mean'] == plain_row['reward/mean']  # as it was judged
  # In tokens, stop token included: 0 up to 4 of 10, then -1/6 for each.
  penalty = -np.clip(rollouts.length - (10 - window), 0, window) / window
  texts = batch_texts(parts, rollouts)
  reward = np.array([len(text) % 2 for text in texts]) + penalty
  close(grouped(penalised.advantages), reference.advantages(
      'grpo', grouped(reward), np.ones((4, 4), bool)))


def close(got, want):
  """Compares advantages: sums over groups of 4 and some 16 operations."""
  np.testing.assert_allclose(
      got, want, rtol=0,
      atol=rounding(2 * 4, 16, magnitude=np.abs(want).max()))


def batch_texts(parts, rollouts):
  """Decodes the responses as the verifier gets them."""
  texts = []
  for tokens, length, cut in zip(
      rollouts.tokens, rollouts.length, rollouts.truncated):
    end = length if cut else length - 1
    texts.append(parts.task.tokenizer.decode([*tokens[:end], 1]))
  return texts


def raises(problem, text):
  raise RuntimeError(f'{problem.id}: no answer')


@pytest.mark.parametrize('fail', [
    raises, lambda *_: Verdict(float('nan'), 'odd'), lambda *_: None,
    lambda *_: Verdict(float('inf'), 'odd')])
def test_a_failed_verification_costs_its_own_row_only(parts, fail):
  """Rewards of the others stay where they are, and its group goes on without
  it; nothing is scored 0 in silence."""
  calls = [0]
  # All of group 0, three of group 1, one of group 3.
  failing = {0, 1, 2, 3, 4, 5, 7, 13}

  def verify(problem, text, truncated):
    number = calls[0]
    calls[0] += 1
    if number in failing:
      return fail(problem, text)
    return Verdict(float(number ** 2), 'number')

  row, rollouts, batch, seen = step(parts, verify)
  assert [text for text, _ in seen] == batch_texts(parts, rollouts)
  np.testing.assert_array_equal([cut for _, cut in seen], rollouts.truncated)
  valid = np.array([i not in failing for i in range(16)])
  rewards = np.arange(16.0) ** 2
  close(grouped(batch.advantages), reference.advantages(
      'grpo', grouped(rewards), grouped(valid)))
  np.testing.assert_array_equal(batch.response_length > 0, valid)
  np.testing.assert_array_equal(batch.mask.any(1), valid)
  assert row['verdict/error'] == 0.5 and row['verdict/number'] == 0.5
  assert row['reward/mean'] == pytest.approx(
      rewards[valid].mean(), rel=rounding(16))
  assert row['update/tokens'] == rollouts.length[valid].sum()


def by_row(batches, field):
  """Maps a row's content to its field; all rows of the batches differ."""
  found = {}
  for batch in batches:
    for i in range(len(batch.prompt_length)):
      end = batch.prompt_length[i] + batch.response_length[i]
      key = batch.tokens[i, :end].tobytes(), batch.prompt_length[i]
      found.setdefault(key, []).append(getattr(batch, field)[i])
  return found


def test_old_and_anchor_logprobs_stay_through_the_updates_of_a_step(several):
  names = tiny.compiled()
  state, fixed, _ = tiny.begin(several)
  frozen = jax.device_get(fixed.anchors['anchor_logprobs'])
  watched = tiny.watch(several, tiny.by_length)
  orders = []
  for number in range(3):
    params = jax.device_get(state.learner.params)
    state, row, rollouts, batches = take(watched, state, fixed)
    assert len(batches) == 4 and int(state.learner.step) == 4 * (number + 1)
    # The anchor is what RL started from.
    assert tiny.same(fixed.anchors['anchor_logprobs'], frozen)
    old = by_row(batches, 'old_logprobs')
    anchor = by_row(batches, 'anchor_logprobs')
    behaviour = by_row(batches, 'behaviour_logprobs')
    mask = by_row(batches, 'mask')
    assert sum(map(len, old.values())) == 32  # each row once per epoch
    for key, values in old.items():
      assert all(tiny.same(values[0], value) for value in values)
      assert all(tiny.same(anchor[key][0], v) for v in anchor[key])
      # Old is the policy that sampled, as the trainer computes it.
      real = mask[key][0]
      want = behaviour[key][0][real]
      np.testing.assert_allclose(
          values[0][real], want, rtol=0,
          atol=policy_gap(several.config, want))
      if number == 0:
        np.testing.assert_array_equal(values[0], anchor[key][0])
    if number:
      assert row['update/kl_anchor'] > 1e-6
    # An epoch's two batches are all the rows.
    rows = jax.tree.map(lambda *x: np.concatenate(x), *batches[:2])
    bare = several.shard_rows(rows.replace(
        old_logprobs=None, anchor_logprobs=None))
    for of, name in ((params, 'old'), (frozen, 'anchor')):
      score = learners.score(
          several.programs.learner,
          jax.device_put(of, describe.param_shardings(several)), bare,
          fixed.loss, None).logprobs
      want = getattr(rows, f'{name}_logprobs')
      np.testing.assert_allclose(
          score, want, rtol=0, atol=policy_gap(several.config, want))
    assert row['update/kl_old'] > 0  # later updates have moved
    shuffled = [
        int((rollouts.logprobs == row).all(1).argmax())
        for batch in batches for row in batch.behaviour_logprobs]
    orders += [shuffled[:16], shuffled[16:]]
  # Every epoch of every step has a shuffle of its own.
  assert len(set(map(tuple, orders))) == len(orders) == 6
  # All sizes at once, here or in a test before this one.
  assert names.count('jit(update)') in (
      0, len(several.programs.learner.plans(8)))


def test_the_anchor_pulls(several):
  """With a large weight, the policy stays near what it started from."""
  def distance(kl_coef):
    state, fixed, _ = tiny.begin(several)
    fixed = fixed._replace(loss=fixed.loss.replace(
        kl_coef=several.replicate(np.float32(kl_coef))))
    watched = tiny.watch(several, tiny.by_length)
    for _ in range(6):
      state, row, _, _ = take(watched, state, fixed)
    return row['update/kl_anchor']

  assert distance(100.0) < 0.3 * distance(0.0)


def test_a_resumed_run_has_the_same_anchor(
    several, reuse, tmp_path, monkeypatch):
  seen, take_step = [], train.take_step

  def spy(parts, state, fixed, *rest):
    seen.append(jax.device_get((
        fixed.anchors['anchor_logprobs'], state.learner.params)))
    return take_step(parts, state, fixed, *rest)

  reuse(tiny.watch(several, tiny.by_length).parts)
  monkeypatch.setattr(loop, 'take_step', spy)
  fields = dict(
      learner__epochs=2, learner__updates=2, loss__kl_coef=.2, seed=5)
  train.train(tiny.load(tmp_path, steps=2, **fields))
  train.train(tiny.load(tmp_path, steps=3, **fields))
  start = several.programs.policy.init(several.replicate(jax.random.key(5)))
  assert len(seen) == 3
  for step, (anchor, params) in enumerate(seen):
    assert tiny.same(anchor, start)
    assert tiny.same(params, start) == (step == 0)


def spoiled(parts, bad):
  """Makes parts whose advantages are NaN in some updates."""
  calls = []

  def spoil(*args):
    given = jax.device_get(parts.advantages.of_batch(*args))
    calls.append(None)
    if bad(len(calls)):
      given = given._replace(advantages=np.full_like(given.advantages, np.nan))
    return given

  return parts._replace(
      advantages=parts.advantages._replace(of_batch=spoil))


def test_a_loss_that_is_not_finite_is_skipped_and_counted(
    parts, reuse, tmp_path):
  """Two in a row and one more: the run goes on."""
  reuse(spoiled(parts, lambda n: n in (2, 3, 5)))
  train.train(tiny.load(tmp_path, steps=6, eval__every=0))
  rows = metrics.read(tmp_path / 'metrics.jsonl')[1:]
  assert [r['update/skipped'] for r in rows] == [0, 1, 2, 2, 3, 3]
  assert [r['update/skipped_in_row'] for r in rows] == [0, 1, 2, 0, 1, 0]
  assert [r['update/loss'] is None for r in rows] == [
      False, True, True, False, True, False]
  assert not (tmp_path / 'not_finite.npz').exists()


def test_an_advantage_of_the_users_that_is_not_finite_ends_the_run(
    parts, reuse, tmp_path):
  """The state before the step is saved."""
  (tmp_path / 'mine.py').write_text(
      'def mine(rewards, *, where): return rewards')
  reuse(spoiled(parts, lambda n: n > 3))
  with pytest.raises(AdvantageError, match='mine.py:mine is nan for a respo'):
    train.train(tiny.load(
        tmp_path / 'run', steps=9, eval__every=0, checkpoint__every=0,
        advantage=f'{tmp_path}/mine.py:mine'))
  assert checkpoint.steps(tmp_path / 'run' / 'checkpoints')[-1] == 3


def test_three_in_a_row_stop_the_run(
    parts, reuse, tmp_path, monkeypatch, capsys):
  reuse(spoiled(parts, lambda n: n > 3))
  fields = dict(steps=9, checkpoint__every=1, checkpoint__keep=4, seed=2)
  config = tiny.load(tmp_path / 'run', **fields)
  monkeypatch.setattr(
      train.config_lib, 'parse', lambda *_, **__: (config, 'name'))
  monkeypatch.setattr(sys, 'argv', ['train'])
  with pytest.raises(SystemExit) as end:
    train.main()
  said = str(end.value.code)
  assert '3 updates in a row' in said and 'step 6' in said
  assert '\n' not in said and str(tmp_path / 'run/not_finite.npz') in said
  with np.load(tmp_path / 'run' / 'not_finite.npz') as batch:
    assert np.isnan(batch['advantages']).all()
    assert batch['tokens'].shape == (16, 19) and batch['mask'].any()

  # The checkpoints before it are whole, and hold what was there before.
  root = pathlib.Path(tmp_path / 'run' / 'checkpoints')
  steps = checkpoint.steps(root)
  assert steps[-1] == 5
  assert all(checkpoint.fault(root / str(step)) is None for step in steps)
  like = state_lib.init_state(parts, parts.programs.learner.state).listed
  third = checkpoint.restore(root, like).state.named
  assert int(third.learner.step) == 3 and int(third.learner.skipped) == 2
  # Mended, the same command goes on.
  reuse(parts)
  train.train(config)
  rows = metrics.read(tmp_path / 'run' / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(10))
  assert rows[-1]['update/skipped'] == 2


@pytest.mark.parametrize('step', [0, 2])
def test_asked_to_stop_in_an_evaluation(
    parts, reuse, tmp_path, monkeypatch, step):
  """The state that was saved then is used, and saved again with the score."""
  reuse(parts)
  config, root = tiny.load(tmp_path, steps=2), tmp_path / 'checkpoints'
  evaluate, before = heldout.evaluate, [True] * (step // 2)

  def stop(*args):
    if not before:
      raise Stopped('asked to')
    return before.pop() and evaluate(*args)

  with monkeypatch.context() as patch, pytest.raises(
      Stopped, match=f'after step {step} of 2, which is saved'):
    patch.setattr(heldout, 'evaluate', stop)
    train.train(config)
  assert checkpoint.score(root, step) is None
  taken, take_step = [], train.take_step
  monkeypatch.setattr(loop, 'take_step', lambda parts, state, *args: (
      taken.append(state.step), take_step(parts, state, *args))[1])
  train.train(config)
  assert taken == list(range(step, 2))
  assert checkpoint.score(root, step) is not None
  assert sorted(path.name for path in root.iterdir()) == ['0', '2']


def test_few_calls_lie_between_a_step_and_its_gradient(monkeypatch):
  """A reader follows six functions of the package from one to the other."""
  def grad(*args, **options):
    frames = [frame.f_code for frame, _ in traceback.walk_stack(
        sys._getframe(1))]
    names = [code.co_name for code in frames if str(
        pathlib.Path(loop.__file__).parents[1]) in code.co_filename]
    if 'take_step' in names:
      found.append(names[:names.index('take_step') + 1])
    return given(*args, **options)

  given, found = jax.grad, []
  monkeypatch.setattr(jax, 'grad', grad)
  parts = stage_runs.judged(stage_runs.built())
  state, fixed, _ = tiny.begin(parts)
  train.take_step(parts, state, fixed, timing.Timer())
  assert found and max(map(len, found)) <= 6, found
