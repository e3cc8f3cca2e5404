"""Tests of the estimate of memory: its parts, and the sizes that it refuses."""

import types

import jax
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm.prepare import build, memory, stages
from jaxrl_llm.sampling import decode
from tests.helpers import tiny

MANY = 2 * 10 ** 9


def size(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def estimate(training=True, mesh=(1, 1, 1), heldout=6, **fields):
  config = tiny.load('unused', **fields)
  found = memory.parts(
      config, config_lib.models(config),
      dict(zip(('data', 'fsdp', 'tensor'), mesh)), stages.make_stages(config),
      heldout, training)
  return {part.name: part.bytes for part in found}


def test_parts_are_those_of_the_arrays(run):
  parts = estimate()
  learner = run.parts.programs.learner.state['policy']
  params, moments = size(learner.params), size(learner.opt_state)
  weights = parts['the weights, with their gradients and moments']
  # The optimiser's state also counts steps.
  assert weights == 4 * params and weights - (2 * params + moments) <= 64
  cache = jax.eval_shape(lambda: decode.empty(
      8, 19, cfg=run.parts.programs.model, unroll=False))
  assert parts.get('the cache of the decode slots', size(cache)) == size(cache)
  fewer = estimate(learner__tokens_per_microbatch=1, learner__vocab_chunk=1)
  assert fewer['the cache of the decode slots'] == size(cache)


def test_what_changes_the_estimate():
  weights = 'the weights, with their gradients and moments'
  base = estimate()
  assert estimate(mesh=(2, 1, 1))[weights] == 2 * base[weights]
  assert estimate(mesh=(1, 2, 1))[weights] == base[weights]
  few = estimate(training=False)
  assert few['the weights'] == base[weights] // 4
  half = estimate(training=False, model__dtype='bfloat16')
  assert half['the weights'] == few['the weights'] // 2
  lora = estimate(lora__rank=2)
  assert lora['the weights'] == base[weights] // 4
  held = estimate(selection='random', random__rounds=3)
  assert held['the rollouts of a step'] == 3 * base['the rollouts of a step']


@pytest.mark.parametrize('field', [
    'prompts_per_step', 'samples_per_prompt', 'max_prompt', 'max_response',
    'model.width', 'model.vocab_size', 'model.mlp_width',
    'lora.rank', 'eval.samples', 'curriculum_prompts',
    'sampling.steps_per_refill'])
def test_sizes_beyond_the_memory_are_refused(field, monkeypatch):
  monkeypatch.setattr(memory, 'available', lambda mesh: 32 * 10 ** 9)
  config = tiny.load('unused', **{field.replace('.', '__'): MANY})
  with pytest.raises(ValueError, match='needs at least .* GB') as error:
    build.parts(config)
  named = 'config.model' if field.startswith('model.') else (
      'prompts_per_step' if field == 'curriculum_prompts' else field)
  assert named in str(error.value) and '\n' not in str(error.value)


@pytest.fixture(name='mesh')
def _mesh(monkeypatch):
  """Makes a mesh of four devices with the given statistics of memory."""
  def make(platform, stats):
    device = types.SimpleNamespace(
        platform=platform, memory_stats=lambda: stats)
    monkeypatch.setattr(jax, 'local_devices', lambda: [device])
    devices = types.SimpleNamespace(flat=[device] * 4, size=4)
    return types.SimpleNamespace(
        devices=devices, shape=dict(data=1, fsdp=4, tensor=1))
  return make


def test_the_memory_of_an_accelerator_is_that_of_its_devices(mesh):
  assert memory.available(mesh('gpu', {'bytes_limit': 100})) == 400
  assert memory.available(mesh('tpu', {})) is None
  assert memory.available(mesh('tpu', None)) is None
  assert memory.available(mesh('cpu', None)) > 10 ** 8


def test_arrays_of_the_host_count_where_the_host_computes(mesh):
  config = tiny.load('unused', prompts_per_step=10 ** 9)

  def check(mesh):
    memory.check(config, config_lib.models(config), mesh,
                 stages.make_stages(config), heldout=6)

  check(mesh('gpu', {'bytes_limit': 10 ** 9}))
  with pytest.raises(ValueError, match='are the rollouts of a step: lower'):
    check(mesh('cpu', None))
  config = tiny.load(
      'unused', sampling__carry_over=True, sampling__carry_groups=10 ** 9)
  with pytest.raises(ValueError, match=r'over: lower sampling\.carry_groups'):
    check(mesh('cpu', None))
