"""Tests of --help: every field, every option, and the examples as they are."""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

import pytest

from jaxrl_llm import config, evaluate, export
from jaxrl_llm.base.declared import Field
from jaxrl_llm.config import help, plugs
from jaxrl_llm.config import table as table_lib
from jaxrl_llm.config.plugs import PLUG_FIELDS
from jaxrl_llm.launch import compile_check, run
from jaxrl_llm.models.config import PRESETS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')


def test_help_lists_every_field_at_80_columns():
  program = ('import sys; from jaxrl_llm import config\n'
             'config.parse(sys.argv[1:])')
  for argv, steps in (([f'--config={CONFIG}'], '400'), ([], '100')):
    done = subprocess.run(
        [sys.executable, '-c', program, *argv, '--config.seed=5', '--help=all'],
        cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if line[:1].strip()}
    for name, field in table_lib.table().items():
      if name != 'task.heldout' or argv:
        assert field.meaning.split()[0] in shown[name]
    # Without a config, those of what one could choose too.
    for name in ('with', 'task.template', 'pkpo.k', 'cbs.warmup', 'jackpot.lam',
                 'speed.n_init', 'actor.distill', 'loss.importance_cap'):
      assert (name in shown) == (not argv), name
    for name in ('math', 'pkpo', 'cispo', *PRESETS):
      assert name in done.stdout
    assert shown['steps'].split()[1] == steps
    assert shown['seed'].split()[1] == '5'
    if not argv:
      assert shown['model.width'].split()[1] == '(128)'  # the preset's
    assert max(map(len, lines[4:])) <= 80


def test_help_is_that_of_this_program(capsys):
  with pytest.raises(SystemExit) as end:
    evaluate.parse(['--help'])
  assert end.value.code == 0
  shown = capsys.readouterr().out
  assert shown.startswith('Usage: python -m jaxrl_llm.evaluate --config=')
  assert 'jaxrl_llm.train' not in shown
  for part in ('--checkpoint=best ', '--files=a.jsonl', 'max_prompt'):
    assert part in shown


def printed(capsys, *argv):
  with pytest.raises(SystemExit) as end:
    config.parse(argv)
  assert end.value.code == 0
  return capsys.readouterr().out


def every_field():
  """Returns the fields of all configs, by name, with those of each choice."""
  found = [*table_lib.table({'actor.model.preset': 'tiny',
                             'off_policy': 'jackpot'}).values()]
  for by in PLUG_FIELDS:
    for name in plugs.known(by):
      found += table_lib.hyperparameters(by, name).values()
  return {field.name: field for field in found}


def test_each_field_has_one_group():
  named = [name for group in help.GROUPS.values()
           for name in (*group.main, *group.more)]
  for name in {*named}:  # a section may have a main field's name: it is longer
    assert named.count(name) == 1, name
    assert any(f'{other}.'.startswith(f'{name}.') for other in every_field())
  counts = collections.Counter(map(help.group_of, every_field().values()))
  assert counts.keys() == help.GROUPS.keys() and min(counts.values()) >= 4
  with pytest.raises(ValueError, match='No group .* has neu'):
    help.group_of(Field('neu', 1, 'new', int))


def test_help_is_short_and_names_the_rest(capsys):
  shown = printed(capsys, '--help')
  fields = table_lib.table()
  words = {*re.findall(r'[\w.]+', shown)}
  assert {*fields} <= words
  assert len(shown.splitlines()) < 165
  for name, group in help.GROUPS.items():
    assert f'\n{group.title} (--help={name})\n' in shown
    for main in group.main:
      if main in fields:
        assert re.search(rf'^{main} .*{fields[main].meaning.split()[0]}', shown,
                         re.MULTILINE)
  assert fields['learner.vocab_chunk'].meaning.split()[1] == 'whose'
  assert 'whose logits' not in shown  # not one of the main ones


@pytest.mark.parametrize('what, there, absent', [
    ('method', ['pkpo.k', 'with advantage=pkpo:', 'jackpot.lam'],
     ['steps ', 'task.name']),
    ('loss', ['loss.clip_low', 'with loss.importance=tis:'], ['advantage ']),
    ('task', ['task.name', 'with task.name=math:'], ['loss.objective']),
    ('steps', ['steps '], ['seed ']),
    ('trl', ['num_generations', 'samples_per_prompt',
             'per_device_train_batch_size', 'learner.tokens_per_microbatch'],
     ['rollout_batch_size']),
    ('openrlhf', ['rollout_batch_size'], ['num_generations']),
])
def test_help_of_a_group_a_section_a_field_or_a_library(
    capsys, what, there, absent):
  shown = printed(capsys, f'--help={what}')
  lines = shown.splitlines()
  for text in there:
    assert text in shown
  for text in absent:
    assert not any(line.startswith(text) for line in lines)


def test_help_of_what_is_no_field(capsys):
  for what, said in (('num_generations', 'use samples_per_prompt'),
                     ('stpes', 'did you mean steps?')):
    with pytest.raises(SystemExit) as end:
      config.parse([f'--help={what}'])
    assert end.value.code == 2 and said in capsys.readouterr().err


PARSERS = [export.parse, run.main, compile_check.main]


@pytest.mark.parametrize('parse', PARSERS)
def test_help_has_a_text_for_every_option(monkeypatch, parse):
  seen = []

  def stop(parser, *_):
    seen.append(parser)
    raise SystemExit

  for name in ('parse_args', 'parse_known_args'):
    monkeypatch.setattr(argparse.ArgumentParser, name, stop)
  with pytest.raises(SystemExit):
    parse([])
  options = seen[0]._actions  # pylint: disable=protected-access
  assert len(options) > 3
  assert not [option.dest for option in options if not option.help]


@pytest.mark.parametrize('parse, example', [
    (export.parse, '\n  python -m jaxrl_llm.export --workdir=runs/math'),
    (run.main, ' \\\n      --'), (compile_check.main, ' \\\n      --')])
def test_help_keeps_the_lines_of_its_example(capsys, parse, example):
  with pytest.raises(SystemExit):
    parse(['--help'])
  assert example in capsys.readouterr().out
