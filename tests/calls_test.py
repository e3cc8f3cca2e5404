"""Tests of the four calls of a loop of one's own, and of their example."""

import contextlib
import importlib.util

import jax
import numpy as np
import pytest

import jaxrl_llm
from jaxrl_llm import checkpoint, export
from jaxrl_llm import config as config_lib
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.prepare import build, describe
from jaxrl_llm.sampling import generate
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.tasks import Problem
from tests.helpers import devices, tiny

P, N, L, T = 16, 8, 1, 1  # sizes of the example, whose programs are these
DIGITS = CharTokenizer('0123456789')
SMALL = dict(
    width=64, layers=1, heads=2, kv_heads=1, head_dim=32, mlp_width=128,
    slots=32, compilation_cache=None)


def sampler(**fields):
  return jaxrl_llm.Sampler('tiny', DIGITS, **{
      **dict(prompts_per_step=P, samples_per_prompt=N, max_prompt=L,
             max_response=T), **SMALL, **fields})


@pytest.fixture(scope='module', autouse=True)
def compiled():
  """Lets samplers and learners with equal options share their programs."""
  make, known = build.parts, {}

  def parts(config, **options):
    name = config_lib.to_json(config), *options
    if name not in known:
      known[name] = make(config, **options)
    return known[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, 'parts', parts)
    yield


@pytest.fixture(scope='module')
def made(compiled):
  """A learner whose programs are compiled, and the weights that it began with.
  """
  learner = jaxrl_llm.Learner(sampler(), learning_rate=5e-4)
  return learner, jax.device_get(learner.state)


@pytest.fixture
def learner(made):
  """The learner before its first step."""
  return begun(*made)


def begun(learner, state):
  """Puts a learner and its sampler back to a state of the beginning."""
  learner.state = jax.device_put(state, jax.tree.map(
      lambda x: x.sharding, learner.parts.programs.learner.state['policy']))
  learner.steps = learner.sampler.calls = 0
  return learner


def digits(count=P):
  return [str(i % 10) for i in range(count)]


def values(samples):
  """Advantages that depend on each row."""
  return np.sin(np.arange(len(samples.texts)) + samples.tokens[:, 0])


def test_the_example_learns_and_goes_on(tmp_path):
  """From 1 right digit of 12 tokens on; the second half in another process
  would see no difference either: nothing but the folder is left of the first.
  """
  spec = importlib.util.spec_from_file_location(
      'own_loop', devices.ROOT / 'notebooks' / 'own_loop.py')
  loop = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loop)
  said = []
  whole = loop.main('tiny', 26, None, said.append, **SMALL)
  assert len(said) == 3 and np.mean(whole[:5]) < .2 < .4 < np.mean(whole[-5:])
  begun = loop.main('tiny', 13, str(tmp_path), said.append, **SMALL)
  assert begun == whole[:13]
  assert loop.main('tiny', 26, str(tmp_path), said.append, **SMALL) == whole


def test_samples_are_those_of_the_sampler_alone(learner):
  """As notebooks/loop.py calls it, without config, mesh and host code."""
  program = jax.jit(lambda *args: generate.generate(
      *args, cfg=learner.parts.programs.model,
      sampler=generate.SamplerConfig(
          slots=32, max_response=T, stop_ids=DIGITS.stop_ids)))
  learner.sampler.calls = 3  # which with the seed makes the key
  samples = learner.sampler.sample(digits(), N)
  prompts = rollout.encode(
      [Problem(i, text, '') for i, text in enumerate(digits())], DIGITS, L)
  row, number = np.repeat(np.arange(P), N), np.tile(np.arange(N), P)
  rollouts, _ = jax.device_get(program(
      learner.state.params, Queue(
          prompts, rollout.requests(row, number, T), P * N),
      jax.random.fold_in(jax.random.key(0), 3), SamplingParams(), 0))
  np.testing.assert_array_equal(samples.prompt, row)
  np.testing.assert_array_equal(samples.tokens, rollouts.tokens)
  np.testing.assert_array_equal(samples.lengths, rollouts.length)
  np.testing.assert_allclose(samples.logprobs, rollouts.logprobs, atol=1e-5)
  assert samples.texts == rollout.decode(rollouts, DIGITS)
  assert len({*samples.texts}) > 5 and samples.truncated.any()


