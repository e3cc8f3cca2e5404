"""Runs with `sampling.carry_over`: who wrote which token, and going on."""


import jax
import numpy as np
import pytest

import jaxrl_llm
from jaxrl_llm import train
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.loop import carry
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.monitoring import metrics, timing
from jaxrl_llm.prepare import describe, stages
from tests import processes_test, resume_test, seams_test, turns_run_test
from tests.helpers import devices, learners, stage_runs, tiny
from tests.helpers.tolerance import policy_gap

# 16 responses of up to 10 tokens, for which 8 slots need two fills.
FIELDS = dict(
    sampling__carry_over=True, sampling__wave_steps=7, learner__updates=2)


@pytest.mark.parametrize('fields', [
    dict(advantage='pkpo', loss__kl_coef=.1),
    dict(curriculum='dynamic', curriculum_prompts=6, selection='replay',
         off_policy='jackpot', sampling__weights='int8')])
def test_a_run_goes_on_from_unfinished_responses(fields, tmp_path):
  seen = []

  def check(state):
    seen.append(state.begun)

  rows = seams_test.goes_on(
      stage_runs.judged(stage_runs.built(**FIELDS, **fields)), tmp_path, check)
  begun, = seen
  some = begun.rollouts.length[:begun.samples]
  assert (some[~begun.finished[:begun.samples]] > 0).any()
  assert max(row['carry/age_max'] for row in rows if row['carry/left']) > 0
  assert {row['sampler/steps'] for row in rows} == {7}


@pytest.mark.parametrize('fields', [{}, dict(
    model__experts=4, model__experts_per_token=2, model__expert_width=8,
    loss__replay_experts=True)], ids=['dense', 'experts'])
def test_each_token_has_the_log_probs_of_the_policy_that_wrote_it(fields):
  """With the experts that the policies have chosen for it and those before."""
  watched = tiny.watch(
      stage_runs.built(**FIELDS, optimizer__learning_rate=.02, **fields),
      tiny.by_length)
  parts = watched.parts
  state, fixed, _ = tiny.begin(parts)
  policies, checked, mixed = {}, 0, 0
  for _ in range(12):
    policies[int(state.learner.step)] = jax.device_get(state.learner.params)
    watched.batches.clear()
    begun = state.begun
    with jax.transfer_guard('disallow'):
      state, report = train.take_step(parts, state, fixed, timing.Timer())
    assert (begun.samples > 0) == (report.row['carry/prefilled'] > 0) or (
        not begun.rollouts.length.any())
    for batch in watched.batches:
      bare = parts.shard_rows(batch.replace(
          old_logprobs=None, token_steps=None))
      steps = batch.token_steps
      mixed += sum(
          len({*row[mask]}) > 1 for row, mask in zip(steps, batch.mask))
      for number in {*steps[batch.mask].tolist()}:
        scores = learners.score(
            parts.programs.learner, jax.device_put(
                policies[number], describe.param_shardings(parts)), bare,
            fixed.loss, None).logprobs
        wrote = batch.mask & (steps == number)
        most = policy_gap(parts.config, scores)
        for have in batch.old_logprobs, batch.behaviour_logprobs:
          assert np.abs(scores - have)[wrote].max() <= most
        checked += wrote.sum()
        others = batch.mask & (steps != number)
        if others.any():
          assert np.abs(scores - batch.old_logprobs)[others].max() > most
  assert checked > 100 and mixed > 3
  # What was said is known at home alone: processes do not compare it.
  other = state._replace(begun=state.begun._replace(said=['{}']))
  assert state_lib.digests(other) == state_lib.digests(state)


