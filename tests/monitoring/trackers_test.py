"""Tests of the services that collect metrics, with stand-ins for theirs."""

import json
import math
import re
import sys
import types

import pytest

from jaxrl_llm.monitoring import metrics, trackers

Made = types.SimpleNamespace


class MlflowClient:
  """Keeps runs as MLflow does: params for good, every row of a metric."""

  runs: dict = {}
  name = re.compile(r'[/\w.\- ]+')

  def search_runs(self, experiments, text, max_results):
    _, name, value = re.fullmatch(r"(tags)\.(\w+) = '(.+)'", text).groups()
    return [run for run in self.runs.values() if run.experiment in experiments
            and run.data.tags.get(name) == value][:max_results]

  def create_run(self, experiment, run_name, tags):
    run = Made(
        experiment=experiment, info=Made(run_id=str(len(self.runs))),
        name=run_name, data=Made(tags=dict(tags), params={}), rows=[])
    self.runs[run.info.run_id] = run
    return run

  def update_run(self, number, status):
    self.runs[number].status = status

  def set_terminated(self, number):
    self.update_run(number, 'FINISHED')

  def log_batch(self, number, metrics=(), params=(), tags=()):
    run = self.runs[number]
    for key, value in params:
      assert key not in run.data.params and isinstance(value, str)
      run.data.params[key] = value
    for key, value, time, step in metrics:
      assert self.name.fullmatch(key) and time > 1e12, key
      run.rows.append((step, key, value))
    run.data.tags.update(tags)


@pytest.fixture
def mlflow(monkeypatch):
  """Returns the runs at a stand-in for MLflow."""
  fake = types.ModuleType('mlflow')
  fake.MlflowClient = MlflowClient
  fake.set_experiment = lambda name: Made(experiment_id=f'id of {name}')
  fake.entities = types.ModuleType('mlflow.entities')
  for kind in 'Param', 'Metric', 'RunTag':
    setattr(fake.entities, kind, lambda *values: values)
  monkeypatch.setitem(sys.modules, 'mlflow', fake)
  monkeypatch.setitem(sys.modules, 'mlflow.entities', fake.entities)
  monkeypatch.setattr(MlflowClient, 'runs', {})
  return MlflowClient.runs


@pytest.fixture
def trackio(monkeypatch):
  """Returns the runs at a stand-in for Trackio: name to its rows."""
  runs, fake = {}, types.ModuleType('trackio')

  def init(project, name, resume, embed, config):
    assert (project, resume, embed) == ('p', 'allow', False)
    rows = runs.setdefault(name, [])
    return Made(
        _next_step=max([step for step, _ in rows], default=-1) + 1,
        log=lambda row, step: rows.append((step, row)))

  fake.init, fake.finish = init, lambda: None
  monkeypatch.setitem(sys.modules, 'trackio', fake)
  return runs


def write(folder, steps, config=None, **projects):
  """Writes rows of some steps, the first of which a run goes on with."""
  writer = metrics.Writer(
      folder, steps[0], tensorboard=False, config=config, **projects)
  for step in steps:
    writer.write(step, {'pass@1': step / 2, 'bad': math.nan})
  writer.close()


def test_mlflow_gets_each_step_once_and_each_field(tmp_path, mlflow):
  config = {'steps': 3, 'loss': {'kl': 0.5, 'at': {'k': (1, 2)}}, 'x': None}
  write(tmp_path / 'a', [0, 1, 2, 3], config, mlflow='exp')
  # The last two are done again, by a run of more steps.
  write(tmp_path / 'a', [2, 3, 4], {**config, 'steps': 9, 'y': 1}, mlflow='exp')
  run, = mlflow.values()
  assert (run.experiment, run.name, run.status) == (
      'id of exp', 'a', 'FINISHED')
  assert run.rows == [(step, 'pass_at_1', step / 2) for step in range(5)]
  assert run.data.params == {
      'steps': '3', 'loss.kl': '0.5', 'loss.at.k': '(1, 2)', 'x': 'None',
      'y': '1'}
  write(tmp_path / 'a', [0], config, mlflow='exp')
  write(tmp_path / 'b', [0], config, mlflow='exp')
  assert len(mlflow) == 3


@pytest.mark.parametrize('name, known', [
    ('seconds/step', 'seconds/step'), ('pass@8', 'pass_at_8'),
    ('../a//b/', 'a/b'), ('/x:y', 'x_y'), ('reward/füßé', 'reward/füßé'),
    ('a\n"b', 'a__b'), ('..', '_'), ('', '_'), ('x' * 300, 'x' * 250)])
def test_names_that_mlflow_takes(name, known):
  assert trackers._mlflow_name(name) == known


def test_trackio_gets_each_step_once(tmp_path, trackio):
  """Its runs are known by their names, which other folders may have too."""
  for folder in 'a', 'b':
    write(tmp_path / folder / 'run 1', [0, 1, 2], trackio='p')
  write(tmp_path / 'a' / 'run 1', [2, 3], trackio='p')
  assert sorted(map(len, trackio.values())) == [3, 4]
  assert all(re.fullmatch('run-1-[0-9a-f]{8}', name) for name in trackio)
  rows = max(trackio.values(), key=len)
  assert rows == [(step, {'pass@1': step / 2}) for step in range(4)]


@pytest.mark.parametrize('name', trackers.TRACKERS)
@pytest.mark.parametrize('at_start', [True, False])
def test_a_service_that_fails_costs_nothing_else(
    tmp_path, monkeypatch, caplog, trackio, mlflow, name, at_start):
  def fail(*_):
    raise ConnectionError('gone\naway')
  monkeypatch.setitem(sys.modules, 'wandb', types.ModuleType('wandb'))
  title, _ = trackers.TRACKERS[name]
  monkeypatch.setitem(trackers.TRACKERS, name, (
      title, fail if at_start else lambda *_: (fail, fail)))
  other = 'mlflow' if name == 'trackio' else 'trackio'
  write(tmp_path, [0, 1, 2], **{name: 'p', other: 'p'})
  assert len(metrics.read(tmp_path / 'metrics.jsonl')) == 3
  assert [r.getMessage() for r in caplog.records] == [
      f'{title} gets no more metrics (ConnectionError: gone away): the run '
      'goes on, and metrics.jsonl has them.']
  rows = [run.rows for run in mlflow.values()] or [*trackio.values()]
  assert len(rows[0]) == 3


@pytest.mark.parametrize('name', trackers.TRACKERS)
def test_a_missing_library_is_named(monkeypatch, name):
  monkeypatch.setitem(sys.modules, name, None)
  trackers.check({name: None})
  with pytest.raises(ValueError, match=rf'log.{name}=p .*jaxrl_llm\[{name}\]'):
    trackers.check({name: 'p'})


def test_an_older_folder_goes_on(tmp_path, trackio):
  """Its file has another identity than those that are made now."""
  (tmp_path / 'trackio_run.txt').write_text(f'0123456789abcdef\n{tmp_path}')
  write(tmp_path, [3, 4], trackio='p')
  assert [*trackio] == ['0123456789abcdef']
  row, _ = metrics.read(tmp_path / 'metrics.jsonl')
  assert json.dumps(row) == '{"step": 3, "pass@1": 1.5, "bad": null}'
