"""Tests of rows that wait or come back: their log-probs and their facts."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.ops import pkpo
from jaxrl_llm.prepare import describe
from jaxrl_llm.types import LearnerBatch, rows_of, Table
from tests.helpers import learners, stage_runs, tables, tiny
from tests.helpers.tolerance import FUNCTION, policy_gap, rounding

BOUND = stage_runs.FIELDS['loss__clip_low']


class Update(NamedTuple):
  """An update as the learner saw it.

  Attributes:
    params: parameters before it.
    batch: its mini-batch.
    names: (group, sample) of each row; None for filler.
    round: number of its round.
    metrics: what it reported.
  """
  params: Any
  batch: LearnerBatch
  names: list[Any]
  round: int
  metrics: dict[str, np.ndarray]


class Wave(NamedTuple):
  """A step: its policy, its updates, and what it left.

  Attributes:
    policy_step: optimiser steps behind the policy that sampled.
    params: parameters of that policy.
    updates: in their order.
    table: every row after the last round.
    state: after the step.
    row: metrics.
  """
  policy_step: int
  params: Any
  updates: list[Update]
  table: Table
  state: state_lib.RunState
  row: dict[str, float]


def recorded(patch, count, **fields):
  """Takes steps and records their updates; returns parts, fixed and waves."""
  plain = stage_runs.judged(stage_runs.parts_of(**fields))
  choose, select, *_ = plain.stages
  now = {}  # the table, the rows of the mini-batch, the number of the round
  updates, after = [], []

  def picking(state, table, rows, key):
    now.update(table=table, round=key[1])
    return select.select(state, table, rows, key)

  def batch_of(tokens, rows, *args, **options):
    now['rows'] = rows
    return learner_batch(tokens, rows, *args, **options)

  def update(state, batch, *rest):
    params = jax.device_get(state['policy'].params)
    state, metrics = plain.programs.learner.update(state, batch, *rest)
    updates.append(Update(
        params, jax.device_get(batch), tables.names(now['table'], now['rows']),
        now['round'], jax.device_get(metrics)))
    return state, metrics

  def keeping(full, *rest):
    after.append(full.table)
    return keep(full, *rest)

  learner_batch, keep = rows_lib.learner_batch, rows_lib.keep
  patch.setattr(rows_lib, 'learner_batch', batch_of)
  patch.setattr(rows_lib, 'keep', keeping)
  parts = tiny.changed(
      plain, stages=plain.stages._replace(
          selection=select._replace(select=picking)),
      learner=plain.programs.learner._replace(update=update))
  state, fixed, _ = tiny.begin(parts)
  waves = []
  for _ in range(count):
    policy_step, params = jax.device_get(
        (state.learner.step, state.learner.params))
    updates.clear()
    (left,), (row,), state = stage_runs.waves(parts, state, fixed, 1)
    waves.append(Wave(
        int(policy_step), params, [*updates], after[-1], left, row))
  return parts, fixed, waves


def scores(parts, fixed, params, batch):
  """Returns the log-probs [B, T] of a batch's responses under parameters."""
  bare = batch.replace(old_logprobs=None, anchor_logprobs=None)
  return np.asarray(learners.score(
      parts.programs.learner,
      jax.device_put(params, describe.param_shardings(parts)),
      parts.shard_rows(bare), fixed.loss, None).logprobs)


@functools.partial(jax.jit, static_argnames='model')
def dense_logits(params, tokens, model):
  hidden, _ = transformer.forward(params, tokens, cfg=model)
  return transformer.logits(params, hidden, model)


def entropies(parts, params, batch):
  """Returns the mean entropy [B] of responses, from all logits in float64."""
  logits = np.float64(dense_logits(params, batch.tokens, parts.programs.model))
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  entropy = -(p * np.log(p)).sum(-1)
  return np.array([
      entropy[b, start - 1:start - 1 + count].mean() if count else 0
      for b, (start, count) in enumerate(
          zip(batch.prompt_length, batch.response_length))])


def clip_shares(ratio, batch, slack):
  """Returns the share [B] of clipped tokens, with bounds wider by `slack`."""
  sign = np.sign(batch.advantages)[:, None]
  clipped = (sign < 0) & (ratio < 1 - BOUND - slack) | (
      sign > 0) & (ratio > 1 + BOUND + slack)
  # A ratio near a bound may fall on either side of it.
  return (clipped & batch.mask).sum(1) / np.maximum(batch.mask.sum(1), 1)


def writers(waves):
  """Returns {name: policy_step of its wave}, {policy_step: parameters}."""
  written, params = {}, {}
  for wave in waves:
    params[wave.policy_step] = wave.params
    for name in tables.names(wave.table, np.arange(len(wave.table.group))):
      written.setdefault(name, wave.policy_step)
  return written, params


CASES = [
    dict(curriculum='uniform', selection='cbs'),
    dict(curriculum='dynamic', selection='all_rows'),
    dict(curriculum='dynamic', selection='newest', newest__rows=24),
    dict(curriculum='speed', selection='all_rows')]


