"""Tests of choices that a run keeps when it goes on."""

import json

import pytest

from jaxrl_llm import config
from tests.helpers import tiny

AUTO = dict(learner__buckets='auto', sampling__buckets='auto')


@pytest.fixture(name='run', autouse=True)
def _run(tmp_path, monkeypatch):
  """Folder of the run."""
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / 'run'
  folder.mkdir()
  return folder


def begun(run, asked, **saved):
  """Returns the config `asked`, as the run that has `saved` goes on with it."""
  flat = json.loads(config.choices(tiny.load('run')))
  for name, value in saved.items():
    flat[name.replace('__', '.')] = value
  (run / 'choices.json').write_text(json.dumps(flat))
  return config.as_begun(asked)


def lengths(c):
  return c.learner.buckets, c.sampling.buckets


def test_lengths_are_those_that_the_run_has_begun_with(run):
  asked = tiny.load('run', **AUTO)
  saved = dict(learner__buckets=[12, 15], sampling__buckets=[4])
  got = begun(run, asked, **saved)
  assert lengths(got) == ((12, 15), (4,))
  got.learner.buckets = got.sampling.buckets = 'auto'
  assert got.to_dict() == asked.to_dict()
  assert lengths(begun(run, tiny.load('run'), **saved)) == ((), ())
  fixed = tiny.load('run', learner__buckets='none', sampling__buckets='3')
  assert lengths(begun(run, fixed, **saved)) == ((), (3,))
  assert lengths(asked) == ('auto', 'auto')


def test_a_choice_that_the_run_did_not_have_stays_open(run):
  asked = tiny.load('run', learner__response_buckets='auto', **AUTO)
  saved = json.loads(config.choices(tiny.load('run')))
  del saved['learner.response_buckets']
  (run / 'choices.json').write_text(json.dumps(saved))
  got = config.as_begun(asked)
  assert got.learner.response_buckets == 'auto'
  assert lengths(got) == ((), ())


@pytest.mark.parametrize('saved', [
    dict(max_prompt=8), dict(max_response=11),
    dict(sampling__buckets='many')])
def test_lengths_that_do_not_fit_are_chosen_again(run, saved):
  saved = {**dict(learner__buckets=[12], sampling__buckets=[4]), **saved}
  got = begun(run, tiny.load('run', **AUTO), **saved)
  assert lengths(got) == ('auto', 'auto')


def test_a_config_without_a_folder_leaves_the_choice_open():
  asked = tiny.load('run', **AUTO)
  asked.workdir = None
  assert lengths(config.as_begun(asked)) == ('auto', 'auto')


def test_a_run_of_a_time_without_choices_had_no_buckets(run):
  flat = config.flatten(tiny.load('run', learner__buckets=()))
  del flat['sampling.buckets']
  (run / 'config.json').write_text(json.dumps(flat))
  got = config.as_begun(tiny.load('run', **AUTO))
  assert lengths(got) == ((), ())


@pytest.mark.parametrize('text', [None, '', '{', '[]', '{"max_prompt": 9}'])
@pytest.mark.parametrize('name', ['choices.json', 'config.json'])
def test_a_missing_or_damaged_file_leaves_the_choice_open(run, name, text):
  if text is not None:
    (run / name).write_text(text)
  got = config.as_begun(tiny.load('run', **AUTO))
  assert lengths(got) == ('auto', 'auto')