def test_metrics_are_of_what_leaves_and_of_what_was_sampled(monkeypatch):
  """A group's responses end in several waves."""
  watched, left = tiny.watch(stage_runs.built(**FIELDS), tiny.by_length), []
  wave, probe, probes = carry.wave, train.step_metrics.probe, []

  def noted(parts, state, begun, *rest):
    left.append((begun, wave(parts, state, begun, *rest).carried))
    return wave(parts, state, begun, *rest)

  monkeypatch.setattr(carry, 'wave', noted)
  monkeypatch.setattr(train.step_metrics, 'probe', lambda *x: (
      probes.append(probe(*x)) or probes[-1]))
  state, fixed, _ = tiny.begin(watched.parts)
  spread, sampled, gone, late = 0, 0, 0, 0
  for number in range(8):
    held = state.begun.rollouts.length.sum()
    state, report = train.take_step(
        watched.parts, state, fixed, timing.Timer())
    begun, carried = left[-1]
    row, table = report.row, carried.rows.table
    # Each token that is there was sampled in one wave.
    before, _, new = carried.sampled
    sampled, gone = sampled + new.sum(), gone + table.length.sum()
    assert sampled == gone + state.begun.rollouts.length.sum()
    assert new.min() > 0 and new.sum() == report.tokens
    served = begun.rollouts.length > begun.table.carried
    assert row['carry/prefilled'] == begun.table.carried[served].sum() <= held
    assert (before == begun.table.prompt_length[served]
            + begun.table.carried[served]).all()
    first = min(begun.wave[:len(table.group)], default=number)
    assert probes[-1].first_wave == first
    late += first < number
    rewards = table.reward.reshape(-1, 4)
    assert (row['carry/left'] > 0) == (len(rewards) > 0)
    if len(rewards):
      spread += rewards.std(1).mean() > 0
      # Means of a few float32 numbers of order 1.
      assert row['reward/mean'] == pytest.approx(rewards.mean(), abs=1e-6)
      assert row['reward/group_std'] == pytest.approx(
          rewards.std(1).mean(), abs=1e-6)
    assert report.tokens <= 8 * 7  # slots, and decode steps of a wave
    assert (report.tokens > 0) == (report.flops['sample'] > 0)
  assert spread and late


def _on_meshes(folder):
  for (data, tensor), steps in (
      ((4, 1), 4), ((2, 2), 14), ((1, 4), 24), ((4, 1), 60)):
    train.train(tiny.load(
        folder, mesh__data=data, mesh__tensor=tensor, steps=steps,
        model__heads=4, model__kv_heads=4, sampling__slots=2,
        **{**FIELDS, 'sampling__wave_steps': 3}))


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_shards(tmp_path):
  devices.run(_on_meshes, str(tmp_path), devices=4)
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  # The slots of 24 tokens a wave, 12 and 6: groups have up to 40.
  for steps, least in (slice(5, 15), 2), (slice(15, 25), 1), (slice(25, 61), 9):
    assert sum(row['carry/left'] for row in rows[steps]) >= least


def test_slots_that_end_the_cut_are_named(tmp_path):
  """With a slot for each response, a wave of 10 steps cuts none."""
  fields = {**FIELDS, 'sampling__wave_steps': 10}
  train.train(tiny.load(str(tmp_path), steps=2, **fields))
  with pytest.raises(ValueError, match=r'sampling\.slots: 8 -> 16'):
    train.train(tiny.load(str(tmp_path), sampling__slots=16, **fields))
  train.train(tiny.load(str(tmp_path), sampling__slots=4, **fields))


def test_the_memory_of_what_is_carried_is_said():
  parts = stage_runs.built(**FIELDS, off_policy='jackpot')
  begun = carry.empty(parts)
  count = len(begun.finished)
  each = sum(x.nbytes for x in jax.tree.leaves(begun.rows)) // count
  assert f'carried over: {count} rollouts of {each:,} bytes' in (
      describe.buffer(parts))


def test_without_learning_the_responses_are_those_of_waves_that_wait():
  """Up to the first near tie of a draw, of which a run has hardly one."""
  found = []
  for fields in ({}, {k: v for k, v in FIELDS.items() if 'sampl' in k}):
    watched = tiny.watch(stage_runs.built(
        **fields, optimizer__learning_rate=0.), tiny.by_length)
    state, fixed, _ = tiny.begin(watched.parts)
    for _ in range(9):
      state, _ = train.take_step(
          watched.parts, state, fixed, timing.Timer())
    found.append({
        (row[:n].tobytes(), p[:n].tobytes(), float(a))
        for batch in watched.batches for row, n, p, a in zip(
            batch.tokens, batch.prompt_length, [
                row[m:m + n] for row, m, n in zip(
                    batch.tokens, batch.prompt_length, batch.response_length)],
            batch.advantages)})
  waiting, carried = found
  assert len(carried) > 40 and len(carried - waiting) <= 1


def test_a_wave_that_is_long_enough_is_one_that_waits():
  plain = stages.make_stages(tiny.load())
  # 10 for each of two fills, between which a slot waits for 1; or one fill.
  for steps, slots, cut in (
      (21, 8, False), (20, 8, True), (10, 16, False), (9, 16, True)):
    made = stages.make_stages(tiny.load(
        sampling__carry_over=True, sampling__wave_steps=steps,
        sampling__slots=slots))
    assert (made.settings.carry is not None) == cut
    if not cut:
      assert made.settings == plain.settings and made.needs == plain.needs
      assert made.curriculum.max_requests == plain.curriculum.max_requests