@pytest.mark.parametrize('fields', CASES, ids=str)
def test_old_log_probs_are_of_the_policy_that_wrote_the_row(
    fields, monkeypatch):
  """However many updates and steps ago; the current policy has others."""
  parts, fixed, waves = recorded(monkeypatch, 14, **fields)
  written, policies = writers(waves)
  late = moved = 0
  for wave in waves:
    for number, update in enumerate(wave.updates):
      batch = update.batch
      origin = [written[x] if x else None for x in update.names]
      current = scores(parts, fixed, update.params, batch)
      ratio = np.exp(current - batch.old_logprobs)
      for step in {x for x in origin if x is not None}:
        rows = np.flatnonzero([x == step for x in origin])
        want = scores(parts, fixed, policies[step], batch)[rows]
        gap = policy_gap(parts.config, want)
        np.testing.assert_allclose(
            batch.old_logprobs[rows], want, rtol=0, atol=gap)
        apart = np.abs(current[rows] - want).max()
        if step == wave.policy_step and not number:
          assert apart < gap
        elif step < wave.policy_step:
          late += 1
          moved += apart > 100 * gap
      got, mask = update.metrics, batch.mask
      np.testing.assert_allclose(
          got['ratio'], ratio[mask].mean(), rtol=0, atol=gap * ratio.max())
      np.testing.assert_allclose(
          got['ratio_max'], ratio[mask].max(), rtol=0, atol=gap * ratio.max())
    if wave.row.get('batch/staleness', 0) > 0:
      assert abs(wave.row['update/ratio'] - 1) > 1e-4
  assert late > 1 and moved == late


def test_facts_are_those_of_the_latest_update(monkeypatch):
  """A row that waits has the entropy of the policy that wrote it."""
  parts, fixed, waves = recorded(
      monkeypatch, 8, curriculum='dynamic', selection='replay')
  written, policies = writers(waves)
  gap = policy_gap(parts.config, np.log([parts.programs.model.vocab_size]))
  facts, used, waited, clipped, changed = {}, {}, {}, 0, 0
  for wave in waves:
    for update in wave.updates:
      batch = update.batch
      ratio = np.exp(
          scores(parts, fixed, update.params, batch) - batch.old_logprobs)
      found = zip(
          entropies(parts, update.params, batch),
          clip_shares(ratio, batch, gap * ratio.max()),
          clip_shares(ratio, batch, -gap * ratio.max()))
      for b, (name, new) in enumerate(zip(update.names, found)):
        if name:
          facts[name] = new
          used.setdefault(name, []).append(update.round)
        if name in waited:
          origin = entropies(parts, policies[written[name]], batch)[b]
          assert waited[name] == pytest.approx(origin, abs=gap)
          # Updates change it by far more than rounding.
          changed += abs(new[0] - waited.pop(name)) > 100 * gap
    table = wave.table
    for row, name in enumerate(tables.names(table, range(len(table.group)))):
      if name[0] < 0:
        continue
      rounds = used.get(name, [])
      assert table.usage[row] == len(rounds) == len(set(rounds))
      assert table.round[row] == (rounds or [-1])[0]
      assert table.policy_step[row] == written[name]
      if name in facts:
        entropy, least, most = facts[name]
        assert table.entropy[row] == pytest.approx(entropy, abs=gap)
        share = table.clip_share[row]
        assert least - rounding(1) <= share <= most + rounding(1)
        clipped += share > 0
      elif table.valid[row]:
        waited.setdefault(name, table.entropy[row])
        assert table.clip_share[row] == 0
  assert max(map(len, used.values())) == 2  # replay.rounds
  assert clipped > 3 and changed > 3


def test_a_replayed_row_keeps_the_advantage_of_its_own_k(monkeypatch):
  """k is 2, 2, 1, 1, 3, 3 in the steps; each has one round."""
  _, _, waves = recorded(
      monkeypatch, 6, selection='cbs', advantage='pkpo',
      pkpo__k='0:2,2:1,4:3')
  groups, replayed, changed = {}, 0, 0
  for step, wave in enumerate(waves):
    table = wave.table
    for group in {*table.group[table.round == step].tolist()}:
      rows = rows_of(table, [group], 4)[0]
      if (rows >= 0).all():  # no verification failed
        groups[group] = step, table.reward[rows]
    for update in wave.updates:
      for name, got in zip(update.names, update.batch.advantages):
        if name is None or name[0] not in groups:
          continue
        made, rewards = groups[name[0]]
        then, now = (
            np.asarray(pkpo.advantage(rewards, k))[name[1]]
            for k in ((2, 2, 1, 1, 3, 3)[made], (2, 2, 1, 1, 3, 3)[step]))
        assert got == pytest.approx(then, abs=rounding(FUNCTION * 4))
        replayed += made < step
        changed += abs(then - now) > 1e-3
  assert replayed > 5 and changed > 1


@pytest.mark.parametrize('selection', ['all_rows', 'random'])
def test_dynamic_trains_on_no_row_twice(selection, monkeypatch):
  """Eight steps, with waiting groups and failed verifications."""
  own = {'random__rounds': 1} if selection == 'random' else {}
  parts, _, waves = recorded(
      monkeypatch, 8, curriculum='dynamic', selection=selection, **own)
  trained = [
      name for wave in waves for update in wave.updates
      for name in update.names if name]
  assert len(trained) == len(set(trained)) > 40
  for wave in waves:
    assert wave.table.usage.max() <= 1
    there = tables.names(wave.table, np.flatnonzero(wave.table.usage))
    assert set(there) <= set(trained)
  last = waves[-1].state.curriculum
  groups = {group for group, _ in trained}
  # First in, first out: what waits is younger than all that was trained on.
  waiting = last.waiting[last.waiting >= 0]
  assert not groups & set(waiting)
  assert all(group > max(groups) for group in waiting)
  # Every group in between was dropped: its valid rewards were equal.
  rewards = {}
  for wave in waves:
    for group, valid, reward in zip(
        wave.table.group, wave.table.valid, wave.table.reward):
      if group >= 0 and valid:
        rewards.setdefault(int(group), set()).add(float(reward))
  assert {g for g, values in rewards.items() if len(values) > 1} == (
      groups | set(waiting.tolist()))
