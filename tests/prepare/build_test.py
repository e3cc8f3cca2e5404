"""Tests of the parts made from a config: capacities, advantages, layouts."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm import tasks
from jaxrl_llm.evaluation import responses
from jaxrl_llm.learner import actor, learner, optimizer, rejection
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.loop import rollout
from jaxrl_llm.models import attention
from jaxrl_llm.prepare import build, choices, describe, programs, stages
from jaxrl_llm.sampling import plan
from jaxrl_llm.sampling.generate import SamplerStats
from jaxrl_llm.sampling.stops import Stops
from jaxrl_llm.types import Prompts, Requests, Rollouts
from tests.helpers import devices, tiny


def test_every_mix_of_requests_fits_any_number_of_shards(monkeypatch):
  """Training steps and evaluations, with a sampler that only echoes."""
  def echo(mesh, params, queue, *rest, cfg, sampler):
    prompts, requests, count, _ = queue
    row = requests.prompt  # of its shard's own prompts
    shards = len(count)
    own = jnp.repeat(jnp.arange(shards), len(row) // shards)
    problem = prompts.problem_id[own * (len(prompts.length) // shards) + row]
    like = Rollouts(
        tokens=problem[:, None], length=row, logprobs=row, entropy=row,
        truncated=row, problem_id=problem, sample=requests.sample,
        policy_step=jnp.full(len(row), rest[-1]))
    return like, SamplerStats(steps=count, busy=2 * count)

  rng = np.random.default_rng(0)
  monkeypatch.setattr(programs.generate_lib, 'sharded_generate', echo)
  mesh = build.sharding.make_mesh(1, 1, 1)
  for _ in range(15):
    prompts_per_step, group, shards = rng.integers(1, 9, 3)
    samples, problems = rng.integers(1, 13, 2)
    monkeypatch.setattr(
        build.sharding, 'data_shards', lambda _: int(shards))
    config = tiny.load(
        prompts_per_step=prompts_per_step, samples_per_prompt=group,
        advantage='reinforce')
    curriculum = stages.make_stages(config).curriculum
    made = programs.make_sampler(
        config, mesh, None, Stops(()), curriculum)
    sample = rollout.host_sampler(made, mesh)
    calls = [(np.repeat(np.arange(prompts_per_step), group),
              np.tile(np.arange(group), prompts_per_step))]
    room = dict(
        max_prompts=prompts_per_step, max_requests=prompts_per_step * group)
    calls += responses.calls([range(samples)] * problems, **room)
    # What an evaluation lacks when it is taken up again.
    done = rng.integers(0, 3, problems) * samples // 2
    calls += responses.calls([range(n, samples) for n in done], **room)
    for problem, number in calls:
      rows, local = np.unique(problem, return_inverse=True)
      prompts = Prompts(
          tokens=np.zeros((len(rows), 3), np.int32),
          length=np.ones(len(rows), np.int32),
          problem_id=(100 + rows).astype(np.int32))
      requests = Requests(
          prompt=local.astype(np.int32), sample=number.astype(np.int32),
          budget=np.ones(len(local), np.int32))
      got, use = sample(
          None, prompts, requests, jax.random.key(0), None, policy_step=7)
      np.testing.assert_array_equal(got.problem_id, 100 + problem)
      np.testing.assert_array_equal(got.sample, number)
      assert (got.policy_step == 7).all()
      assert use['busy'] == 2 * len(problem)
      assert use['steps'] == -(-len(problem) // shards)
    assert made.generate._cache_size() == 1


def test_every_wave_of_a_curriculum_fits_any_number_of_shards():
  """Groups of different sizes, up to the capacities it declares."""
  rng = np.random.default_rng(1)
  for _ in range(300):
    prompts, least, most, shards = rng.integers(1, [13, 6, 6, 9])
    most += least
    count = rng.integers(least, most, prompts, endpoint=True)
    capacity = int(rng.integers(count.sum(), prompts * most, endpoint=True))
    per_shard = -(-capacity // int(shards))
    requests = rollout.requests(
        np.repeat(np.arange(prompts), count),
        np.concatenate([np.arange(n) for n in count]), 1)
    words = Prompts(
        tokens=np.ones((prompts, 2), np.int32),
        length=np.ones(prompts, np.int32), problem_id=np.arange(prompts))
    plan.plan(
        words, requests, shards=int(shards), requests_per_shard=per_shard,
        prompts_per_shard=programs.prompts_per_shard(
            int(prompts), per_shard, int(least), int(shards)))


@pytest.mark.parametrize('prompt', ['a\ud800', 5, None])
def test_a_prompt_that_is_no_text_is_named(parts, prompt):
  problems = [tasks.Problem(0, '1,2>3:', ''), tasks.Problem(1, prompt, '')]
  with pytest.raises(ValueError, match='prompt .* of the set .mine. is no'):
    build.drop_long_prompts(
        problems, parts.task.tokenizer, parts.config, 'mine')


def test_the_state_to_restore_into_is_that_of_a_run(parts):
  state, _, _ = tiny.begin(parts)
  like = parts.programs.learner.state
  assert jax.tree.structure(like) == jax.tree.structure(state.learners)
  for a, b in zip(*map(jax.tree.leaves, (like, state.learners))):
    assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)


def test_numbers_of_the_loss_are_the_configs():
  config = tiny.load(
      sampling__temperature=.7, loss__clip_low=.1, loss__clip_high=.3,
      loss__entropy_bonus=.02, loss__kl_coef=.4, loss__importance='icepop',
      loss__importance_low=.6, loss__importance_cap=5, loss__dual_clip=3)
  f = np.float32
  assert choices.loss_params(config) == update_lib.LossParams(
      temperature=f(.7), entropy_bonus=f(.02), kl_coef=f(.4), budget=f(10),
      objective=dict(clip_low=f(.1), clip_high=f(.3), dual_clip=f(3)),
      importance=dict(low=f(.6), cap=f(5)))
  plain = choices.loss_params(tiny.load())
  assert plain.objective == dict(clip_low=f(.2), clip_high=f(.2))
  assert plain.importance == {}
  # Only what the objective uses is there.
  for objective, names in (
      ('clip', {'clip_low', 'clip_high', 'dual_clip'}),
      ('gspo', {'clip_low', 'clip_high', 'dual_clip'}),
      ('cispo', {'clip_low', 'clip_high'}), ('no_clip', set())):
    changed = config.copy_and_resolve_references()
    changed.loss.objective = objective
    assert choices.loss_params(changed).objective.keys() == names


def test_static_choices_of_the_learner_are_the_configs():
  config = tiny.load(
      learner__tokens_per_microbatch=70, learner__remat='full',
      learner__unroll=3, learner__vocab_chunk=64, loss__objective='gspo',
      loss__aggregation='constant', loss__importance='icepop',
      loss__kl_estimator='k1', off_policy='jackpot', jackpot__mask='expected',
      jackpot__target='p_ref', jackpot__top_k=7)
  got = choices.learner_config(config, tokens=60)
  assert vars(got) == dict(
      tokens=60, max_prompt=9, max_response=10, samples=4,
      whole=True, term='none',
      objective='gspo', aggregation='constant', importance='icepop',
      kl_estimator='k1', vocab_chunk=64, remat='full', attention='auto',
      unroll=3, row_facts=False, rejection=rejection.Rejection(
          target='p_ref', mask='expected', top_k=7), actor=None, teacher=None)
  plain = choices.learner_config(tiny.load())
  assert plain.rejection is None


def test_static_choices_of_an_actor_are_the_configs():
  """F is the truncation at c1, unless loss.importance says another."""
  fields = dict(
      actor__model__preset='tiny', actor__ppo=False, actor__distill=.5,
      actor__distill_top_k=3, actor__kl_target=.1)
  jackpot = dict(off_policy='jackpot', jackpot__c1=4)
  assert choices.learner_config(tiny.load(**fields)).actor == actor.Training(
      ppo=False, distill=.5, distill_top_k=3, controlled=True,
      importance='none')
  clips = dict(clip_low=np.float32(.2), clip_high=np.float32(.2))
  for more, kind, numbers in (
      (jackpot, 'tis', dict(cap=4)),
      (dict(loss__importance='icepop', off_policy='jackpot'), 'icepop',
       dict(low=.5, cap=2)),
      (dict(loss__importance='tis'), 'tis', dict(cap=2))):
    config = tiny.load(actor__model__preset='tiny', **more)
    got = choices.learner_config(config)
    assert got.actor == actor.Training(importance=kind)
    assert got.rejection is None or got.rejection.decoupled
    assert choices.loss_params(config).actor == {**clips, **numbers}


@pytest.mark.parametrize('fields, whole', [
    ({}, True), (dict(learner__updates=2), False),
    (dict(selection='replay', replay__rounds=2), False)])
def test_whether_all_rows_of_a_group_are_in_an_update(
    monkeypatch, fields, whole):
  seen, make = [], learner.make_learner
  monkeypatch.setattr(
      learner, 'make_learner', lambda players, cfg, **kwargs: (
          seen.append(cfg.whole), make(players, cfg, **kwargs))[1])
  build.parts(tiny.load(**fields))
  assert seen == [whole]


@pytest.mark.parametrize('fields, horizon', [
    ({}, 12), (dict(learner__updates=2, learner__epochs=3), 72),
    (dict(optimizer__decay_steps=5), 5),
    # 12 steps of 6 groups are 18 batches of 4.
    (dict(curriculum_prompts=6), 18),
    # 32 rows are 2 mini-batches of 16.
    (dict(selection='replay', replay__rounds=2), 24)])
def test_the_learning_rate_counts_updates_over_its_horizon(
    fields, horizon, monkeypatch):
  made, make = [], optimizer.make_optimizer
  monkeypatch.setattr(
      optimizer, 'make_optimizer',
      lambda *args: made.append(args) or make(*args))
  build.parts(tiny.load(
      steps=12, optimizer__schedule='linear', **fields))
  rate = make(*made[0]).schedule
  assert rate(0) > rate(horizon - 1) > rate(horizon) == 0


def test_attention_is_chosen_for_the_devices_of_the_mesh(monkeypatch):
  asked = []
  monkeypatch.setattr(
      attention, 'resolve', lambda *args: asked.append(args) or 'xla')
  build.parts(tiny.load())
  # Rows of learning have 9 + 10 tokens, those of prefill 9. The first call asks
  # whether prompts can be shared.
  assert [(name, device.platform, length, model.width)
          for name, device, length, model in asked] == [
              ('auto', 'cpu', 19, 32), ('auto', 'cpu', 9, 32)]


def test_the_sampler_is_the_configs(parts):
  config = tiny.load(
      sampling__temperature=.5, sampling__top_k=3, sampling__top_p=.8,
      sampling__min_p=.1)
  other = build.parts(config)
  values = {k: float(v) for k, v in vars(other.sampling()).items()}
  assert values == pytest.approx(dict(
      temperature=.5, top_k=3, top_p=.8, min_p=.1))
  assert float(other.sampling(temperature=0.0).temperature) == 0
  # A change of value is no change of type, which would compile again.
  kinds = [[x.dtype for x in jax.tree.leaves(p.sampling())]
           for p in (parts, other)]
  assert kinds[0] == kinds[1]


def test_layout_shows_both(parts):
  text = describe.layout(parts)
  assert text.startswith('Training:') and 'Sampling:' in text
  assert text.count('layers/q ') == 2


@pytest.mark.parametrize('fields, words', [
    (dict(model__vocab_size=17), ['model.vocab_size=17', '19 tokens']),
    (dict(max_prompt=5), ['max_prompt=5', 'the shortest has 6']),
    (dict(mesh__data=2), ['mesh.data=2', 'there are 1']),
    (dict(mesh__tensor=2), ['mesh.tensor=2', '1 devices']),
])
def test_what_does_not_fit_is_refused(fields, words):
  with pytest.raises(ValueError) as error:
    build.parts(tiny.load(**fields))
  assert '\n' not in str(error.value)
  for word in words:
    assert word in str(error.value)


@pytest.mark.parametrize('missing', ['train', 'heldout'])
def test_a_task_without_problems_is_refused(parts, monkeypatch, missing):
  config, task = tiny.load(), parts.task
  empty = types.SimpleNamespace(**{
      'tokenizer': task.tokenizer, 'train': task.train,
      'heldout': task.heldout, missing: []})
  monkeypatch.setattr(tasks, 'get', lambda *_, **__: empty)
  with pytest.raises(
      ValueError, match=f"countdown has no problems in its set '{missing}'"):
    build.parts(config)


def refusals():
  """Returns the error messages for wrong meshes of eight devices."""
  said = []
  for fields in (
      dict(mesh__tensor=2),
      dict(mesh__tensor=4, model__heads=4, model__kv_heads=4,
           model__mlp_width=34, model__head_dim=8),
      dict(mesh__fsdp=8, mesh__data=1, model__width=36),
      dict(learner__updates=4),
      dict(mesh__tensor=4, mesh__learner_tensor=3),
      dict(mesh__data=1, mesh__fsdp=4, mesh__tensor=2, mesh__learner_tensor=1,
           model__kv_heads=2, learner__updates=4),
      dict(mesh__tensor=2, mesh__learner_tensor=1, model__kv_heads=2,
           lora__rank=2),
      dict(mesh__fsdp=4, mesh__tensor=2, mesh__learner_tensor=1,
           model__kv_heads=2, model__width=36),
      dict(mesh__data=3),
      dict(mesh__data=4, mesh__fsdp=4)):
    try:
      build.parts(tiny.load(**fields))
      said.append('')
    except ValueError as error:
      said.append(str(error))
  return said


def test_meshes_that_do_not_divide_are_refused():
  wanted = (
      ['mesh.tensor=2', 'model.kv_heads=1'],
      ['layers/down', '34', 'mesh.tensor x mesh.fsdp = 4 x 1'],
      ['layers/', '36', 'mesh.fsdp = 8'],
      ['The 4 responses of an optimiser step', '8 data shards',
       'multiple of 8'],
      ['mesh.learner_tensor=3 does not divide mesh.tensor=4: use a divisor'],
      ['The 4 responses', "learner's 8 data shards (mesh.data x mesh.fsdp "
       'x mesh.tensor / mesh.learner_tensor)', 'multiple of 8'],
      ['mesh.learner_tensor=1 does not fit lora.rank=2'],
      ['36', 'mesh.fsdp = 8', 'with mesh.learner_tensor=1 the mesh (data, '
       'fsdp, tensor) is 1, 8, 1.'],
      ['mesh.data=3', 'there are 8'],
      ['mesh.data=4', 'mesh.fsdp=4', 'there are 8'])
  for said, words in zip(devices.run(refusals), wanted, strict=True):
    assert said and '\n' not in said
    for word in words:
      assert word in said
