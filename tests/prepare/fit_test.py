"""Tests of the choice of tokens and recomputation by memory."""

import json

import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.prepare import arguments, build, describe, fit, memory
from tests.helpers import tiny

AUTO = dict(learner__tokens_per_microbatch='auto', learner__remat='auto')
# A row has at most 18 tokens, and a batch 288.
TOKENS = 'tokens_per_microbatch'


@pytest.fixture(name='large')
def _large(monkeypatch):
  """Makes the tiny model count as a large one, on a machine of the given size.
  """
  monkeypatch.setattr(config_lib, 'is_large', lambda config: True)

  def make(room):
    monkeypatch.setattr(memory, 'available', lambda mesh: room)
  return make


def pairs(default, **fields):
  """Returns the options of a config, whose default of `tokens` is given."""
  config = tiny.load('run', **{**AUTO, **fields})
  asked = config.copy_and_resolve_references().learner
  if config.learner[TOKENS] == 'auto':
    config.learner[TOKENS] = default
  if config.learner.remat == 'auto':
    config.learner.remat = 'none'
  return [(option.learner[TOKENS], option.learner.remat)
          for option in fit.options(asked, config)]


def test_tokens_are_halved_before_anything_is_computed_again():
  rest = ['matmuls', 'attention', 'full']
  assert pairs(512) == [(x, 'none') for x in (512, 256, 128, 64)] + [
      (64, kind) for kind in rest]
  # At least one row of any length.
  assert pairs(40) == [(40, 'none'), (20, 'none')] + [
      (20, kind) for kind in rest]
  # A list of 1024 tokens is no shorter than one of 2048: it has all rows.
  assert pairs(2048) == [(2048, 'none'), (256, 'none')] + [
      (256, kind) for kind in rest]


def test_what_the_user_has_given_stays():
  assert pairs(0, learner__tokens_per_microbatch=70) == [
      (70, kind) for kind in ('none', 'matmuls', 'attention', 'full')]
  assert pairs(64, learner__remat='full') == [(64, 'full'), (32, 'full')]
  assert pairs(
      0, learner__tokens_per_microbatch=70, learner__remat='full') == [
          (70, 'full')]


def test_the_figure_is_that_of_the_program_that_runs(parts):
  """Lower bounds: state, batch and logits of the shortest step."""
  needs = fit.needed(parts.programs)
  x = arguments.abstract(parts.programs)
  held = arguments.size((x.state, x.batch))
  params = arguments.size(x.state['policy'].params)
  # The gradient; and the activations, which are a few vectors for each token.
  assert held + params < needs < held + params + 40e6
  anchored = build.parts(tiny.load('unused', loss__kl_coef=0.1))
  # Another loss is another program: the compiler shares some buffers of a list.
  assert fit.needed(anchored.programs) > needs + params / 2


def test_a_run_takes_what_fits_and_keeps_it(tmp_path, large, monkeypatch):
  # 160 GB would leave less than a tenth of the memory free.
  needs = {512: 300, 256: 160, 128: 100}
  monkeypatch.setattr(
      fit, 'needed', lambda made: 10 ** 9 * needs[made.config.learner[TOKENS]])
  large(int(150e9 / fit.USED))
  train.train(tiny.load(tmp_path, steps=1, **AUTO))
  chosen = json.loads((tmp_path / 'choices.json').read_text())
  assert chosen['learner.' + TOKENS] == 128
  assert chosen['learner.remat'] == 'none'
  # The run goes on with its choice, on a machine with more memory too.
  needs.clear()
  large(10 ** 12)
  train.train(tiny.load(tmp_path, steps=2, **AUTO))
  assert json.loads((tmp_path / 'choices.json').read_text()) == chosen


def test_the_choice_costs_no_compile(parts, tmp_path, large):
  """The program of the figure is the one that updates."""
  config = tiny.load(
      tmp_path, steps=1, **{**AUTO, 'learner__tokens_per_microbatch': 512})
  large(64 * 10 ** 9)
  names = tiny.compiled()
  train.train(config)
  assert names.count('jit(update)') == len(parts.programs.learner.plans(16))


def test_a_run_says_what_it_has_chosen(parts, tmp_path, large, monkeypatch):
  assert describe.updates(parts) == (
      'An update takes lists of 224 tokens with learner.remat=none on each '
      'device.\n')
  large(64 * 10 ** 9)
  monkeypatch.setattr(fit, 'needed', lambda made: 4_560_000_000)
  assert 'learner.remat=none and needs 4.6 GB on each device' in (
      describe.updates(build.parts(tiny.load(tmp_path, **AUTO))))


def test_nothing_that_fits_is_refused_with_advice(tmp_path, large, monkeypatch):
  monkeypatch.setattr(fit, 'needed', lambda made: 7 * 10 ** 10)
  large(6 * 10 ** 10)
  with pytest.raises(ValueError, match='lower max_prompt') as error:
    build.parts(tiny.load(tmp_path, **AUTO))
  assert ('learner.tokens_per_microbatch=64 and learner.remat=full an update '
          'still needs 70.0 GB, but a device has 60.0 GB') in str(error.value)
  assert '\n' not in str(error.value)
  # The user's own numbers are not judged, nor are evaluations.
  build.parts(tiny.load(tmp_path, learner__remat='none'))
  build.parts(tiny.load(tmp_path, **AUTO), training=False)
