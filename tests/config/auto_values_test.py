"""Tests of choices that a run keeps when it goes on."""

import json

import pytest

from jaxrl_llm import config
from tests.helpers import tiny

AUTO = dict(learner__tokens_per_microbatch='auto', sampling__buckets='auto')


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
  return config.with_saved_auto_values(asked)


def lengths(c):
  return c.learner.tokens_per_microbatch, c.sampling.buckets


def test_lengths_are_those_that_the_run_has_begun_with(run):
  asked = tiny.load('run', **AUTO)
  saved = dict(learner__tokens_per_microbatch=70, sampling__buckets=[4])
  got = begun(run, asked, **saved)
  assert lengths(got) == (70, (4,))
  got.learner.tokens_per_microbatch = got.sampling.buckets = 'auto'
  assert got.to_dict() == asked.to_dict()
  fixed = tiny.load(
      'run', learner__tokens_per_microbatch=90, sampling__buckets='3')
  assert lengths(begun(run, fixed, **saved)) == (90, (3,))
  assert lengths(asked) == ('auto', 'auto')


def test_a_choice_that_the_run_did_not_have_stays_open(run):
  asked = tiny.load('run', **AUTO)
  saved = json.loads(config.choices(tiny.load('run')))
  del saved['learner.tokens_per_microbatch']
  (run / 'choices.json').write_text(json.dumps(saved))
  got = config.with_saved_auto_values(asked)
  assert lengths(got) == ('auto', ())


@pytest.mark.parametrize('saved', [
    dict(max_prompt=8), dict(max_response=11),
    dict(sampling__buckets='many')])
def test_lengths_that_do_not_fit_are_chosen_again(run, saved):
  saved = {**dict(learner__tokens_per_microbatch=70, sampling__buckets=[4]),
           **saved}
  got = begun(run, tiny.load('run', **AUTO), **saved)
  assert lengths(got) == ('auto', 'auto')


def test_a_config_without_a_folder_leaves_the_choice_open():
  asked = tiny.load('run', **AUTO)
  asked.workdir = None
  assert lengths(config.with_saved_auto_values(asked)) == ('auto', 'auto')


@pytest.mark.parametrize('text', [None, '', '{', '[]', '{"max_prompt": 9}'])
@pytest.mark.parametrize('name', ['choices.json', 'config.json'])
def test_a_missing_or_damaged_file_leaves_the_choice_open(run, name, text):
  if text is not None:
    (run / name).write_text(text)
  got = config.with_saved_auto_values(tiny.load('run', **AUTO))
  assert lengths(got) == ('auto', 'auto')
