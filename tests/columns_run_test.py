"""Runs of a user's functions that name columns, from tests/outside."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_llm
from jaxrl_llm import config as config_lib
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.learner import advantages, update
from jaxrl_llm.learner.options import LossChoices
from jaxrl_llm.loop import rows
from jaxrl_llm.ops import policy_losses
from jaxrl_llm.prepare import methods, stages
from jaxrl_llm.types import LearnerBatch, RolloutTokens, Table
from tests import processes_test, seams_test
from tests.helpers import devices, stage_runs, tiny
from tests.outside import columns

FILE = devices.ROOT / 'tests/outside/columns.py'
FIELDS = dict(
    advantage=f'{FILE}:later', loss__objective=f'{FILE}:near',
    loss__term=f'{FILE}:sure', learner__updates=2, later__gamma=0.8,
    loss__pull=0.5, loss__term_weight=0.02)


def test_a_run_with_columns_by_token_goes_on(tmp_path):
  seen = []

  def by_hand(batch, table, rows):
    """Returns what `later` gives to the rows of a batch, one by one."""
    del batch
    out = np.zeros(table.token_advantages.shape, np.float32)
    for group in {*table.group[rows]}:
      same = [r for r in np.flatnonzero(table.group == group)
              if table.valid[r]]
      mean = np.mean(table.reward[same])
      for r in same:
        for t in range(table.length[r]):
          out[r, t] = (table.reward[r] - mean) * .8 ** (
              table.length[r] - 1 - t)
    return out

  parts = stage_runs.judged(stage_runs.built(**FIELDS))
  inner = parts.stages.selection.select

  def select(state, table, rows, key):
    real = rows[rows >= 0]
    want = by_hand(None, table, real)[real]
    np.testing.assert_allclose(
        table.token_advantages[real], want, rtol=1e-5, atol=1e-6)
    # The value of a row, which the stages read.
    np.testing.assert_allclose(
        table.advantage[real],
        np.abs(want).sum(-1) * np.sign(want.sum(-1)), rtol=1e-4, atol=1e-5)
    seen.append(np.abs(want).max())
    return inner(state, table, rows, key)

  parts = tiny.changed(parts, stages=parts.stages._replace(
      selection=parts.stages.selection._replace(select=select)))
  rows = seams_test.goes_on(parts, tmp_path)
  assert max(seen) > 0
  trained = [row for row in rows if row['batch/rounds']]
  for row in trained:
    assert row['sure/sampled'] < 0 and 0 <= row['near/truncated'] <= 1
  # The anchor is where RL began.
  assert 0 < trained[0]['near/gap'] < trained[-1]['near/gap']


@pytest.mark.slow
@pytest.mark.processes
def test_on_eight_devices_and_resumed_with_two_processes(tmp_path):
  """Each process is the home of the rows of four devices."""
  rows = processes_test.one_then_two(
      tmp_path, {**FIELDS, 'steps': 3, 'mesh__data': 8}, 4)
  assert rows[-1]['near/gap'] > 0


@pytest.mark.parametrize('changes, said', [
    ({'later.gamma': .7}, r'later\.gamma'),
    ({'loss.pull': .1}, r'loss\.pull'),
    ({'loss.term_weight': .1}, r'loss\.term_weight'),
    ({'loss.term': 'none'}, r'loss\.term')])
def test_a_run_with_another_value_is_refused(changes, said):
  was = tiny.load(**FIELDS)
  now = config_lib.complete(was, changes, '')
  with pytest.raises(ValueError, match=said):
    config_lib.resume_conflicts(was.to_dict(), now.to_dict())
    raise ValueError(config_lib.resume_conflicts(was.to_dict(), now.to_dict()))


FAULTY = '''
import jax.numpy as jnp

def likely(new, old, advantages, mask, top_ids, clip_low=.2, clip_high=.2):
  """Names a column that only Jackpot has."""

def option(new, old, entropy, mask, teacher):
  """Names no column."""

def misspelt(new, old, entropy, mask, anchor_logprob):
  """Names a column, almost."""

def early(rewards, *, where, trained):
  """Names a column that is made later."""
  return jnp.where(where & trained, rewards, 0)

def named_as_ours(new, old, entropy, mask):
  """Returns a metric that the loop has."""
  return new, {'reward/mean': new}

def of_text(new, old, entropy, mask):
  """Returns a metric that is a text."""
  return new, {'mine': 'text'}

def with_metrics(log_ratio, mask):
  """Returns metrics, as a correction does not."""
  return log_ratio, {'mine': log_ratio}

def loose(new, old, advantages, mask, clip_low=.2, clip_high=.2):
  """Returns flags that are numbers."""
  from jaxrl_llm.ops import policy_losses
  return policy_losses.PolicyLoss(new, new, new, new)

def narrow(new, old, entropy, mask):
  """Returns a loss of rows."""
  return new[:, 0]

def rows_only(new, old, advantages, mask, clip_low=.2, clip_high=.2):
  """Takes advantages of rows alone."""
  from jaxrl_llm.ops import policy_losses
  nowhere = jnp.zeros_like(mask)
  return policy_losses.PolicyLoss(
      -new * advantages[:, None], new, nowhere, nowhere)

def perhaps(new, old, entropy, mask, top_ids=None, anchor_logprobs=None):
  """Takes columns if they are there."""
  assert top_ids is None and anchor_logprobs is None
  return 0 * new
'''


@pytest.mark.parametrize('fields, said', [
    (dict(loss__objective='likely'),
     'faulty.py:likely needs the column top_ids, which .*off_policy=jackpot'),
    (dict(loss__term='option'), 'Option teacher of .* has no default'),
    (dict(loss__term='misspelt'), "Did you mean 'anchor_logprobs'"),
    (dict(advantage='early'), 'Option trained of .* has no default'),
    (dict(loss__term='named_as_ours'), 'the metric reward/mean of the shape'),
    (dict(loss__term='of_text'), 'something else than arrays'),
    (dict(loss__importance='with_metrics'), 'return an array of that shape'),
    (dict(loss__objective='loose'), 'with bool flags'),
    (dict(loss__term='narrow'), r'returns .* of the shapes'),
    (dict(loss__objective='rows_only', advantage=f'{FILE}:later'),
     r'returns .* of the shapes .* since the advantage names turn'),
    (dict(advantage=f'{FILE}:of_turns'),
     'of_turns needs the column turn_rewards, which .* an environment has')])
def test_what_cannot_be_is_one_sentence(fields, said, tmp_path):
  (tmp_path / 'faulty.py').write_text(FAULTY)
  named = {name: value if '/' in value else f'{tmp_path}/faulty.py:{value}'
           for name, value in fields.items()}
  with pytest.raises(ValueError, match=said):
    stages.validate(tiny.load(**named))


def test_an_advantage_of_the_package_that_needs_an_environment():
  with pytest.raises(ValueError, match='turn_rewards.*has it[)]: choose anoth'):
    stages.validate(tiny.load(advantage='turns'))


@pytest.mark.parametrize('field, takes', [
    ('loss.objective', 'new, old, advantages, mask'),
    ('loss.importance', 'log_ratio, mask'), ('selection', 'sizes'),
    ('curriculum', 'sizes')])
def test_rows_without_an_advantage_may_matter_to_code_of_ones_own(
    field, takes, tmp_path):
  """It may compare the rows of a batch."""
  (tmp_path / 'mine.py').write_text(f'def f({takes}): ...')
  config = tiny.load()
  assert not methods.gradient_at_zero(config)
  config.update_from_flattened_dict({field: f'{tmp_path}/mine.py:f'})
  assert methods.gradient_at_zero(config) == field


def test_columns_with_the_default_none_are_optional(tmp_path):
  (tmp_path / 'faulty.py').write_text(FAULTY)
  config = tiny.load(loss__term=f'{tmp_path}/faulty.py:perhaps')
  stages.validate(config)
  needs = stages.make_stages(config).needs
  assert not {'top_ids', 'anchor_logprobs'} & needs.columns.keys()


def test_turns_of_tokens():
  start = np.array([[0, 3, 0], [1, 0, 0]], np.int32)
  length = np.array([[2, 2, 0], [5, 0, 0]], np.int32)
  got = advantages.turn_of_tokens(jnp.asarray(start), jnp.asarray(length), 6)
  assert got.tolist() == [[0, 0, -1, 1, 1, -1], [-1, 0, 0, 0, 0, 0]]


def test_the_reward_of_each_turn_reaches_its_tokens():
  """Also where groups are asked for that are no rollouts."""
  program = advantages.make_program(
      lambda rewards, where, step, given: (
          columns.of_turns(rewards, where=where, **given), {}),
      lambda rewards, where, step, given: (
          columns.of_turns(rewards, where=where, **given), {}),
      samples=2, ks=(1,), overlong=tiny.load().overlong, budget=5,
      columns=('turn_start', 'turn_length', 'turn_rewards'))
  given = dict(
      turn_start=np.int32([[[0, 3], [0, 0]]]),
      turn_length=np.int32([[[2, 1], [5, 0]]]),
      turn_rewards=np.float32([[[.25, .75], [0, 0]]]))
  rewards, valid = np.float32([[1, 0]]), np.ones((1, 2), bool)
  length = np.full((1, 2), 3, np.int32)
  got = program.of_batch(
      rewards, valid, length, ~valid, np.uint32(0), given)
  np.testing.assert_allclose(got.token_advantages, [[
      [-.25, -.25, 0, .25, 0], [-.5] * 5]])
  # |-.25| twice and .25, whose sum is below 0.
  np.testing.assert_allclose(got.advantages, [[-.75, -2.5]])
  wave = program.of_wave(
      rewards, valid, length, valid, np.ones(1, bool), np.uint32(0), given)
  np.testing.assert_allclose(wave.gain, [3.25])
  # One of two right: 1 - .5 and 0 - .5, in each of five tokens.
  np.testing.assert_allclose(wave.signal, [0, 5, 0])


def _program(function, names=()):
  """Returns the programs of an advantage that names turns, of two samples."""
  def advantage(rewards, where, step, given):
    found = function(rewards, where=where, **given)
    return found if isinstance(found, tuple) else (found, {})

  return advantages.make_program(
      advantage, advantage, samples=2, ks=(1,), overlong=tiny.load().overlong,
      budget=5, columns=('turn_start', 'turn_length', *names))


GIVEN = dict(
    turn_start=np.int32([[[0], [0]]]), turn_length=np.int32([[[2], [5]]]))
TWO = np.float32([[1, 0]]), np.ones((1, 2), bool), np.int32([[2, 5]])


def test_an_advantage_of_rows_that_names_turns_reaches_all_tokens():
  program = _program(lambda rewards, *, where, turn: rewards - turn.max(-1))
  got = program.of_batch(*TWO, ~TWO[1], np.uint32(0), GIVEN)
  np.testing.assert_allclose(got.advantages, [[1, 0]])
  np.testing.assert_allclose(
      got.token_advantages, [[[1, 1, 0, 0, 0], [0] * 5]])


def test_tokens_that_cancel_out_are_no_row_without_a_signal():
  program = _program(lambda rewards, *, where, turn: jnp.where(
      turn >= 0, jnp.where(jnp.arange(5) % 2 == 0, 1.0, -1.0), 0.0))
  got = program.of_batch(*TWO, ~TWO[1], np.uint32(0), GIVEN)
  np.testing.assert_allclose(got.advantages, [[2, 5]])


def test_an_advantage_by_token_may_give_those_of_rows():
  """A token that is not finite is seen in its row, which has another number."""
  def function(rewards, *, where, turn):
    values = jnp.where(turn >= 0, rewards[..., None], jnp.nan)
    values = values.at[0, 1, 3].set(jnp.inf)
    return values, {}, 7 * rewards - 2

  got = _program(function).of_batch(*TWO, ~TWO[1], np.uint32(0), GIVEN)
  np.testing.assert_allclose(got.advantages, [[5, np.nan]])
  np.testing.assert_allclose(
      got.token_advantages, [[[1, 1, 0, 0, 0], [0, 0, 0, np.inf, 0]]])


def test_groups_that_are_no_rollouts_have_lengths():
  """An advantage may divide by them."""
  program = _program(
      lambda rewards, *, where, turn, length: jnp.where(
          turn >= 0, (rewards / length)[..., None], 0.0), ('length',))
  wave = program.of_wave(
      *TWO, TWO[1], np.ones(1, bool), np.uint32(0),
      {**GIVEN, 'length': TWO[2]})
  np.testing.assert_allclose(wave.signal, [0, 1, 2])  # 5 tokens of 1 / 5


def test_masked_places_are_zero_for_every_function():
  def seen(x, mask):
    return jnp.where(mask, 0.0, jnp.abs(x)).sum()

  def objective(new, old, advantages, mask, entropy):
    nowhere = jnp.zeros_like(mask)
    found = sum(seen(x, mask) for x in (new, old, advantages, entropy))
    return policy_losses.PolicyLoss(
        jnp.where(mask, found, jnp.nan), new, nowhere, nowhere)

  objective.columns = ('entropy',)
  mask = np.array([[True, False, False], [True, True, False]])
  holes = jnp.where(mask, 1.0, jnp.nan)
  batch = LearnerBatch(
      tokens=np.zeros((2, 5)), prompt_length=np.ones(2), mask=mask,
      response_length=mask.sum(1), advantages=np.ones(2),
      token_advantages=holes, behaviour_logprobs=holes, old_logprobs=holes,
      entropy=holes)
  numbers = update.LossParams(
      entropy_bonus=0.0, kl_coef=0.0, temperature=1.0, budget=3.0,
      objective={}, importance={})
  total, _ = update.weighted_sum(
      holes, holes, update.with_advantages(batch), holes, numbers,
      cfg=LossChoices(objective=objective))
  assert total == 0


def test_a_loop_of_ones_own_has_fewer_columns(tmp_path):
  sampler = jaxrl_llm.Sampler(
      'tiny', tokenizer=CharTokenizer('abc'), prompts_per_step=1,
      samples_per_prompt=2, max_prompt=4, max_response=3)

  def far(new, old, entropy, mask, truncated):
    return new * truncated[:, None]

  with pytest.raises(ValueError, match='names the column truncated, which'):
    jaxrl_llm.Learner(sampler, term=far)

  def near(new, old, entropy, mask, old_logprobs, *, weight: float = 0.5):
    return weight * (new - old_logprobs) ** 2, {
        'near/moved': old - old_logprobs}

  learner = jaxrl_llm.Learner(sampler, term=near, term_weight=0.25)
  metrics = learner.step(sampler.sample(['ab'], 2).batch([1.0, -1.0]))
  assert metrics['near/moved'] == 0 and np.isfinite(metrics['update/loss'])


def test_a_term_is_added_with_the_weights_of_the_tokens():
  """sum_t w_t X_t more than without it, masked tokens left out."""
  mask = np.array([[True, True, False], [True, False, False]])
  x = np.arange(6, dtype=np.float32).reshape(2, 3) / 8  # exact in float32
  batch = LearnerBatch(
      tokens=np.zeros((2, 5)), prompt_length=np.ones(2), mask=mask,
      response_length=mask.sum(1), advantages=np.ones(2, np.float32),
      behaviour_logprobs=x)
  numbers = update.LossParams(
      entropy_bonus=0.0, kl_coef=0.0, temperature=1.0, budget=3.0,
      objective=dict(clip_low=0.2, clip_high=0.2), importance={},
      term=dict(factor=2.0))
  term = lambda new, old, entropy, mask, *, factor: factor * entropy + 1.0
  with_term, without = (
      update.weighted_sum(
          x, x, batch, np.full((2, 3), 0.5), numbers,
          cfg=LossChoices(term=chosen))[0] for chosen in (term, 'none'))
  assert with_term - without == 0.5 * (2 * (0 + 1 / 8 + 3 / 8) + 3)


def test_turns_of_a_wave_are_columns():
  table = Table(
      turn_start=np.zeros((2, 3), np.int32),
      turn_length=np.zeros((2, 3), np.int32),
      turn_rewards=np.zeros((2, 3), np.float32))
  rows._add_turns(table, types.SimpleNamespace(
      turns=[[(0, 2, 0.5), (4, 3, 1.0)], [(0, 5, 0.25)]]))
  assert table.turn_start.tolist() == [[0, 4, 0], [0, 0, 0]]
  assert table.turn_length.tolist() == [[2, 3, 0], [5, 0, 0]]
  assert table.turn_rewards.tolist() == [[.5, 1, 0], [.25, 0, 0]]


def test_a_name_is_of_tokens_or_of_rows():
  """Facts about rows are the table's, the same in every process."""
  assert 'truncated' not in RolloutTokens.declared
  assert LearnerBatch.declared['truncated'].axes == ''
  assert LearnerBatch.declared['entropy'].axes == 'T'
