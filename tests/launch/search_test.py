"""Tests of the search for the largest sizes, with a fake compiler."""

import pytest

from jaxrl_llm.launch.aot import check, chips, report, search
from tests.launch.check_test import SMALL
from tests.launch.fits_report_test import GIB, made, phase


@pytest.fixture
def compiler(monkeypatch):
  """Function that sets the memory use and returns the tried (phase, value)."""
  def use(gib):
    tried = []

    def run(config, topology, only):
      value = (config.sampling.slots if only == ('sample',) else
               config.learner.tokens_per_microbatch)
      tried.append((*only, value))
      return made(phase(*only, activations=gib(value)))

    monkeypatch.setattr(check, 'run', run)
    return tried

  monkeypatch.setattr(
      check, 'build', lambda config, _, build=check.build:
      build(config, chips.topology('cpu:1')))
  return use


V5E = chips.Topology('v5e:2x2', chips.CHIPS['v5e'], [None] * 4)


@pytest.mark.parametrize('per_slot, slots', [
    (0.1, 32), (1.0, 11), (2.0, 7), (14.0, 1)])
def test_the_largest_that_fits(compiler, per_slot, slots):
  # 14.17 GiB may be used. 32 requests in n waves are 32, 16, 11, 8, ... slots;
  # a row has 56 tokens, an update 16 rows, and 4 of them take 12 GiB.
  tried = compiler(
      lambda value: value * (
          per_slot if tried[-1][0] == 'sample' else 3.0 / 56))
  said = []
  config = search.largest(
      check.load('configs/countdown.py', SMALL), V5E, said.append)
  assert config.sampling.slots == slots
  assert config.learner.tokens_per_microbatch == 4 * 56
  assert len(said) == len(tried) < 12
  assert ('sample', 32) == tried[0] and ('update', 16 * 56) in tried


def test_a_size_that_the_run_chooses_itself(monkeypatch, compiler):
  """A candidate keeps `auto`, which is no number, until it is built."""
  fields = {name: value for name, value in SMALL.items()
            if name != 'learner.tokens_per_microbatch'}
  built = compiler(None)

  def run(config, topology, only):
    found = check.build(config, topology)
    built.append(found.config.learner.tokens_per_microbatch)
    return made(phase(*only, activations=1))

  monkeypatch.setattr(check, 'run', run)
  config = search.largest(
      check.load('configs/countdown.py', fields), V5E, lambda line: None)
  assert len(built) == 2 and all(isinstance(x, int) for x in built)
  assert config.sampling.slots == 32


def test_if_nothing_fits_the_smallest_is_left_for_the_verdict(compiler):
  compiler(lambda value: 20.0)
  config = search.largest(
      check.load('configs/countdown.py', SMALL), V5E, lambda line: None)
  assert config.sampling.slots == 1
  assert config.learner.tokens_per_microbatch == 56


def test_faults_of_the_decode_loop_do_not_stop_it(monkeypatch, compiler):
  compiler(lambda value: 1.0)
  monkeypatch.setattr(
      report, 'verdict', lambda found: ['a copy of the cache.'])
  config = search.largest(
      check.load('configs/countdown.py', SMALL), V5E, lambda line: None)
  assert config.sampling.slots == 32


def test_emulated_devices_have_no_limit(compiler):
  compiler(lambda value: value * GIB)
  with pytest.raises(ValueError, match='cpu:1 has none: name a slice'):
    search.largest(check.load('configs/countdown.py', SMALL),
                   chips.topology('cpu:1'), print)
