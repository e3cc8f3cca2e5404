"""Tests that programs compiled from shapes are those that a step runs."""

import types

import jax
import numpy as np
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.loop import rollout
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import arguments, build, programs, stages
from jaxrl_llm.sampling.stops import Stops
from tests.helpers import tiny


@pytest.mark.parametrize('fields', [
    pytest.param(
        dict(loss__kl_coef=0.1, learner__updates=2, loss__dual_clip=3.0),
        marks=pytest.mark.slow),
    pytest.param(
        dict(lora__rank=2, loss__kl_coef=0.1), marks=pytest.mark.slow),
    dict(sampling__chunk=4, sampling__prefill_prompts=1, sampling__top_p=.5,
         sampling__buckets='3', curriculum_prompts=6,
         selection='replay', replay__rounds=2, model__experts=4,
         model__experts_per_token=2, model__expert_width=8,
         loss__replay_experts=True),
    *(pytest.param(dict(fields, off_policy='jackpot'), marks=pytest.mark.slow)
      for fields in (
          dict(learner__updates=2), dict(jackpot__target='p_ref'),
          dict(jackpot__z='exact', jackpot__two_pass=True))),
    # LoRA trains the policy, and its anchor is the frozen model.
    dict(tiny.ACTOR, lora__rank=2, off_policy='jackpot', jackpot__z='exact',
         learner__updates=2, loss__kl_coef=.1),
    pytest.param(dict(
        tiny.ACTOR, lora__rank=2, off_policy='jackpot', jackpot__target='p_ref',
        actor__ppo=False, actor__distill_top_k=3, learner__updates=2),
                 marks=pytest.mark.slow)],
    ids=str)
def test_shapes_are_those_of_a_step(fields):
  config = tiny.load(**fields)
  parts = build.parts(config)
  made = programs.make_programs(
      config, config_lib.models(config), parts.programs.mesh,
      Stops(parts.task.tokenizer.stop_ids), stages.make_stages(config))
  seen = {}

  def spy(name, program):
    def call(*args):
      # The first time: arguments that are donated are gone afterwards.
      seen.setdefault(name, program.lower(*args).as_text())
      return program(*args)
    return call

  learner, sampler = parts.programs.learner, made.rollout_sampler.sampler
  parts = tiny.watch(tiny.changed(
      parts, learner=learner._replace(
          score=spy('score', learner.score),
          update=spy('update', learner.update)),
      sample=rollout.host_sampler(sampler._replace(
          generate=spy('sample', sampler.generate)), parts.programs.mesh)),
                     tiny.by_length).parts
  state, fixed, _ = tiny.begin(parts)
  before = jax.device_get(state.learners)
  state, report = train.take_step(parts, state, fixed, timing.Timer())
  if 'actor' in before:
    assert fixed.frozen['actor'] is None
    assert fixed.frozen['policy'] is not None  # LoRA
    assert {int(player.step) for player in state.learners.values()} == {2}
    assert not tiny.same(  # it is distilled
        before['actor'].params, state.learners['actor'].params)
    assert report.row['update/actor_kl'] > 1e-3
  lowered = {
      name: lower().as_text()
      for name, lower in arguments.lowered(made).items() if name != 'reshard'}
  assert seen.keys() == lowered.keys()
  assert ('score' in seen) == (
      'loss__kl_coef' in fields or 'selection' in fields
      or 'learner__updates' in fields or 'jackpot__target' in fields)
  for name, text in seen.items():
    assert lowered[name] == text, name


@pytest.mark.parametrize('fields, updates', [
    (dict(), 10), (dict(actor__lag=2), 6), (dict(actor__lag=9), 0),
    (dict(learner__epochs=3), 30), (dict(curriculum_prompts=8), 20)], ids=str)
def test_updates_of_a_run(fields, updates):
  """Of 5 steps with 2 updates; waves in flight at the end are not used."""
  config = tiny.load(steps=5, learner__updates=2, **fields)
  assert programs.updates_of_run(config, stages.make_stages(config)) == updates


def test_the_reshard_is_lowered_for_the_weights_that_move():
  config = tiny.load(model__dtype='bfloat16')
  parts = build.parts(config)
  made = programs.make_programs(
      config, config_lib.models(config), parts.programs.mesh, Stops((0,)),
      parts.stages)
  program = arguments.lowered(made)['reshard']().compile()
  shapes = arguments.abstract(made)
  moved = [
      (was, now) for was, now in zip(
          jax.tree.leaves(shapes.state['policy'].params),
          jax.tree.leaves(shapes.weights))
      if was.dtype != now.dtype]
  assert len(moved) > 5
  assert [x.shape for x in jax.tree.leaves(program.out_info)] == [
      now.shape for _, now in moved]
  assert {str(x.dtype) for x in jax.tree.leaves(program.out_info)} == {
      'bfloat16'}


def test_lengths_are_chosen_by_the_prompts_of_the_training_set():
  config = tiny.load(sampling__buckets='auto')
  parts = build.parts(config)
  lengths = {
      len(parts.task.tokenizer.encode(p.prompt)) for p in parts.task.train}
  made = parts.config
  assert config.sampling.buckets == 'auto'
  assert made.sampling.buckets and {*made.sampling.buckets} <= lengths
  assert parts.programs.sampler.sampler.prefill_lengths == made.sampling.buckets
  for asked, known in ((config, None), (tiny.load(), np.array([5]))):
    got = programs.with_lengths(
        asked, parts.programs.mesh, parts.programs.model,
        parts.stages.curriculum, known)
    assert got.sampling.buckets == ()


@pytest.mark.parametrize('fields, tokens', [
    ({}, 512), (dict(model__width=1024), 1024),
    (dict(learner__tokens_per_microbatch=70), 70)])
def test_tokens_of_a_microbatch(fields, tokens):
  made = build.parts(tiny.load(**{
      'learner__tokens_per_microbatch': 'auto', **fields}))
  assert made.config.learner.tokens_per_microbatch == tokens


@pytest.mark.parametrize('attention, needs', [
    ('cudnn', 'gpu'), ('splash', 'tpu')])
def test_an_attention_for_other_devices_is_refused(attention, needs):
  config = tiny.load(learner__attention=attention, model__dtype='bfloat16')
  with pytest.raises(ValueError) as error:
    build.parts(config)
  assert f'{attention} needs a {needs}, but this is a cpu' in str(error.value)


def test_the_rows_of_a_small_step_must_divide_over_the_shards():
  config = tiny.load(prompts_per_step=1, samples_per_prompt=6)
  mesh = types.SimpleNamespace(
      devices=np.array(jax.devices()), shape=dict(data=2, fsdp=2, tensor=1))
  with pytest.raises(ValueError, match='The 6 responses .* 4 data shards'):
    programs.make_programs(
        config, config_lib.models(config), mesh, Stops((0,)),
        stages.make_stages(config))