def test_any_number_of_prompts_is_one_program(learner):
  """What is drawn for a prompt depends on no other one."""
  writer = learner.sampler
  drawn = []
  for count, n in ((P + 3, N), (5, N), (3, 2 * P * N + 1), (2 * P, 1)):
    writer.calls = 0
    drawn.append(writer.sample(digits(count), n))
    assert len(drawn[-1].texts) == count * n
    np.testing.assert_array_equal(
        drawn[-1].prompt, np.repeat(np.arange(count), n))
  more, fewer, many, _ = drawn
  np.testing.assert_array_equal(more.tokens[:5 * N], fewer.tokens)
  np.testing.assert_array_equal(
      more.tokens[:3 * N].reshape(3, N),
      many.tokens.reshape(3, -1)[:, :N])
  made = writer.parts.programs.rollout_sampler.sampler
  assert made.generate._cache_size() == 1
  assert (writer.sample(digits(3), N).tokens != more.tokens[:3 * N]).any()
  greedy = writer.sample(digits(3), 4, temperature=0).tokens.reshape(3, 4)
  assert (greedy == greedy[:, :1]).all()


def test_a_step_is_the_update_of_the_learner_alone(learner):
  parts, state = learner.parts, jax.tree.map(jax.numpy.copy, learner.state)
  samples = learner.sampler.sample(digits(), N)
  row, length = samples.prompt, samples.lengths
  batch = rows_lib.learner_batch(
      samples.rows, np.arange(P * N), values(samples), np.ones(P * N, bool))
  plan = parts.programs.learner.plan(
      row % 10, samples.rows.prompt_length, length)
  wanted, metrics = parts.programs.learner.update(
      {'policy': state}, batch, plan, learner._fixed.loss)
  got = learner.step(samples.batch(values(samples)))
  assert tiny.same(learner.state, wanted['policy'])
  assert got['update/loss'] == float(metrics['loss']) != 0
  assert got['update/tokens'] == length.sum()


def test_rows_in_another_order_or_left_out_give_the_same_step(learner, made):
  samples = learner.sampler.sample(digits(), N)
  order = np.random.default_rng(0).permutation(P * N)
  most = values(samples) > -.5
  first = learner.step(samples.batch(values(samples), most))
  compiled = learner.parts.programs.learner.update.program._cache_size()
  params = jax.device_get(learner.state.params)
  begun(*made)
  batch = samples.batch(
      np.where(most, values(samples), np.nan).reshape(P, N), most)
  kept = order[most[order]]
  second = learner.step(jax.tree.map(lambda x: x[kept], batch))
  # Sums of 100 terms of at most 1 in another order, and Adam divides the
  # gradient by its own size: only the sign of what is near 0 is open.
  assert second['update/loss'] == pytest.approx(
      first['update/loss'], abs=1e-5)
  for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(
      jax.device_get(learner.state.params))):
    assert np.mean(np.abs(a - b) > 1e-6) < .01
  assert learner.parts.programs.learner.update.program._cache_size() == (
      compiled)


def test_scores_let_rows_wait_for_later_steps(learner):
  samples = learner.sampler.sample(digits(), N)
  batch = learner.score(samples.batch(values(samples)))
  np.testing.assert_allclose(
      batch.tokens.old_logprobs, samples.logprobs, atol=1e-5)
  learner.step(samples.batch(values(samples)))
  with pytest.raises(ValueError, match='Row 0 was sampled after 0 optimiser '
                     'steps, but there have been 1: take learner.score'):
    learner.step(samples.batch(values(samples)))
  metrics = learner.step(batch)
  assert metrics['update/ratio_max'] > 1 and learner.steps == 2
  assert learner.sampler.sample(digits(1)).policy_step == 2


