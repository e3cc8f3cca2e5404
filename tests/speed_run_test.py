"""Tests of SPEED in the loop: its reports, empty steps, and its end."""

import json
import zlib

import numpy as np
import pytest

from jaxrl_llm import checkpoint, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.monitoring import exits
from jaxrl_llm.ops import advantages, pkpo
from jaxrl_llm.prepare import choices
from jaxrl_llm.rewards import Verdict
from tests.helpers import stage_runs, tiny


def frozen(parts):
  """Makes updates change nothing, and returns parts that begin a run."""
  def update(state, batch, *rest):
    return state, {'tokens': np.float32(1), 'processed': np.float32(1),
                   'skipped_in_row': np.int32(0)}

  return tiny.changed(
      parts, learner=parts.programs.learner._replace(update=update))


def by_problem(problem, text, truncated):
  """Gives rewards with a pass rate of 0, .5 or 1, which the problem sets."""
  right = zlib.crc32(f'{problem.id} {text}'.encode()) % 2 < problem.id % 3
  return Verdict(float(right), 'judged')


def rewards_of(patch, **fields):
  """Returns the reported rewards of 60 steps under the first policy."""
  judged, values = [], []
  probe = train.step_metrics.probe
  patch.setattr(train.step_metrics, 'probe', lambda *x: values.append(
      probe(*x)) or values[-1])
  parts = frozen(stage_runs.judged(
      stage_runs.parts_of(curriculum_prompts=10, **fields),
      lambda *x: judged.append(by_problem(*x)) or judged[-1]))
  state, fixed, _ = tiny.begin(parts)
  _, rows, _ = stage_runs.waves(parts, state, fixed, 60)
  patch.undo()
  return {
      'V': np.array([value.reward for value in values]),
      **{name: np.array([row[name] for row in rows])
         for name in ('reward/mean', 'reward/pass@2')}}, judged, rows


def test_reported_rewards_are_those_of_plain_sampling(monkeypatch):
  """Screens alone are reported; all samples have another mean."""
  plain, _, _ = rewards_of(monkeypatch)
  screened, judged, rows = rewards_of(
      monkeypatch, curriculum='speed', speed__rule='pass_rate',
      speed__p_low=-1.0)
  for name in plain:
    means, errors = zip(*(
        (np.mean(x[name]), np.std(x[name]) / len(x[name]) ** .5)
        for x in (plain, screened)))
    assert abs(means[0] - means[1]) < 3 * np.hypot(*errors) < .15, name
  assert sum(row['screening/continued'] for row in rows) > 100
  # With the continuations of what is not always right, the mean is lower.
  assert np.mean([v.reward for v in judged]) < np.mean(screened['V']) - .05


def test_a_step_with_nothing_to_sample():
  """A full buffer empties by one batch a step."""
  parts = frozen(stage_runs.judged(stage_runs.parts_of(
      curriculum='speed', curriculum_prompts=10, speed__rule='pass_rate',
      speed__p_low=-1.0, speed__capacity=13, speed__max_rounds=1),
      lambda problem, text, truncated: Verdict(len(text) % 2 * .5, 'half')))
  state, fixed, _ = tiny.begin(parts)
  states, rows, _ = stage_runs.waves(parts, state, fixed, 12)
  counts = [row['response/count'] for row in rows]
  # Ten screens; their continuations; a batch of four each, until there is room
  # for ten again.
  assert counts[:4] == [20, 20, 0, 20]
  assert [row['batch/rounds'] for row in rows][:4] == [0, 1, 1, 0]
  assert [state.step for state in states] == [*range(1, 13)]
  assert np.isnan(rows[2]['reward/mean'])


def test_prompts_without_signal_end_the_run(tmp_path, monkeypatch):
  """The state before the last step is saved; more patience goes on."""
  fields = dict(
      curriculum='speed', steps=9, speed__patience=4, speed__n_init=2,
      eval__every=0, eval__samples=1, eval__k=1, checkpoint__every=0,
      log__tensorboard=False)
  config = tiny.load(tmp_path / 'run', **fields)
  parts = stage_runs.judged(
      stage_runs.parts_of(curriculum='speed'), stage_runs.equal)
  monkeypatch.setattr(
      train.build, 'parts',
      lambda config: tiny.changed(parts, config=config))
  monkeypatch.setattr(train.heldout, 'evaluate', lambda *_: {})
  monkeypatch.setattr(train.summary.plots, 'curves', lambda *_: None)
  with pytest.raises(SystemExit) as end, exits.program(''):
    train.train(config)
  said = str(end.value.code)
  assert '4 steps in a row' in said and '\n' not in said
  assert '0 of 2: 0, 1 of 2: 0, 2 of 2: 16;' in said
  assert checkpoint.steps(tmp_path / 'run' / 'checkpoints') == [0, 3]
  # More patience is no other run.
  config = tiny.load(tmp_path / 'run', **{**fields, 'speed__patience': 50})
  train.train(config)
  rows = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(row)['step'] for row in rows] == [*range(10)]
  assert json.loads(rows[-1])['screening/dry'] == 9


@pytest.mark.parametrize('fields, said', [
    (dict(), 'speed.n_init=4 leaves nothing .*samples_per_prompt=4'),
    (dict(speed__n_init=2, speed__p_low=.2), 'speed.p_low=0.2 has no effect'),
    (dict(speed__n_init=2, advantage='reinforce'), 'speed.rule=signal .*rloo'),
    (dict(speed__n_init=2, advantage='pkpo', pkpo__transform='s'),
     'speed.rule=signal .*transform=s is .*sloo_minus_one'),
    (dict(speed__n_init=2, speed__capacity=6), 'speed.capacity=6 .*least 7'),
    (dict(speed__n_init=1, speed__rule='pass_rate'),
     'speed.n_init=1 .*speed.p_low=0 .*speed.p_high=1.*rule=signal'),
    (dict(speed__n_init=2, speed__rule='signals'), 'did you mean .signal'),
    (dict(curriculum='uniform', speed__n_init=2), 'speed.n_init has no'),
    (dict(curriculum='uniform', speed__p_low=.2), 'speed.p_low has no'),
])
def test_fields_that_do_not_fit_are_one_sentence(fields, said):
  with pytest.raises(ValueError, match=f'(?i){said}') as error:
    tiny.load(**{'curriculum': 'speed', **fields})
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('fields', [
    *(dict(advantage=name) for name in sorted(advantages.ADVANTAGES)),
    *(dict(advantage='pkpo', pkpo__k=2, pkpo__transform=name)
      for name in sorted(pkpo.TRANSFORMS))], ids=str)
def test_the_signal_rule_refuses_what_is_largest_where_all_are_right(fields):
  given = tiny.load(**fields, samples_per_prompt=8)
  one = np.ones((1, 8))
  signal = choices.advantages(given).of_wave(
      one, one > 0, one, one > 0, one[:, 0] > 0, 0).signal
  try:
    tiny.load(
        **fields, samples_per_prompt=8, curriculum='speed', speed__n_init=2)
    refused = False
  except ValueError:
    refused = True
  assert refused == bool(signal[8] > .999 * signal.max())


def test_a_run_with_another_rule_is_another_run():
  saved = tiny.load(curriculum='speed', speed__n_init=2)
  other = tiny.load(
      curriculum='speed', speed__n_init=2, speed__rule='pass_rate')
  patient = tiny.load(
      curriculum='speed', speed__n_init=2, speed__patience=9)
  assert config_lib.resume_conflicts(saved, other)
  assert not config_lib.resume_conflicts(saved, patient)
