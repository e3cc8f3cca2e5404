"""Tests of the warnings about a run, with rows made up."""

import math
import pathlib
import re

import numpy as np
import pytest

from jaxrl_llm.config.table import table
from jaxrl_llm.monitoring import health


def healthy(steps=200, seed=0):
  """Returns rows of a run that learns: reward .2 to .6, with some noise."""
  noise = np.random.default_rng(seed)
  return [{
      'step': step,
      'reward/mean': .2 + .4 * step / steps + float(noise.normal(0, .03)),
      'reward/no_signal': float(noise.uniform(.3, .9)),
      'response/truncated': float(noise.uniform(0, .4)),
      'response/entropy': 1.5 - 1.4 * step / steps,
      'update/clip_low': float(noise.uniform(0, .2)),
      'update/clip_high': float(noise.uniform(0, .1)),
      'update/behaviour_gap': float(noise.uniform(0, .6)),
      'update/grad_norm': float(noise.lognormal(0, .7)), 'update/skipped': 0.0,
      'update/kl_anchor': .5 * step / steps,
      'seconds/step': 2.0, 'seconds/sample': 1.5, 'seconds/update': .5,
  } for step in range(1, steps + 1)]


def planted(first, last, **values):
  """Returns rows of a run that has other values from step first to last."""
  rows = healthy()
  for row in rows[first - 1:last]:
    row.update({name.replace('__', '/'): value
                for name, value in values.items()})
  return rows


SICK = {
    'no_signal': dict(reward__no_signal=1.0),
    'truncated': dict(response__truncated=.7),
    'entropy': dict(response__entropy=.001),
    'ratios': dict(update__clip_low=.3, update__clip_high=.3),
    'gradient': dict(update__grad_norm=40.0),
    'kl': dict(update__kl_anchor=3.0),
    'reward': dict(reward__mean=.1),
}


def test_a_healthy_run_has_no_warnings():
  for seed in range(5):
    assert health.warnings(healthy(seed=seed)) == []


@pytest.mark.parametrize('kind', SICK)
def test_a_sick_run_is_warned_of_once(kind):
  symptom, = health.warnings(planted(150, 200, **SICK[kind]))
  assert symptom.kind == kind and 150 < symptom.step <= 162
  # Too few rows are no reason for alarm.
  assert health.warnings(planted(150, 152, **SICK[kind])) == []
  # It names fields to try.
  named = re.findall(r'\b[a-z]+(?:[._][a-z_]+)+\b', symptom.text)
  fields = [name for name in named if name != 'samples.jsonl']
  assert fields and {*fields} <= {*table()}


def test_tokens_that_are_not_computed_are_not_clipped():
  """Of 60% clipped tokens among half of them, 30% are of all."""
  seen = lambda processed: health.warnings([
      {**row, 'update/tokens': 200.0, 'update/processed': processed}
      for row in planted(150, 200, **SICK['ratios'])])
  assert [symptom.kind for symptom in seen(200.0)] == ['ratios']
  assert not seen(100.0)


@pytest.mark.parametrize('values, kind, word', [
    (dict(update__behaviour_gap=1.5), 'ratios', 'off_policy'),
    (dict(update__skipped=1.0), 'gradient', 'not finite'),
    (dict(reward__mean=1.0, reward__no_signal=1.0, response__entropy=.001),
     'no_signal', '1 in the mean'),  # a solved task needs no entropy
    # A reward model's scores say of no task that it is solved.
    (dict(reward__mean=8.0, rewards__verifier=.3, response__entropy=.001),
     'entropy', 'hardly differ'),
])
def test_other_signs(values, kind, word):
  symptom, = health.warnings(planted(150, 200, **values))
  assert symptom.kind == kind and word in symptom.text


def test_a_destroyed_policy_is_told_from_problems_without_signal():
  """One step at 100 times a good learning rate, from a weak start."""
  rows = [{'step': 1, 'reward/mean': .02, 'response/entropy': .85,
           'reward/no_signal': .92, 'response/truncated': 0.0}]
  rows += [{'step': i, 'reward/mean': 0.0, 'response/entropy': 2.0,
            'reward/no_signal': 1.0, 'response/truncated': .53}
           for i in range(2, 25)]
  symptoms = health.warnings(rows)
  assert [(one.kind, one.step) for one in symptoms] == [
      ('random', 5), ('reward', 10)]
  assert all('optimizer.learning_rate' in one.text for one in symptoms)
  # Exploring is no symptom where rewards rise.
  for row in rows[1:]:
    row |= {'reward/mean': .04, 'reward/no_signal': .8,
            'response/truncated': .1}
  assert health.warnings(rows) == []
  assert set(SICK) | {'random'} == set(health.SYMPTOMS)


def test_a_fall_of_the_heldout_reward():
  rows = [{'step': i, 'reward/mean': 0.0, 'reward/no_signal': 1.0}
          for i in range(31)]
  rows[0] |= {'eval/mean': .014, 'eval/mean_error': .003}
  rows[8] |= {'eval/mean': .008, 'eval/mean_error': .002}
  rows[16] |= {'eval/mean': 0.0, 'eval/mean_error': 0.0}
  late, = health.warnings(rows[:16])
  assert late.kind == 'no_signal'  # nothing says yet that it was better
  kinds = [(one.kind, one.step) for one in health.warnings(rows)]
  assert kinds == [('no_signal', 9), ('reward', 16)]


