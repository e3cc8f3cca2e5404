"""Tests of `sampling.weights` and `sampling.kv` in a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, describe, memory
from tests.helpers import tiny

SMALL = dict(sampling__weights='int8', sampling__kv='float8')


@pytest.fixture(name='parts', scope='module')
def _parts():
  return build.parts(tiny.load(**SMALL, off_policy='jackpot'))


def test_a_step_is_written_by_8_bits_and_rejects_what_differs(parts):
  watched = tiny.watch(parts, tiny.by_length)
  state, fixed, _ = tiny.begin(watched.parts)
  state, report = train.take_step(
      watched.parts, state, fixed, timing.Timer())
  batch, = watched.batches
  assert batch.mask.sum() > 50
  # Equal policies would differ by the rounding of float32.
  assert 1e-4 < report.row['update/behaviour_gap_max'] < 1.0
  assert 0.9 < report.row['update/obrs_acceptance'] < 1 - 1e-4


def test_evaluations_are_not_quantised(parts):
  made = parts.programs
  assert made.rollout_sampler.sampler.sampler.kv == 'float8'
  assert made.sampler.sampler.kv is None
  kinds = jax.tree.map(lambda x: x.dtype, made.rollout_sampler.weights.result)
  assert kinds['embed'] == kinds['layers']['q'] == jnp.int8
  full = made.policy.sampling(None).result
  assert {x.dtype for x in jax.tree.leaves(full)} == {jnp.dtype('float32')}


def test_weights_alone_leave_the_sampler_of_evaluations_what_it_is():
  made = build.parts(tiny.load(sampling__weights='float8')).programs
  assert made.sampler is made.rollout_sampler.sampler


def test_the_printed_layout_has_the_scales(parts):
  training, sampling = describe.layout(parts).split('Sampling:')
  assert '_scale' not in training and 'int8' not in training
  line = next(x for x in sampling.splitlines() if 'layers/down ' in x)
  assert '(1, 32, 32)' in line and 'int8' in line and ' 1,024 ' in line
  line = next(x for x in sampling.splitlines() if 'layers/down_scale' in x)
  assert '(1, 32)' in line and 'float32' in line and ' 128 ' in line


@pytest.mark.parametrize('field', ['weights', 'kv'])
def test_the_exact_normaliser_needs_full_precision(field):
  with pytest.raises(ValueError, match=(
      f'which sampling.{field}=int8 does not have: use jackpot.z=topk')):
    tiny.load(off_policy='jackpot', jackpot__z='exact',
              **{f'sampling__{field}': 'int8'})


def test_the_estimate_of_memory_knows_the_types():
  def parts_of(**fields):
    config = tiny.load(**fields)
    return {part.name: part.bytes for part in memory.parts(
        config, config_lib.models(config), dict(data=1, fsdp=1, tensor=1),
        build.stages_lib.make_stages(config), 6, training=True)}

  # Few rows in an update, so that the sampler needs more.
  few = dict(learner__tokens_per_microbatch=1, learner__vocab_chunk=1)
  name = 'the cache of the decode slots'
  assert parts_of(**few)[name] == 8 * 19 * 2 * 16 * 4
  assert parts_of(**few, sampling__kv='int8')[name] == 8 * 19 * 2 * (16 + 4)
  lora = parts_of(lora__rank=2)['the weights']
  both = parts_of(lora__rank=2, sampling__weights='int8')['the weights']
  assert np.isclose(both / lora, 1.25)
