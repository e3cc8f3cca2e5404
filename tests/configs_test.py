"""The configs we ship: documents, valid, and so is every trial of a sweep."""

import pathlib

import pytest

from jaxrl_llm import config, config_file
from launch import hyper

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / 'configs').rglob('*.py'))


def test_there_are_some():
  assert 'configs/countdown.py' in FILES


@pytest.mark.parametrize('name', FILES)
def test_a_config_is_a_document_and_valid(name):
  module = config_file.load_file(str(ROOT / name))
  assert f'--config={name}' in module.__doc__
  specs = [name, *(f'{name}:{arg}' for arg in getattr(module, 'ARGS', ()))]
  for spec in specs:
    path = str(ROOT / spec)
    config.validate(config.load(path))
    trials = module.get_hyper(hyper)
    assert len(trials) > 1
    for trial in trials:
      config.validate(config.load(path, trial))