def test_a_wave_of_turns_has_several_calls(tmp_path):
  """Two parts of three turns, each of two fills."""
  (tmp_path / 'dice.py').write_text(turns_run_test.DICE)
  for steps, cut in ((149, True), (150, False)):
    config = turns_run_test.loaded(
        f'{tmp_path}/dice.py', tmp_path, **{
            'sampling.carry_over': True, 'sampling.wave_steps': steps})
    made = stages.make_stages(config)
    assert (made.settings.carry is not None) == cut


@pytest.mark.parametrize('fields, said', [
    (dict(sampling__wave_steps=3), r'sampling\.wave_steps=3 has no effect'),
    (dict(sampling__carry_over=True, actor__lag=1),
     r'carry_over=True does not work with actor\.lag=1'),
    (dict(sampling__carry_over=True, sampling__temperature='0:1,5:2'),
     r'does not work with sampling\.temperature=0:1\.0,5'),
    (dict(sampling__carry_over=True, sampling__carry_groups=3),
     r'carry_groups=3 is less than the 4 groups'),
    (dict(sampling__carry_over=True, off_policy='jackpot', jackpot__z='exact'),
     r'but sampling\.carry_over=True trains on rows')])
def test_what_does_not_fit_is_said(fields, said):
  with pytest.raises(ValueError, match=said):
    tiny.load(**fields)


def test_a_loop_of_ones_own_has_no_next_step_to_carry_to():
  with pytest.raises(ValueError, match="Sampler has no option 'carry_over'"):
    jaxrl_llm.Sampler('tiny', CharTokenizer('01'), carry_over=True)


@pytest.mark.slow
@pytest.mark.processes
def test_on_two_processes_and_resumed(tmp_path):
  fields = {**FIELDS, 'steps': 7, 'mesh__data': 4, 'checkpoint__every': 4,
            'sampling__slots': 2}
  rows = processes_test.one_then_two(tmp_path, fields, 2)
  assert max(row['carry/age_max'] or 0 for row in rows[1:]) > 0


def test_trajectories_go_on_in_the_middle_of_a_turn(tmp_path, monkeypatch):
  """In a run of two halves too, whose second reads what was said from disk."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'dice.py').write_text(turns_run_test.DICE)
  fields = {'sampling.carry_over': True, 'sampling.wave_steps': 4,
            'checkpoint.every': 1, 'sampling.slots': 6}
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  for folder, steps in (whole, 8), (cut, 3), (cut, 5), (cut, 8):
    train.train(turns_run_test.loaded('dice.py', folder, steps=steps, **fields))
  records = turns_run_test.samples(whole)
  assert records == turns_run_test.samples(cut)
  rows, same = (
      metrics.read(folder / 'metrics.jsonl') for folder in (whole, cut))
  for row, other in zip(rows, same, strict=True):
    for name, value in resume_test.lasting(row).items():
      assert name == 'turns/waited' or other[name] == value
  assert max(row['carry/age_max'] or 0 for row in rows[1:]) > 1
  assert max(row['sampler/steps'] for row in rows[1:]) == 4  # of all turns
  several = 0
  for record in records:
    turns = record['turns']
    several += len(turns) > 1
    if record['verdict'] != 'timeout':
      assert record['reward'] == sum(turn['reward'] for turn in turns)
      assert all(turn['observation'] in ('+', '-') for turn in turns[:-1])
      for turn in turns:
        assert sum(turn['token_chars']) == len(turn['text'])
  assert several > 5


@pytest.mark.slow
def test_without_learning_trajectories_are_those_of_waves_that_wait(
    tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'dice.py').write_text(turns_run_test.DICE)
  found = []
  for carried in False, True:
    fields = {'sampling.carry_over': True, 'sampling.wave_steps': 5} if (
        carried) else {}
    train.train(turns_run_test.loaded(
        'dice.py', tmp_path / str(carried), steps=8,
        **{**fields, 'optimizer.learning_rate': 0.}))
    found.append({
        (record['group'], record['sample'], record['response'],
         record['reward']) for record in turns_run_test.samples(
             tmp_path / str(carried))})
  waiting, carried = found
  assert len(carried) > 30 and len(carried - waiting) <= 1
