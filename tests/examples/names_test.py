"""Tests of the examples' names, in runs begun before too, and as own files."""

import hashlib
import json
import pathlib
import shutil
import types

import pytest

from jaxrl_llm import config, tasks

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'examples'
PLAIN = types.SimpleNamespace(chat=str)  # a tokeniser with a chat format


# Digests of the commit before they were examples.
@pytest.mark.parametrize('name, digest, options', [
    ('guess', '3d292985b4672864', dict(train=20, heldout=5)),
    ('calculations', '04bc2cdf6c5460d6', dict(train=20, heldout=5)),
    ('arc_mini', 'b58eb3c465aee624', dict(train=3, heldout=2, shown=5)),
    ('arithmetic', 'ea57f7ba2e1dcebd', dict(
        train=(5, 5, 5, 5), heldout=(2, 2, 2, 2)))])
def test_problems_and_demonstrations_stay(name, digest, options, tmp_path):
  """Under every name of the file, so that runs go on with the same bits."""
  shutil.copy(EXAMPLES / f'{name}.py', tmp_path)
  for task in (f'jaxrl_llm.examples.{name}', f'{EXAMPLES}/{name}.py',
               f'{tmp_path}/{name}.py'):
    made = tasks.get(
        task, PLAIN if name == 'arithmetic' else None, **options)
    rows = [(p.id, p.prompt, p.kind, p.answer, p.info, p.text)
            for p in (*made.train, *made.heldout)]
    shown = []
    if hasattr(made, 'demonstration'):
      for index in range(20):
        problem, turns = made.demonstration(index, seed=3)
        shown.append((problem.id, turns))
    assert hashlib.sha256(
        repr((rows, shown)).encode()).hexdigest()[:16] == digest


def test_an_environment_of_an_example_is_played_from_any_file(tmp_path):
  file = tmp_path / 'mine.py'
  shutil.copy(EXAMPLES / 'guess.py', file)
  for name in 'jaxrl_llm.examples.guess', str(file):
    task = tasks.get(name, train=2, heldout=1)
    problem = task.train[0]
    try:
      reply = task.turns.submit(problem, 0, ['!'], [])()
    finally:
      task.close()
    assert (reply.kind, reply.observation) == ('turn', '?')


@pytest.mark.parametrize('name, leaf', [
    ('guess', 'guess'), ('arc_mini', 'arc_mini'), ('arithmetic', 'arithmetic'),
    ('calculations', 'calculations'),
    ('jaxrl_llm.environments.guess', 'guess'),
    ('jaxrl_llm.tasks.arithmetic:create', 'arithmetic')])
def test_a_name_of_before_is_answered_by_that_of_now(name, leaf):
  said = f"Did you mean 'jaxrl_llm.examples.{leaf}'"
  with pytest.raises(ValueError, match=said):
    tasks.get(name)
  with pytest.raises(ValueError, match=said):
    config.load('turns/game', {'task.name': name})


def test_a_saved_config_of_before_names_the_examples(tmp_path):
  for now, before in (('turns/game', 'guess'), ('pkpo/arc_mini', 'arc_mini'),
                      ('turns/calculator', 'calculations')):
    new = config.load(now)
    old = config.flatten(new) | {'task.name': before}
    file = tmp_path / 'config.json'
    file.write_text(config.to_json(old))
    assert config.flatten(config.load(str(file))) == config.flatten(new)
    assert config.resume_conflicts(old, new) == []
  new = config.load('own', {'task': 'tools'})
  assert new.task.tools == ('jaxrl_llm.examples.calculator:calculator',)
  old = config.flatten(new) | {'task.tools': [
      'jaxrl_llm.environments.calculator:calculator']}
  assert config.resume_conflicts(old, new) == []


@pytest.mark.parametrize('value', [5, None, ['guess'], [['guess']], [{}]])
def test_a_saved_name_that_is_no_text_is_refused(tmp_path, value):
  file = tmp_path / 'config.json'
  file.write_text(json.dumps({'task.name': value}))
  with pytest.raises(ValueError, match='task.name='):
    config.load(str(file))
