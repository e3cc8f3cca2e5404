"""Tests of the claims: statistics, frozen settings, reports from their rows."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
from scipy import stats

from benchmarks.claims import __main__ as all_claims
from benchmarks.claims import (
  jackpot_rates,
  pkpo,
  pkpo_arc,
  readme,
  runs,
  speed,
  speed_real,
  speed_rloo,
  tables,
)
from jaxrl_llm import config as config_lib
from jaxrl_llm.prepare import stages
from tests.helpers.devices import ROOT

CLAIMS = {claim.name: claim for claim in all_claims.claims()}
MEASURED = {name: rows for name, claim in CLAIMS.items()
            if (rows := runs.measured(claim))}


def rows_of(arm, values, first=10):
  return [{'arm': arm, 'seed': first + i, 'x': value}
          for i, value in enumerate(values)]


def x(result):
  return result['x']


def test_students_interval_is_scipys():
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, 7))
  arms = {'a': rows_of('a', a), 'b': rows_of('b', b)}
  test = stats.ttest_rel(a, b)
  want = test.confidence_interval(.95)
  found = tables.student([p - q for p, q in tables.pairs(arms, 'a', 'b', x)])
  np.testing.assert_allclose(found, (
      (a - b).mean(), want.low, want.high, test.pvalue), rtol=1e-9)
  # The logarithm's, for ratios.
  p, q = np.exp(a), np.exp(b)
  low, high = np.exp(want)
  text = tables.ratio((p / q).tolist())
  assert text.startswith(
      f'{stats.gmean(p / q):.2f} [{low:.2f}, {high:.2f}]')


def test_the_bootstrap_is_scipys():
  values = np.random.default_rng(1).exponential(size=80)
  found = tables.bootstrap(values)
  want = stats.bootstrap(
      (values,), np.mean, n_resamples=tables.DRAWS, method='percentile',
      rng=np.random.default_rng(2)).confidence_interval
  # Quantiles of 10,000 draws: their error is about 2% of the deviation.
  near = .1 * values.std() / 80 ** .5
  assert found.mean == pytest.approx(values.mean())
  np.testing.assert_allclose(found[1:3], want, atol=near)
  assert found.p == 0
  # The means are about normal, with this mean and deviation.
  z = (values - 1).mean() / values.std() * 80 ** .5
  assert tables.bootstrap(values - 1).p == pytest.approx(
      2 * stats.norm.sf(abs(z)), abs=.05)


def test_holms_rule():
  # In order: 4 x .01, 3 x .02, 2 x .03, 1 x .04; none is below the one before.
  assert tables.holm([.03, .01, .04, .02]) == pytest.approx(
      [.06, .04, .06, .06])
  assert tables.holm([.5, .4]) == pytest.approx([.8, .8])
  assert tables.holm([.9, .001, .7]) == pytest.approx([1, .003, 1])
  assert tables.holm([]) == []


def test_a_text_says_which_differences_are_lost():
  """p-values of .004, .03 and .4: Holm makes them .012, .06 and .4."""
  interval = lambda p, low: tables.Interval(low + .1, low, low + .2, p)
  text = (f'a ({tables.told(interval(.004, .1), base=.5)}); '
          f'b ({tables.told(interval(.03, .02), base=.5)}); '
          f'c ({tables.told(interval(.4, -.05), base=.5)}); {{x}}.')
  assert tables.judged(text) == (
      'a (+0.200 [+0.100, +0.300]); b (+0.120 [+0.020, +0.220]); '
      'c (+0.050 [-0.050, +0.150], not distinguishable); {x}.')
  assert tables.judged(text, together=True) == (
      'a (+0.200 [+0.100, +0.300]); b (+0.120 [+0.020, +0.220], not '
      'distinguishable after Holm: p = 0.060); c (+0.050 [-0.050, +0.150], '
      'not distinguishable: -10% to +30%); {x}.')
  assert tables.judged(tables.told(
      interval(.4, -.2), base=100), together=True).endswith('-0.2% to +0.0%')


@pytest.mark.parametrize('values, words', [
    ((.1, .2, .3), True), ((.1, .11, .12), False), ((-.3, -.29, -.31), False),
    ((0.0, 0.0, 0.0), True)])
def test_an_interval_with_0_is_said(values, words):
  arms = {'a': rows_of('a', values), 'b': rows_of('b', [0.0] * 3)}
  said = tables.judged(tables.difference(arms, 'a', 'b', x))
  assert said.endswith('], not distinguishable') == words, said


def test_both_intervals_must_leave_out_0():
  """Over seeds the difference is certain, over problems it is not."""
  each = np.array([1.0, -1.0, .3])
  arms = {'a': rows_of('a', [.1, .1001]), 'b': rows_of('b', [0.0, 0.0])}
  by = lambda result: each * (result['arm'] == 'a')
  said = lambda **more: tables.judged(
      tables.difference(arms, 'a', 'b', x, **more))
  assert 'not' not in said()
  assert said(problems=by).endswith('], not distinguishable')


def test_arms_are_paired_by_the_seeds_that_both_have():
  arms = {'a': rows_of('a', [1, 2, 3], 10), 'b': rows_of('b', [7, 8, 9], 11)}
  assert tables.pairs(arms, 'a', 'b', x) == [(2, 7), (3, 8)]
  assert tables.difference(arms, 'a', 'c', x) == 'not run'
  assert tables.difference(
      {**arms, 'b': rows_of('b', [7], 10)}, 'a', 'b', x) == 'not run'


def test_a_base_that_misses_the_target_gives_a_lower_bound():
  found = {'pass@1': [0.0, .1, .2, .3, .4], 'samples': [0, 10, 20, 30, 40]}
  # Means of three evaluations: 0, .05, .1, .2, .3; .15 is halfway to 30.
  reaches = {**found, 'arm': 'a', 'seed': 10}
  assert speed.to_target('samples')(reaches) == pytest.approx(25)
  misses = {**reaches, 'pass@1': [0.0] * 5}
  assert speed.to_target('samples')(misses) is None
  assert speed.to_target('samples', least=True)(misses) == 40
  both = lambda row: [row, {**row, 'seed': 11}]
  arms = {'a': both(reaches), 'b': both(misses)}
  said = lambda *arm: tables.judged(speed.ratio_to_target(
      arms, *arm, 'samples'))
  assert said('a', 'b') == 'at least 1.60 [1.60, 1.60]'  # 40 / 25
  assert said('b', 'a') == 'missed by 2 of 2'
  assert said('a', 'a').startswith('1.00')


def test_ratios_by_the_rise_of_the_target():
  found = {'pass@1': [0.0, .1, .2, .3, .4]}  # means of 3: 0, .05, .1, .2, .3
  run = lambda arm, seed, cost: {**found, 'arm': arm, 'seed': seed, **{
      name: [i * cost for i in range(5)] for name in speed.SPENT.values()}}
  early = run('rloo_drop', 10, 1)
  assert speed.to_target('samples', rise=.05)(early) == pytest.approx(1)
  assert speed.to_target('samples', rise=.25)(early) == pytest.approx(3.5)
  assert speed.to_target('samples', rise=.35)(early) is None
  lower = {**run('rloo', 10, 3), 'pass@1': [0.0, .1, .2, .2, .2]}
  arms = {arm: [row, {**row, 'seed': 11}] for arm, row in (
      ('speed_rloo_4', run('speed_rloo_4', 10, 2)), ('rloo_drop', early),
      ('rloo', lower))}
  rows = [line.strip('| ').split(' | ')
          for line in speed_rloo.curve_of(arms).splitlines()]
  assert [row[0] for row in rows[2:]] == [f'{x:.2f}' for x in speed_rloo.CURVE]
  ratios = dict(zip(rows[0], rows[-1]))
  # .17 is reached after 2.7 evaluations, and by the lower one after 3.1, since
  # its means are 0, .05, .1, .167 and .2.
  assert ratios[f'GFLOP, of {speed.LABELS["rloo_drop"]}'].startswith('0.50')
  assert ratios['seconds, of RLOO'].startswith('1.72')  # 3.1 x 3 / 2.7 x 2
  assert ratios['missed by RLOO'] == '0'
  arms['rloo'] = [{**row, 'pass@1': [0.0] * 5} for row in arms['rloo']]
  last = speed_rloo.curve_of(arms).splitlines()[-1].strip('| ').split(' | ')
  assert last[-1] == '2' and last[4].startswith('at least 2.22')  # 12 / 5.4


def test_sentences_of_speed_have_the_highest_rise_that_it_reaches():
  def rows(arm, *curves):
    return [{'arm': arm, 'seed': seed, 'pass@1': curve, 'phases': {
        'sample': [1.0], 'update': [3.0]}, **{
            name: [0, 1, 2, 3, 4] for name in speed.SPENT.values()}}
            for seed, curve in enumerate(curves)]

  reaches, misses = [0.0, .1, .2, .3, .4], [0.0, .1, .15, .1, .1]
  said = speed_rloo.summary([
      *rows('speed_rloo_4', reaches, misses),
      *rows('rloo_drop', reaches, reaches), *rows('rloo', misses, [0.0] * 5)])
  # Means of three of `misses`: 0, .05, .083, .117, .117.
  assert 'missed by 2 of 2 runs of RLOO, 0 of 2 of RLOO that drops' in said
  assert '1 of 2 of SPEED-RLOO. To a rise of 0.1,' in said
  assert 'to a rise of 0.12' not in said and '+0.08: ' in said
  assert '+0.10' not in said and 'takes 25% of' in said


def test_an_interval_is_also_a_share_of_what_is_compared_with():
  arms = {'a': rows_of('a', [.55, .56]), 'b': rows_of('b', [.5, .5])}
  # Shares .1 and .12; t of one degree of freedom is 12.706, times .01.
  assert tables.judged(
      tables.difference(arms, 'a', 'b', x), together=True).endswith(
          'not distinguishable: -2% to +24%')


def test_a_cell_of_a_table_may_have_a_bar():
  assert tables.markdown(['|x|'], [['a']]).splitlines()[0] == r'| \|x\| |'


def test_modelled_seconds_have_the_share_of_generation():
  phases = {'update': [0, 0, 2.0], 'score': [0, 0, .5]}  # seconds of a token
  # Means of the evaluations are 0, .225, .3: .15 is reached at 2/3 of the way.
  run = lambda arm, generated, trained: {
      'arm': arm, 'seed': 10, 'phases': phases, 'pass@1': [0.0, .45, .45],
      'generated': [0, 1.5 * generated, 2 * generated],
      'trained': [0, 1.5 * trained, 2 * trained]}
  rloo, speeded = run('rloo', 100, 50), run('speed_rloo_4', 60, 20)
  found = speed.modelled([rloo, speeded], 2 / 3, {'rloo': [rloo]})
  # 100 and 50 tokens: updates take 100 s, generation 200 s, 2 s a token.
  assert found(rloo) == pytest.approx(300)
  # 60 tokens are 120 s; 20 are trained on and scored at 2.5 s.
  assert found(speeded) == pytest.approx(170)


def test_figures_at_equal_samples():
  """Of the arm with fewer samples, at the same seed; means of 3 evaluations."""
  arms = {'a': [{'seed': 1, 'samples': [0, 10, 20], 'pass@1': [0, .3, .6]}],
          'b': [{'seed': 1, 'samples': [0, 15], 'pass@1': [0, .9]}]}
  at = tables.at_equal(arms, 'samples')
  assert at(arms['b'][0]) == pytest.approx(.45)
  # Halfway from the mean of (0, .3) to that of (0, .3, .6).
  assert at(arms['a'][0]) == pytest.approx((.15 + .3) / 2)


def test_what_a_mean_reward_takes():
  """Steps of an eighth of the window; from step 9 on, rewards are 1."""
  row = lambda arm, cost: {
      'arm': arm, 'seed': 13, 'reward': [0.0] * 8 + [1.0] * 4,
      'samples': [speed_real.WINDOW / 8 * (i + 1) for i in range(12)],
      'gflops': [cost * (i + 1) for i in range(12)]}
  ours, theirs = row('speed', 1), row('rloo', 3)
  means, there = speed_real.smooth(ours, 'gflops')
  np.testing.assert_allclose(means, [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8])
  np.testing.assert_allclose(there, [4, 5, 6, 7, 8])  # middles of the windows
  at = lambda target, **more: speed_real.to_target('gflops', target, **more)
  assert at(.2)(ours) == 6 and at(.2)(theirs) == 18
  assert at(.6)(ours) is None and at(.6, least=True)(theirs) == 24
  # A reward of the first step alone is no mean of a window.
  early = {**ours, 'reward': [1.0] + [0.0] * 11}
  assert at(.2)(early) is None
  # Steps of twice the samples, of the same rewards by samples: all is equal.
  wide = {**ours, **{name: ours[name][1::2] for name in (
      'reward', 'samples', 'gflops')}}
  np.testing.assert_allclose(
      speed_real.smooth(wide, 'gflops'), ([0, 2 / 8, 4 / 8], [4, 6, 8]))
  # Up to 12 GFLOP: four of twelve steps, and none of four.
  figure = speed_real.mean_until_equal(
      {'speed': [ours], 'rloo': [theirs]}, 'gflops')
  assert figure(ours) == pytest.approx(1 / 3) and figure(theirs) == 0
  half = {**ours, 'gflops': [2.5 * (i + 1) for i in range(12)]}
  figure = speed_real.mean_until_equal(
      {'speed': [half], 'rloo': [{**ours, 'gflops': [21.25]}]}, 'gflops')
  assert figure(half) == pytest.approx(1.25 / 21.25)  # half of step 9


def test_an_arm_has_one_best_rate():
  ends = {10: (.1, .2, .3, .89), 11: (.1, .4, .2, .1), 12: (.1, .2, .6, .1)}
  rows = [{'task': '128', 'arm': 'no_clip_tis', 'seed': seed, 'z_std': [],
           'times': f'{factor:.3g}', 'pass@1': [.25, value]}
          for seed, values in ends.items() for factor, value in zip(
              jackpot_rates.TIMES['128'], values)]
  rows.append({**rows[0], 'seed': 13})  # it lacks the other rates
  found = jackpot_rates.by_rate(rows, '128')['no_clip_tis']
  # Best for the two other seeds, in the mean: the third rate with .4, the last
  # one with .495 twice. The seed itself has no say.
  assert [row['best'] for row in found] == [.3, .1, .1]
  # Trapezoids over equal steps of the logarithm: (.05 + .2 + .3 + .445) / 3.
  assert found[0]['area'] == pytest.approx(.995 / 3)


def test_gains_may_leave_out_rates_that_destroy_both_arms():
  row = lambda arm, i, end, z_std: {
      'task': '128', 'arm': arm, 'seed': 10, 'z_std': z_std,
      'times': f'{jackpot_rates.TIMES["128"][i]:.3g}', 'pass@1': [.25, end]}
  ends = {'jackpot': (.3, .5, .2, .1), 'no_clip_tis': (.2, .25, .4, .0)}
  rows = [row(arm, i, end, [i / 10] if arm == 'jackpot' else [])
          for arm, values in ends.items() for i, end in enumerate(values)]
  (_, (every,)), = jackpot_rates.gains(rows).items()
  np.testing.assert_allclose(every['gain'], [.1, .25, -.2, .1], atol=1e-12)
  (name, (only,)), = jackpot_rates.gains(rows, learning=True).items()
  assert name.startswith('Jackpot') and '128' in name
  # At the last rate both end below the start of .25.
  np.testing.assert_allclose(only['gain'], [.1, .25, -.2], atol=1e-12)
  assert only['z_std'] == [0, .1, .2]


def test_curves_count_what_was_spent():
  row = {'response/count': 8, 'response/length': 2.0, 'batch/rounds': 1,
         'speed/flops': 2e9, 'seconds/step': 1.0, 'update/tokens': 12}
  rows = [{'eval/pass@1': .1, 'eval/pass@1_error': .0}, *(
      dict(row, **({'seconds/step': 50.0} if i == 0 else {}))
      for i in range(6))]
  rows[6].update({'eval/pass@1': .5, 'eval/pass@1_error': .25})
  assert tables.curves_of(rows) == {
      'samples': [0, 48], 'updates': [0, 6], 'gflops': [0, 12],
      'elapsed': [0, 6], 'generated': [0, 96], 'trained': [0, 72],
      'pass@1': [.1, .5], 'error': .25}  # the step that compiles counts as 1 s


def claim_of(**changes):
  made = CLAIMS['cbs']._replace(
      name='made', config='configs/countdown.py', keys=('arm',), arms={
          'base': runs.Arm({'loss.entropy_bonus': 0.0}, rate='base'),
          'other': runs.Arm({'samples_per_prompt': 4}, rate='base'),
          'fixed': runs.Arm({runs.RATE: 0.0})}, seeds=(10, 11), figure=x)
  return made._replace(**changes)


@pytest.fixture
def results(tmp_path, monkeypatch):
  """A folder in place of results/claims."""
  monkeypatch.setattr(runs, 'RESULTS', tmp_path / 'results')
  return runs.RESULTS


def test_settings_are_chosen_on_their_own_seeds_and_frozen(results):
  claim = claim_of()
  tuning = runs.tuning_runs(claim)
  assert {run.arm for run in tuning} == {'base'} and len(tuning) == 6
  assert {run.seed for run in tuning} == set(runs.TUNING_SEEDS)
  with pytest.raises(ValueError, match='no frozen settings .* --settings'):
    runs.frozen(claim)
  # A factor of 3 is best on average, 1 on seed 0.
  tried = [(run, {'x': {1 / 3: 0, 1: .5, 3: 1}[run.factor] - (
      .6 if (run.factor, run.seed) == (3, 0) else 0)}) for run in tuning]
  runs.freeze(claim, tried)
  assert runs.frozen(claim) == {'base': 3}
  rate = config_lib.load(claim.config).optimizer.learning_rate
  given = lambda arm: runs.fields_of(
      claim, runs.Run(arm, 10), runs.frozen(claim))
  assert given('base') == {
      'seed': 10, 'loss.entropy_bonus': 0.0, runs.RATE: 3 * rate}
  assert given('other')[runs.RATE] == 3 * rate  # inherited
  assert given('fixed')[runs.RATE] == 0
  changed = claim._replace(arms={
      **claim.arms, 'other': runs.Arm({'samples_per_prompt': 2}, rate='base')})
  with pytest.raises(ValueError, match='arm other is not as in .* frozen'):
    runs.frozen(changed)
  with pytest.raises(ValueError, match='arm base is not as in'):
    runs.frozen(claim._replace(seeds=(10, 12)))
  fewer = {arm: claim.arms[arm] for arm in ('base', 'other')}
  with pytest.raises(ValueError, match='arm fixed is not as in'):
    runs.frozen(claim._replace(arms=fewer))
  with pytest.raises(ValueError, match='settings are chosen once'):
    runs.freeze(claim, tried)


@pytest.mark.parametrize('values, tried, best', [
    ((0, 1, 0), (), 1), ((2, 1, 0), (1 / 9, 1 / 27), 1 / 9),
    ((0, 1, 2), (9, 27), 9)])
def test_two_more_rates_are_tried_beyond_an_end_that_is_best(
    values, tried, best):
  claim = claim_of()
  by = {**dict(zip(runs.RATES, values)), 1 / 9: 3, 1 / 27: 2, 9: 4, 27: 4}
  found = lambda made: [(run, {'x': by[run.factor]}) for run in made]
  first = found(runs.tuning_runs(claim))
  more = runs.further_runs(claim, first)
  assert [(run.seed, run.factor) for run in more] == [
      (seed, factor) for factor in tried for seed in runs.TUNING_SEEDS]
  # Of equal factors the first.
  assert runs.choose(claim, first + found(more)) == {'base': best}


def test_a_run_writes_a_row_with_its_names_and_rate(tmp_path, results):
  seen = []

  def measure(config, name, folder, fields):
    seen.append((config, name, fields))
    return {'x': fields[runs.RATE]}

  claim, where = claim_of(measure=measure), tmp_path / 'runs'
  where.mkdir()
  tuning = runs.tuning_runs(claim)
  for run in tuning:
    runs.do(claim, run, where, 'here')
  more = runs.further_runs(claim, runs.results_of(tuning, where))
  for run in more:
    runs.do(claim, run, where, 'here')
  runs.freeze(claim, runs.results_of(tuning + more, where))
  runs.do(claim, runs.counted_runs(claim)[0], where, 'here')
  rows = [json.loads((where / f'{name}.json').read_text())
          for _, name, _ in seen]
  assert [row.get('factor') for row in rows] == (
      [1 / 3, 1 / 3, 1, 1, 3, 3, 9, 9, 27, 27, None])
  assert rows[-1]['seed'] == 10 and rows[-1]['arm'] == 'base'
  assert rows[-1]['rate'] == rows[-1]['x'] == max(row['x'] for row in rows)
  text = runs._tuned(claim, rows)
  assert 'chosen on seeds 0 and 1' in text
  assert 'what was tried: base (highest, with two more).' in text
  assert 'made after' not in text
  later = [{**row, 'date': '2999-01-01'} for row in rows[6:10]]  # two rates
  assert '4 of these runs were made after those that count.' in runs._tuned(
      claim, rows[:6] + later + rows[10:])
  *others, best, inherited = text.strip().splitlines()[-1].strip('| ').split(
      ' | ')
  assert others[0] == 'base' and '*' not in ''.join(others)
  assert best == f'**{rows[-1]["x"]:.3f} ± 0.000**' and inherited == 'other'
  # Rows that are committed are not computed again.
  runs.write(claim, rows[:-1])
  assert {path.name for path in results.iterdir()} == {
      'made.jsonl', 'made.settings.json'}
  runs.restore(claim, tmp_path / 'other')
  assert runs.results_of(tuning + more, tmp_path / 'other') == runs.results_of(
      tuning + more, where)


def test_a_few_seeds_take_turns_and_an_arm_may_have_more_for_its_rate():
  """Seeds of runs that are side by side differ: each has a warm start."""
  claim = claim_of(arms={
      'base': runs.Arm(rate='base', tuning=range(3)),
      'other': runs.Arm(rate='other', seeds=(11, 12))}, seeds=(10, 11, 12))
  named = lambda made: ' '.join(f'{run.arm[0]}{run.seed}' for run in made)
  assert named(runs.counted_runs(claim)) == 'b10 b11 o11 b12 o12'
  tuning = runs.tuning_runs(claim)
  assert named(tuning) == ' '.join(['b0 b1'] * 3 + ['o0 o1'] * 3 + ['b2'] * 3)
  assert [run.factor for run in tuning[:4]] == [1 / 3, 1 / 3, 1, 1]
  tried = [(run, {'x': run.factor == 1}) for run in tuning]
  assert runs._seeds(claim, tried) == '0 and 1, or 0 to 2'


def test_no_run_begins_after_one_failed(tmp_path):
  made = [runs.Run('a', seed) for seed in range(64)]
  with pytest.raises(RuntimeError, match='a,[0-9]+ failed; see its output'):
    runs.train_all(made, tmp_path, 'no_such_module')
  assert len([*tmp_path.glob('*.log')]) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize('name', CLAIMS)
def test_seeds_that_count_are_none_that_settings_are_chosen_on(name):
  claim = CLAIMS[name]
  assert all({*claim.seeds_of(arm)} <= {*claim.seeds} for arm in claim.arms)
  assert min(claim.seeds) >= runs.FIRST > max(runs.TUNING_SEEDS)
  for arm, made in claim.arms.items():
    assert not made.rate or claim.arms[made.rate].rate == made.rate, arm
    assert max(made.tuning) < runs.FIRST
    assert claim.row_of(arm, 10).keys() == {*claim.keys, 'seed'}
  assert {(run.arm, run.seed) for run in runs.counted_runs(claim)} == {
      (arm, seed) for arm in claim.arms for seed in claim.seeds_of(arm)}
  names = [run.name for run in
           runs.tuning_runs(claim) + runs.counted_runs(claim)]
  assert len(names) == len({*names})


@pytest.mark.parametrize('name', [
    x for x in CLAIMS if x not in ('real', 'carry_real', 'speed_real')])
def test_every_arm_is_a_valid_config(name, monkeypatch):
  """Leaves out claims whose model comes from the hub."""
  monkeypatch.chdir(ROOT)  # files of tasks are relative to it
  claim = CLAIMS[name]
  for arm, made in claim.arms.items():
    stages.validate(config_lib.load(
        str(ROOT / claim.config_of(arm)), {'seed': 10, **made.fields}))


@pytest.mark.parametrize('name', [
    name for name, claim in CLAIMS.items()
    if runs.settings_path(claim).exists()])
def test_arms_are_as_they_were_frozen(name):
  assert runs.frozen(CLAIMS[name]).keys() <= CLAIMS[name].arms.keys()


PAGES = {path.name: path.read_text() for path in [
    ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')]}


@pytest.mark.parametrize('name', MEASURED)
def test_reports_and_the_pages_come_from_the_rows(name):
  claim, rows = CLAIMS[name], MEASURED[name]
  assert runs.report(claim, rows) == (
      runs.RESULTS / f'{name}.md').read_text(), (
          'python -m benchmarks.claims writes it anew')
  said = runs.said(claim, rows)
  texts = {page: found[0] for page, content in PAGES.items()
           if (found := runs.marked(name).search(content))}
  assert {*texts} - {'README.md'}
  for page, text in texts.items():
    assert text.split() == said.split(), f'{page} should say: {said}'


@pytest.mark.parametrize('count', [1, 7])
@pytest.mark.parametrize('name', [
    'jackpot_128', 'jackpot_rates', 'cbs_64', 'cbs_misled', 'pkpo_bonus',
    'pkpo_mixed', 'pkpo_programs', 'speed_real', 'speed_rloo'])
def test_the_first_rows_have_a_report(name, count):
  """`--report` while runs go on: arms and seeds are missing."""
  claim, rng = CLAIMS[name], np.random.default_rng(0)
  lists = name != 'pkpo_programs'
  rows = [{
      'machine': 'a machine', 'date': '2026-01-01', 'rate': 1.0, 'steps': 3,
      **dict.fromkeys(('samples', 'updates', 'gflops', 'elapsed'), [0, 1, 2]),
      **{key: rng.random(3).tolist() for key in ('z_std', 'reward', 'curve')},
      **{key: rng.random(3).tolist() if lists else rng.random()
         for key in ('pass@1', 'pass@8')},
      **{key: rng.random() for key in (
          'best@1', 'best@8', 'pass@16', 'best@16', 'error', 'generation',
          'solved', 'solved_hard', 'entropy', 'minutes', 'heldout', 'sampled',
          'update/grad_norm', 'batch/staleness', 'never')},
      'phases': {'sample': [1, 2, .5], 'update': [2, 2, 1]},
      **({'heldout': {problems: {f'pass@{k}': rng.random() for k in pkpo.KS}
                      for problems in ('all', 'ordinary', 'hard')},
          'solved': rng.random(4).tolist()}
         if name in ('pkpo_bonus', 'pkpo_mixed') else {}),
      **claim.row_of(run.arm, run.seed)} for run in runs.counted_runs(
          claim)[:count]]
  text = runs.report(claim, rows)
  assert 'nan' not in text
  assert f'Over {len({row["seed"] for row in rows})} seeds' in text


def test_the_best_of_k_leaves_out_failures_of_the_verifier():
  responses = [dict(problem_id=problem, reward=reward, valid=valid)
               for problem, reward, valid in (
                   (1, .2, True), (1, .6, True), (1, 0.0, False),
                   (2, .4, True), (2, 0.0, False))]
  assert pkpo_arc.best_at(responses, 1) == pytest.approx(.4)
  # The second problem has one response left.
  assert pkpo_arc.best_at(responses, 2) == pytest.approx(.6)


def test_a_number_that_is_none_leaves_the_others():
  assert tables.student([1.0, float('nan')]).low != 0
  assert tables.mean_and_error([1.0, float('nan')]) == 'nan ± nan'
  assert tables.parts_of([{'a': 1}, {'a': None}, {'a': 3}], {'a': 'b'}, 2) == {
      'b': [2]}


SAID = {name: runs.said(CLAIMS[name], rows) for name, rows in MEASURED.items()}


def test_what_the_readme_says_follows():
  assert not readme.check(PAGES['README.md'], SAID)


@pytest.mark.parametrize('old, new, fault', [
    ('all tuned', 'none tuned', 'The README lacks: - [PKPO]'),
    ('for 128', 'for 129', 'The README lacks: - [Jackpot]'),
    ('can order.', 'can order. - CBS beats all rules.',
     'in no sentence: Measured on small')])
def test_other_words_in_the_readme_are_noticed(old, new, fault):
  faults = readme.check(PAGES['README.md'].replace(old, new), SAID)
  assert any(fault in found for found in faults), faults


@pytest.mark.parametrize('what, after, found', [
    ('a .5 ± .1 against b .4 ± .1 \\(', '', '+'), ('b 1 \\(', '', '-'),
    ('c ', '', '='), ('d ', '', '+'), ('d ', 'then', '-'), ('e ', 'then', '='),
    ('d ', 'never', ''), ('f ', '', ''), ('g 1 \\(', 'pass@8:', ''),
    ('g 1 \\(', 'pass@1:', '+'), ('h 1 \\(', 'pass@1:', ''),
    ('b 1 \\(', 'then', '')])
def test_a_verdict_is_of_the_first_difference_after_its_mark(
    what, after, found):
  said = ('is: a .5 ± .1 against b .4 ± .1 (+0.1 [+0.05, +0.15]); b 1 (-0.2 '
          '[-0.3, -0.1] [-0.4, -0.1]); c -0.1 [-0.2, +0.1], not '
          'distinguishable: -2% to +1%; d at least 1.20 [1.10, 1.30]. then: d '
          '0.80 [0.70, 0.90], e 1.10 [1.01, 1.20], not distinguishable after '
          'Holm: p = 0.10; f. No b 1 (-0.2 [-0.3, -0.1]). pass@8: i; pass@1: '
          'g 1 (+0.000 [+0.000, +0.001]). Last: h 1 (+0.1 [+0.05, +0.15]).')
  assert readme.verdict(said, readme.Follows(what, '', after)) == found


def test_what_does_not_follow_is_said():
  sentence = readme.Sentence('x', 'by 12%, k=4', (
      readme.Follows('d ', '+', 'then'), readme.Follows('k=4 ', '+')), ('.80',))
  assert readme.wrong(sentence, 'then: d 0.80 [0.70, 0.90]') == [
      f'{sentence.follows[0]} is -', f'{sentence.follows[1]} is not there',
      '12 is from nowhere']


def test_settings_are_committed_before_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(runs, 'ROOT', tmp_path)
  monkeypatch.setattr(runs, 'RESULTS', tmp_path / 'claims')
  runs.RESULTS.mkdir()

  def commit():
    for args in (['add', '-A'], ['-c', 'user.name=a', '-c', 'user.email=a@b',
                                 'commit', '-qm', 'x']):
      subprocess.run(['git', *args], cwd=tmp_path, check=True)

  def put(name, text):
    (runs.RESULTS / f'made.{name}').write_text(text)

  claim = claim_of()
  order = lambda: readme.settings_order(claim)
  subprocess.run(['git', 'init', '-q'], cwd=tmp_path, check=True)
  put('jsonl', '{"factor": 1}\n')
  commit()
  assert order() == 'no rows that count'
  put('jsonl', '{"factor": 1}\n{"x": 1}\n')
  commit()
  assert order().isupper()  # without settings
  put('settings.json', '1')
  commit()
  assert order().isupper()  # later than the rows
  (runs.RESULTS / 'made.jsonl').unlink()
  commit()
  assert order() == 'no rows that count'
  put('jsonl', '{"x": 2}\n')
  commit()
  assert order() == 'settings before rows'
  put('settings.json', '2')
  commit()
  assert order().isupper()  # changed after the rows
  assert readme.settings_order(CLAIMS['cbs']) == 'older than the rule'


def test_a_report_says_the_hours_of_all_its_runs():
  rows = [{'minutes': 30.0}, {'elapsed': [0.0, 3600.0]}, {}]
  assert 'all 3 runs took 1.5 hours' in runs._spent(rows)
  assert not runs._spent([{}])


def test_rows_are_saved_where_a_run_fails(
    tmp_path, results, monkeypatch, capsys):
  claim = claim_of(measure=lambda *args: {'x': 1.0})
  where = tmp_path / 'runs'
  where.mkdir()
  tuning = runs.tuning_runs(claim)
  tuning += runs.further_runs(claim, [(run, {'x': 1.0}) for run in tuning])
  for run in tuning:
    runs.do(claim, run, where, 'here')
  runs.freeze(claim, runs.results_of(tuning, where))
  runs.write(claim, [row for _, row in runs.results_of(tuning, where)])
  assert runs.committed(claim) and not runs.measured(claim)  # tuning alone

  def fails(counted, *args):
    runs.do(claim, counted[0], where, 'here')
    raise RuntimeError('base,11 failed')

  monkeypatch.setattr(runs, 'train_all', fails)
  monkeypatch.setattr('sys.argv', ['x', '--write', f'--folder={where}'])
  with pytest.raises(RuntimeError, match='base,11'):
    runs.program(claim)
  assert [row['seed'] for row in runs.committed(claim)
          if 'factor' not in row] == [10]
  # Two of three arms lack a row: they may be committed, and have no report.
  runs.write(claim, runs.committed(claim))
  assert not runs.measured(claim) and not (results / 'made.md').exists()
  with pytest.raises(ValueError, match='rows of runs that count'):
    runs.settings_path(claim).unlink()
    runs.check_new(claim)


def test_a_run_that_was_stopped_starts_again(tmp_path, monkeypatch):
  """Removes its folder, unless the run saves checkpoints as it goes."""
  config = str(ROOT / 'tests/helpers/tiny.py')
  monkeypatch.setattr(
      'jaxrl_llm.train.train', lambda loaded, name: seen.append(
          (tmp_path / name / 'metrics.jsonl').exists()))
  monkeypatch.setattr('jaxrl_llm.monitoring.metrics.read', lambda path: [])
  seen = []
  for fields in {}, {'checkpoint.every': 2}:
    (tmp_path / 'a,10').mkdir(exist_ok=True)
    (tmp_path / 'a,10/metrics.jsonl').write_text('')
    runs.train_arm(config, 'a,10', tmp_path, fields)
  assert seen == [False, True]


def test_a_report_of_no_runs_says_so(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['x', '--report', f'--folder={tmp_path}'])
  with pytest.raises(SystemExit):
    runs.program(claim_of())
  assert f'{tmp_path} has no run that counts' in capsys.readouterr().err


def test_numbers_of_the_pages_on_claims_are_said_by_reports():
  """Differences and errors, as reports write them, stand nowhere else."""
  for name, page in PAGES.items():
    for claim in MEASURED:
      page = runs.marked(claim).sub('', page)
    assert not re.findall(r'\d ± \d|\[[-+]?\d\.\d+, [-+]?\d', page), name