def test_a_scheduled_temperature_follows_the_learners_steps(tmp_path):
  """Rows of several temperatures train together, each at its own."""
  hot = jaxrl_llm.Learner(
      sampler(temperature='0:2, 1:0.5'), learning_rate=5e-4)
  first = hot.sampler.sample(digits(P // 2), N)
  early = hot.sampler.sample(digits(P // 2), N, temperature=.5)
  batch = jax.tree.map(lambda *x: np.concatenate(x), *(
      x.batch(values(x)) for x in (first, early)))
  assert (first.temperature, early.temperature) == (2, .5)
  scored = hot.score(batch)
  np.testing.assert_allclose(scored.tokens.old_logprobs, np.concatenate(
      [first.logprobs, early.logprobs]), atol=1e-5)
  hot.step(batch)
  late = hot.sampler.sample(digits(P // 2), N)
  assert late.temperature == .5
  assert hot.step(scored)['update/ratio_max'] > 1
  programs = hot.parts.programs.learner
  assert programs.update.program._cache_size() == 2  # with old log-probs
  assert programs.score.program._cache_size() == 1
  jaxrl_llm.save(tmp_path, hot)
  again = jaxrl_llm.Learner(
      sampler(temperature='0:2,1:.5'), learning_rate=5e-4)
  jaxrl_llm.load(tmp_path, again)
  assert again.sampler.sample(digits(1), 1).temperature == .5
  other = again.sampler.sample(digits(), N, temperature=.7)
  with pytest.raises(ValueError, match='temperature=0.7, but .* 2 or 0.5'):
    again.step(other.batch(values(other)))
  with pytest.raises(ValueError, match='0.* must lie in'):
    sampler(temperature='0:1,5:0')
  for wrong in -1, np.nan:
    with pytest.raises(ValueError, match='must be at least 0; 0 is greedy'):
      again.sampler.sample(digits(1), temperature=wrong)


def test_a_learner_may_set_the_temperature_of_its_sampler():
  cold, other = sampler(), sampler()
  learner = jaxrl_llm.Learner(
      cold, learning_rate=5e-4, temperature='0:2,1:.5')
  other.follow(learner)
  samples = cold.sample(digits(), N)
  learner.step(samples.batch(values(samples)))
  assert (samples.temperature, cold.sample(digits(1)).temperature) == (2, .5)
  assert other.sample(digits(1)).temperature == 1


def test_a_loop_with_64_bits_computes_the_same(learner, made):
  def loop():
    begun(*made)
    samples = learner.sampler.sample(digits(), N)
    metrics = learner.step(learner.score(samples.batch(values(samples))))
    return samples.tokens, metrics, jax.device_get(learner.state)

  tokens, metrics, state = loop()
  jax.config.update('jax_enable_x64', True)
  try:
    again, same, after = loop()
    assert jax.config.jax_enable_x64
  finally:
    jax.config.update('jax_enable_x64', False)
  np.testing.assert_array_equal(again, tokens)
  assert same == metrics and tiny.same(after, state)


def test_a_saved_state_is_loaded_to_the_bit(learner, tmp_path):
  fresh = jaxrl_llm.Learner(sampler(), learning_rate=5e-4)
  assert jaxrl_llm.load(tmp_path / 'new', fresh) is None
  samples = learner.sampler.sample(digits(), N)
  learner.step(samples.batch(values(samples)))
  assert not tiny.same(fresh.state, learner.state)
  jaxrl_llm.save(tmp_path, learner, {'seen': [1, 2]})
  jaxrl_llm.save(tmp_path, learner, {'seen': [3]})
  assert jaxrl_llm.load(tmp_path, fresh) == {'seen': [3]}
  assert tiny.same(fresh.state, learner.state)
  assert (fresh.steps, fresh.sampler.calls) == (1, 1)
  for leaf, like in zip(*map(jax.tree.leaves, (fresh.state, learner.state))):
    assert leaf.sharding == like.sharding
  # The folder is like that of a run.
  params, model, step = export.parameters(config_lib.load(
      str(tmp_path / 'config.json'), {'workdir': str(tmp_path)}))
  assert tiny.same(params, learner.state.params) and step == 1
  assert model == learner.parts.programs.model
  other = jaxrl_llm.Learner(sampler(), learning_rate=1e-4)
  with pytest.raises(ValueError, match='optimizer.learning_rate: .* -> '):
    jaxrl_llm.load(tmp_path, other)


def test_save_keeps_what_another_run_or_learner_saved(learner, tmp_path):
  def contents():
    return {path: path.read_bytes()
            for path in tmp_path.rglob('*') if path.is_file()}

  samples = learner.sampler.sample(digits(), N)
  learner.step(samples.batch(values(samples)))
  jaxrl_llm.save(tmp_path / 'loop', learner)
  with contextlib.closing(checkpoint.Checkpointer(
      tmp_path / 'run' / 'checkpoints',
      describe.described(learner.parts))) as saver:
    saver.save(0, {'learners': (learner.state,), 'round': 1}, {})
  before = contents()
  other = jaxrl_llm.Learner(sampler(), learning_rate=1e-4)
  with pytest.raises(ValueError, match='optimizer.learning_rate: .* -> '):
    jaxrl_llm.save(tmp_path / 'loop', other)
  begun = jaxrl_llm.Learner(sampler(), learning_rate=5e-4)
  with pytest.raises(ValueError, match='holds step 1, .* is at step 0: load'):
    jaxrl_llm.save(tmp_path / 'loop', begun)
  for call in jaxrl_llm.load, jaxrl_llm.save:
    with pytest.raises(ValueError, match='is the workdir of a run'):
      call(tmp_path / 'run', begun)
  assert contents() == before
  jaxrl_llm.load(tmp_path / 'loop', begun)
  jaxrl_llm.save(tmp_path / 'loop', begun)


def test_the_calls_of_each_sampler_are_saved(tmp_path):
  def followed():
    learner, other = jaxrl_llm.Learner(sampler(), learning_rate=5e-4), sampler()
    other.follow(learner)
    return learner, other

  learner, other = followed()
  other.follow(learner)  # again
  learner.sampler.sample(digits(1))
  other.sample(digits(1)), other.sample(digits(1))
  jaxrl_llm.save(tmp_path, learner)
  alone = jaxrl_llm.Learner(sampler(), learning_rate=5e-4)
  with pytest.raises(ValueError, match='2 samplers that followed .* and 1 do'):
    jaxrl_llm.load(tmp_path, alone)
  again, late = followed()
  jaxrl_llm.load(tmp_path, again)
  assert (again.sampler.calls, late.calls) == (1, 2)
  np.testing.assert_array_equal(
      late.sample(digits(2)).tokens, other.sample(digits(2)).tokens)


@pytest.mark.parametrize('call, said', [
    (lambda: jaxrl_llm.Sampler('tiny'), 'model=.tiny. is a preset and has no '
     'tokeniser: give one as tokenizer='),
    (lambda: jaxrl_llm.Sampler('no/model', DIGITS), 'leave out tokenizer='),
    (lambda: sampler(temprature=1), 'Sampler has no option .temprature.. Did '
     'you mean .temperature.'),
    (lambda: sampler(top_p=2), 'sampling.top_p=2'),
    (lambda: jaxrl_llm.Learner(sampler(), lr=1), 'Learner has no option .lr.'),
    (lambda: jaxrl_llm.Learner(sampler(), beta=.1), 'no option .beta.. beta is '
     'not a field .* of TRL: .*loss.kl_coef'),
    (lambda: jaxrl_llm.Learner(sampler(), updates=3), 'does not divide the 128 '
     'responses'),
    (lambda: jaxrl_llm.Learner(sampler(), objective='klip'), 'klip'),
    (lambda: jaxrl_llm.nothing, 'has no attribute .nothing.')])
def test_a_wrong_option_is_named(call, said):
  with pytest.raises((ValueError, AttributeError), match=said):
    call()


@pytest.mark.parametrize('prompts, said', [
    ([], r'prompts=\[\], n=8: give a list of at least one prompt'),
    ('12', 'give a list'), (['1', '12'], 'prompt of problem 1 has 2 tok'),
    (['1', 'x'], "character 'x' of 'x' is not in the alphabet"),
    (['1', '\ud800'], 'Prompt 1, .* is no valid text'),
    ([{'role': 'user', 'content': '1'}], 'Prompt 0 is .*: give a text, or a '
     'list of messages'),
    ([[{'role': 'user', 'content': '1'}]], 'Prompt 0 is a list of messages, '
     'but the tokeniser has no chat format')])
def test_a_wrong_prompt_is_named(learner, prompts, said):
  with pytest.raises(ValueError, match=said):
    learner.sampler.sample(prompts)


def test_a_wrong_batch_is_named(learner):
  samples = learner.sampler.sample(digits(), N)
  with pytest.raises(ValueError, match=r'advantages has the shape \(3,\), but '
                     'there are 128 rows'):
    samples.batch([1., 2., 3.])
  for name in ('advantages', 'trained'):  # transposed
    with pytest.raises(ValueError, match=f'{name} has the shape .* prompts'):
      samples.batch(**{'advantages': np.zeros(128),
                       name: np.ones((N, 128 // N))})
  samples.batch(np.zeros((128 // N, N)))
  wrong = values(samples)
  wrong[7] = np.nan
  with pytest.raises(ValueError, match='The advantage of row 7 is nan'):
    samples.batch(wrong)
  greedy = learner.sampler.sample(digits(), N, temperature=0)
  with pytest.raises(ValueError, match='Row 0 was drawn at temperature=0, but '
                     'the learner trains at 1'):
    learner.step(greedy.batch(values(greedy)))
  more = learner.sampler.sample(digits(P + 1), N)
  with pytest.raises(ValueError, match='The batch has 136 rows, more than '
                     'prompts_per_step=16 x samples_per_prompt=8'):
    learner.step(more.batch(values(more)))
