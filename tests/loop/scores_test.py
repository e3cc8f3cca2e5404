"""Tests of which rows and players are scored, and where scores are found."""

import types

import numpy as np
import pytest

from jaxrl_llm.loop import rows, scores
from jaxrl_llm.types import RolloutTokens, Table

LEARNERS = {name: types.SimpleNamespace(params=name)
            for name in ('policy', 'actor')}


@pytest.mark.parametrize('fields, names', [
    ([], ['policy']), (['actor_logprobs'], ['policy', 'actor']),
    (['z'], ['policy', 'actor'])])
def test_the_actor_scores_rows_only_where_it_is_asked_for(fields, names):
  params = {name: name for name in names}
  assert scores.scoring({'old_logprobs', *fields}, LEARNERS, {}) == {
      'old_logprobs': params}
  assert scores.scoring(
      {'anchor_logprobs', 'old_logprobs', *fields}, LEARNERS,
      {'anchor_logprobs': 'start'}) == {
          'old_logprobs': params, 'anchor_logprobs': {'policy': 'start'}}
  alone = {'policy': LEARNERS['policy']}
  assert scores.scoring({'old_logprobs', *fields}, alone, {}) == {
      'old_logprobs': {'policy': 'policy'}}


def tokens_of(*values):
  """Returns rows whose old log-probs are these numbers."""
  return RolloutTokens(old_logprobs=np.array(values, np.float32)[:, None])


@pytest.mark.parametrize('lag', [False, True])
def test_scores_of_a_wave_are_found(lag):
  """At the end of the table, or at the front of the last wave in flight."""
  wave = types.SimpleNamespace(carried=None, rows=rows.Buffer(
      Table(group=np.arange(2)), tokens_of(0, 0)))
  wave._replace = lambda rows: rows
  flight = [types.SimpleNamespace(rows=rows.Buffer(None, tokens))
            for tokens in (tokens_of(5, 6, 0), tokens_of(7, 8, 0))]
  found = scores.of_wave(wave, flight if lag else (), tokens_of(1, 2, 3, 4))
  assert found.tokens.old_logprobs[:, 0].tolist() == ([7, 8] if lag else [3, 4])
