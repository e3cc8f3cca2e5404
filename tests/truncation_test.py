"""Tests of a step whose sampler truncates, against a slow twin."""

import numpy as np
import pytest

from jaxrl_llm.prepare import build, programs, stages
from jaxrl_llm.sampling.stops import Stops
from tests.helpers import tiny
from tests.helpers.tolerance import policy_gap
from tests.reference import sampler as twin
from tests.take_step_test import step


@pytest.mark.parametrize('fields, tempered', [
    ({}, False), (dict(sampling__temperature=.7), False),
    (dict(sampling__top_k=5), True), (dict(sampling__top_p=.9), True),
    (dict(sampling__min_p=.1), True)])
def test_tempered_logprobs_are_recorded_where_something_truncates(
    fields, tempered):
  mesh = build.sharding.make_mesh(1, 1, 1)
  config = tiny.load(**fields)
  made = programs.make_sampler(
      config, mesh, None, Stops(()), stages.make_stages(config).curriculum)
  assert made.sampler.tempered is tempered


def test_without_truncation_there_is_one_array(parts):
  _, rollouts, batch, _ = step(parts)
  assert rollouts.tempered_logprobs is None
  kept = batch.response_length > 0
  np.testing.assert_array_equal(
      batch.behaviour_logprobs[kept], rollouts.logprobs[kept])


def test_importance_weights_of_a_truncated_sampler():
  """At the weights that sampled: 1, or the probability that top-p kept."""
  filters = dict(temperature=.7, top_p=.5)
  fields = dict(
      sampling__temperature=.7, sampling__top_p=.5, loss__importance='tis')
  parts = build.parts(tiny.load(**fields))
  params = tiny.begin(parts)[0].learner.params
  rows = {}
  for behaviour in ('tempered', 'sampled'):
    config = tiny.load(**fields, loss__behaviour=behaviour)
    rows[behaviour], rollouts, batch, _ = step(
        tiny.changed(parts, config=config))
  gap = float(policy_gap(parts.config, rollouts.tempered_logprobs))
  assert gap < 1e-4

  masses = []
  for row, prompt, length in zip(
      batch.tokens, batch.prompt_length, batch.response_length):
    for logits in twin.teacher_forced(
        params, row[:prompt], row[prompt:prompt + length], len(row),
        parts.programs.model):
      tempered, probs = twin.filtered(logits, **filters)
      masses.append(tempered[probs > 0].sum())
  assert len(masses) == rollouts.length.sum() == batch.mask.sum()
  assert .5 <= min(masses) and max(masses) < .9

  tempered, sampled = rows['tempered'], rows['sampled']
  assert tempered['update/behaviour_gap_max'] < gap
  assert tempered['update/importance'] == pytest.approx(1, abs=gap)
  # No cap binds: a mass is at most 1. Trainer, sampler and twin differ.
  assert sampled['update/importance'] == pytest.approx(
      np.mean(masses), abs=2 * gap)
  assert sampled['update/behaviour_gap'] == pytest.approx(
      -np.mean(np.log(masses)), abs=2 * gap)
