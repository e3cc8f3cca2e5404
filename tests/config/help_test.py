"""Tests of --help: every field, every option, and the examples as they are."""

import argparse
import pathlib
import subprocess
import sys

import pytest

from jaxrl_llm import evaluate, export
from jaxrl_llm.config import table as table_lib
from jaxrl_llm.launch import compile_check, run
from jaxrl_llm.models.config import PRESETS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')


def test_help_lists_every_field_at_80_columns():
  program = ('import sys; from jaxrl_llm import config\n'
             'config.parse(sys.argv[1:])')
  for argv, steps in (([f'--config={CONFIG}'], '400'), ([], '100')):
    done = subprocess.run(
        [sys.executable, '-c', program, *argv, '--config.seed=5', '--help'],
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