def test_a_first_update_that_takes_all():
  rows = [{'step': i, 'reward/mean': 0.0, 'reward/no_signal': 1.0}
          for i in range(1, 14)]
  rows[0] |= {'reward/mean': .01, 'reward/no_signal': .94}
  symptom, = health.warnings(rows)
  assert symptom.kind == 'reward' and 'from 0.01 to 0.001:' in (
      symptom.text)
  # Rewards below 0 may rise, and half of one is more.
  for row in rows:
    row['reward/mean'] = -.2
  rows[0]['reward/mean'] = -.5
  rows[0] |= {'eval/mean': -.2, 'eval/mean_error': .001}
  rows[9] |= {'eval/mean': -.22, 'eval/mean_error': .001}
  symptom, = health.warnings(rows)
  assert symptom.kind == 'no_signal'
  for row in rows:
    row['reward/mean'] = 0.0
  # One right response may be luck.
  rows[0] |= {'reward/mean': .001, 'reward/no_signal': .99}
  symptom, = health.warnings(rows)
  assert symptom.kind == 'no_signal'


def test_no_signal_in_few_groups_is_said_too():
  rows = [{'step': i, 'reward/mean': .01, 'reward/no_signal': .98}
          for i in range(12)]
  symptom, = health.warnings(rows)
  assert symptom.kind == 'no_signal' and '98% of the groups' in symptom.text
  # A task that is nearly solved.
  for row in rows:
    row |= {'reward/mean': .95, 'reward/no_signal': 1.0}
  assert health.warnings(rows) == []
  more = [{**row, 'step': row['step'] + 12} for row in rows]
  symptom, = health.warnings(rows + more)
  assert (symptom.kind, symptom.step) == ('no_signal', 19)


def test_rare_successes_are_no_fall():
  """One right response in 1,000, at random steps, says nothing of a trend."""
  for seed in range(20):
    random = np.random.default_rng(seed)
    rows = [{'step': i, 'reward/mean': float(x)}
            for i, x in enumerate(random.binomial(512, .001, 300) / 512)]
    for row in rows[::5]:
      right = random.binomial(8, .006, 512) / 8
      row |= {'eval/mean': float(right.mean()),
              'eval/mean_error': float(right.std(ddof=1) / math.sqrt(512))}
    assert health.warnings(rows) == []


def test_a_warning_comes_again_only_after_long():
  def steps_of(*parts):
    rows = healthy(400)
    for first, last in parts:
      for row in rows[first - 1:last]:
        row['response/truncated'] = .9
    return [one.step for one in health.warnings(rows)]

  once, = steps_of((100, 140))
  assert steps_of((100, 140), (160, 200)) == [once]
  first, again = steps_of((100, 140), (300, 340))
  assert first == once and 300 < again < 330


def test_a_run_that_goes_on_says_the_same():
  rows = planted(50, 90, **SICK['truncated'], **SICK['no_signal'])
  whole = health.after(health.Health(), rows)
  assert len(whole.symptoms) == 2
  for cut in (10, 75, 100, 190):
    half = health.after(health.Health(), rows[:cut])
    assert health.after(half, rows[cut:]) == whole


def test_the_docs_have_every_warning():
  text = (pathlib.Path(__file__).parents[2] / 'docs/report.md').read_text()
  section = text.partition('## Warnings')[2].partition('\n## ')[0]
  named = re.findall(r'^\| `(\w+)` \|', section, re.MULTILINE)
  assert named == [*health.SYMPTOMS]


def test_what_is_not_known_is_no_sign():
  unknown = [{'step': i, 'eval/pass@1': .5} for i in range(200)]
  for value in (None, math.nan, math.inf, 'a text'):
    unknown += [{**dict.fromkeys(healthy(1)[0], value), 'step': 200 + i}
                for i in range(60)]
  assert health.warnings(unknown) == []


def test_a_gradient_after_none_is_no_sign():
  rows = planted(1, 150, update__grad_norm=0.0)
  assert 'gradient' not in {one.kind for one in health.warnings(rows)}


def test_no_value_ends_a_run():
  """Rows with zeros, and numbers of any size and sign, only have warnings."""
  draw = np.random.default_rng(0)
  values = [0.0, -0.0, 1.0, -1.0, 1e-310, 1e300, -1e300, 0.5, math.nan]
  names = [name for name in healthy(1)[0] if name != 'step'] + [
      'eval/mean', 'eval/mean_error']
  for _ in range(20):
    chance = draw.dirichlet(np.full(len(values), .3))
    rows = [{'step': i + 1, **{
        name: float(draw.choice(values, p=chance)) for name in names}}
            for i in range(80)]
    found = health.warnings(rows)
    assert len(found) < 80 and all(one.kind in health.SYMPTOMS for one in found)


def test_trends():
  rows = healthy()
  remarks = health.trends(
      health.after(health.Health(), rows), {'pass@1': .25})
  begun, now = (np.mean([row['reward/mean'] for row in part])
                for part in (rows[:20], rows[-20:]))
  assert remarks == {
      'reward/mean': f'mean {now:.3f}, from {begun:.3f}',
      'eval/pass@1': 'from 0.250', 'seconds/step': 'sample 75%'}
  rows[0] |= {'seconds/step': 90.0, 'seconds/update': 88.0}  # it compiled
  early = health.after(health.Health(), rows[:19])
  assert health.trends(early, None) == {'seconds/step': 'sample 75%'}
  assert health.trends(health.Health(), None) == {}
