"""Tests of the estimators against plain counting over all subsets."""

import collections
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from jaxrl_llm.evaluation import estimators


def test_standard_errors():
  values = np.random.default_rng(0).random(17)
  mean, error = estimators.mean_and_error(values)
  assert mean == pytest.approx(values.mean())
  assert error == pytest.approx(stats.sem(values))
  assert estimators.mean_and_error(np.array([0.5])) == (0.5, 0.0)
  assert np.isnan(estimators.mean_and_error(np.array([]))).all()


def vote(answers, correct):
  """Returns the probability that a vote of all responses is right."""
  votes = collections.Counter(
      True if ok else answer for answer, ok in zip(answers, correct)
      if ok or answer)
  first = max(votes.values(), default=0)
  winners = [name for name, count in votes.items() if count == first]
  return (True in winners) / max(len(winners), 1)


def test_a_vote_is_the_mean_over_all_subsets():
  """Ties, silence, nothing right, and right answers of several spellings."""
  rng = np.random.default_rng(0)
  seen = collections.Counter()
  for _ in range(150):
    n = rng.integers(1, 8)
    # '' says nothing; r and R are right; few letters make ties frequent.
    answers = rng.choice(list(' rRabc'), n).tolist()
    answers = [a.strip() for a in answers]
    correct = [a in ('r', 'R') for a in answers]
    for k in range(1, n + 1):
      expected = np.mean([
          vote([answers[i] for i in chosen], [correct[i] for i in chosen])
          for chosen in itertools.combinations(range(n), k)])
      got = estimators.maj_at_k(answers, correct, k)
      assert got == pytest.approx(expected, abs=1e-12), (answers, k)
      seen[0 < got < 1] += 1
    assert estimators.maj_at_k(answers, correct, 1) == pytest.approx(
        np.mean(correct))
  assert seen[True] > 200


def test_votes_by_hand():
  """Two right of five, and k=3 of ten subsets.

  rr + one other: 3, right. r + two that agree (aa): 2, wrong. r + a + b: 2 x 2
  = 4, a third each. aab: 1, wrong.
  """
  got = estimators.maj_at_k(list('rraab'), [1, 1, 0, 0, 0], 3)
  assert got == pytest.approx((3 + 4 / 3) / 10)
  # A right one that says nothing still votes for what is right.
  assert estimators.maj_at_k(['', 'a', 'a'], [True, False, False], 1) == (
      pytest.approx(1 / 3))
  assert estimators.maj_at_k(['', ''], [False, False], 2) == 0


def test_votes_of_many_are_exact_and_quick():
  """200 voters: 1e60 subsets; with nobody else, a vote is pass@k."""
  correct = [True] * 30 + [False] * 170
  got = estimators.maj_at_k(['r'] * 30 + [''] * 170, correct, 20)
  assert got == pytest.approx(1 - math.comb(170, 20) / math.comb(200, 20))
  # Of two parties as large, each wins as often as the other.
  got = estimators.maj_at_k(
      ['r'] * 100 + ['a'] * 100, [1] * 100 + [0] * 100, 64)
  assert got == pytest.approx(0.5)


@pytest.mark.parametrize('k', [0, 4])
def test_impossible_votes_are_refused(k):
  with pytest.raises(ValueError, match=f'k={k} needs 1 <= k <= n, but n=3'):
    estimators.maj_at_k(['a'] * 3, [True] * 3, k)


def test_figures_are_means_over_subsets():
  rng = np.random.default_rng(1)
  score = rng.integers(0, 2, (6, 7)).astype(float)
  answers = [[str(int(x)) if x else str(rng.integers(2, 4)) for x in row]
             for row in score]
  got = estimators.estimate(score, (1, 2, 5, 7), answers=answers)
  for k in (1, 2, 5, 7):
    subsets = list(itertools.combinations(range(7), k))
    passed = [np.mean([row[list(s)].any() for s in subsets]) for row in score]
    voted = [
        np.mean([vote([said[i] for i in s], row[list(s)]) for s in subsets])
        for said, row in zip(answers, score)]
    for name, values in (('pass', passed), ('maj', voted)):
      assert got[f'{name}@{k}'] == pytest.approx(np.mean(values))
      assert got[f'{name}@{k}_error'] == pytest.approx(
          stats.sem(values), abs=1e-12)
  assert got['mean'] == pytest.approx(score.mean())
  assert 'greedy' not in got


def test_figures_by_hand():
  nan = np.nan
  score = np.array([
      [1, 0, 1, 0],  # 2 of 4
      [1, nan, nan, nan],  # 1 of 1: no pass@2
      [0.5, nan, 2, 0],  # 1 of 3: half a reward is not a pass, 2 is
      [nan] * 4])  # not known
  answers = [['r', 'a', 'r', ''], ['r', 'x', 'x', 'x'],
             ['a', 'x', 'r', 'a'], ['x'] * 4]
  got = estimators.estimate(
      score, (1, 2, 3, 4), greedy=np.array([1, 0.9, nan, 0]), answers=answers)
  expected = {
      'pass@1': [1 / 2, 1, 1 / 3], 'pass@2': [5 / 6, 2 / 3],
      'pass@3': [1, 1], 'pass@4': [1],
      'maj@1': [1 / 2, 1, 1 / 3],
      # rr right; 2 ra: half; 2 r-: right; a-: wrong. aa wrong; 2 ra: half.
      # Three: rar and rr- right, ra- twice half; ara wrong.
      'maj@2': [4 / 6, 1 / 3], 'maj@3': [3 / 4, 0], 'maj@4': [1],
      'greedy': [1, 0, 0], 'mean': [0.5, 1, 2.5 / 3]}
  assert list(got) == [
      name + end for name in expected for end in ('', '_error')]
  for name, values in expected.items():
    assert got[name] == pytest.approx(np.mean(values))
    error = stats.sem(values) if len(values) > 1 else 0
    assert got[f'{name}_error'] == pytest.approx(error)


def test_each_of_several_rewards_has_a_mean():
  score = np.array([[1.0, .5], [.25, np.nan]])
  found = estimators.estimate(score, [1], rewards={
      'a': np.array([[1.0, 0], [np.nan, 3]]),
      'b': np.array([[np.nan, np.nan], [2, 4]])})
  # Means of the problems: 1/2 and 3 of a, 3 of b.
  assert (found['rewards/a'], found['rewards/b']) == (1.75, 3)
  assert (found['rewards/a_error'], found['rewards/b_error']) == (1.25, 0)
  assert found['mean'] == (.75 + .25) / 2


def test_no_answer_at_all_is_no_vote():
  score = np.array([[1.0, 0.0]])
  for answers in (None, [['', '']]):
    got = estimators.estimate(score, (1,), answers=answers)
    assert list(got) == ['pass@1', 'pass@1_error', 'mean', 'mean_error']


def test_figures_of_nothing_are_nan_in_silence(recwarn):
  nothing = np.full((3, 2), np.nan)
  got = estimators.estimate(nothing, (1,), greedy=nothing[:, 0])
  assert len(got) == 6 and all(np.isnan(x) for x in got.values())
  assert not recwarn.list
