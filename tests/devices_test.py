"""Tests that the loop gives the same results on eight devices as on one."""

import concurrent.futures

import jax
import numpy as np
import optax
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import train
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, describe, methods
from tests.helpers import devices, learners, stage_runs, tiny
from tests.helpers.tolerance import decoder, typical

pytestmark = pytest.mark.processes  # They train on eight devices.

MESHES = ((8, 1, 1), (2, 2, 2))
LEARNER = dict(mesh__learner_tensor=1)
STEPS = 3
# Rows that another model wrote a step before, rejected and weighted. The mask
# is the expectation: a sampled one turns a rounding error into another token.
OF_ACTOR = dict(
    tiny.ACTOR, actor__model__kv_heads=2, actor__lag=1, off_policy='jackpot',
    jackpot__mask='expected',
    loss__objective='no_clip', optimizer__learning_rate=3e-3)
# SPEED, PKPO, CBS and Jackpot. All prompts are continued, so that ten groups
# are finished in the fourth wave, which makes two rounds: the bandit picks half
# of the rows of both in the second one.
ALL_FOUR = dict(
    stage_runs.ALL_FOUR, speed__n_init=2, speed__rule='pass_rate',
    speed__p_low=-1.0, cbs__warmup=0, cbs__epsilon=.3, jackpot__lam=1.3)


def wave(sizes):
  """Takes the first steps of ALL_FOUR on a mesh, up to one that trains.

  Returns:
    Tokens of each step; rows that the selection picked in each round; integer
    and other columns of the table after the last step; its metrics; features
    that the bandit will learn from; the losses of its updates.
  """
  data, fsdp, tensor = sizes
  config = tiny.load(**{**ALL_FOUR, **dict(
      mesh__data=data, mesh__fsdp=fsdp, mesh__tensor=tensor, model__heads=4,
      model__kv_heads=2, model__head_dim=8, optimizer__learning_rate=3e-4)})
  watched = tiny.watch(build.parts(config), tiny.by_length)
  parts, picked, updates = watched.parts, [], []
  chosen, update = parts.stages.selection, parts.programs.learner.update

  def select(*args):
    state, rows = chosen.select(*args)
    picked.append(rows.tolist())
    return state, rows

  def noted(*args):
    state, result = update(*args)
    updates.append(result['loss'])
    return state, result

  parts = tiny.changed(
      parts, stages=parts.stages._replace(
          selection=chosen._replace(select=select)),
      learner=parts.programs.learner._replace(update=noted))
  state, fixed, _ = tiny.begin(parts)
  while not picked:
    with jax.transfer_guard('disallow'):
      state, outcome = train.take_step(parts, state, fixed, timing.Timer())
  columns = {
      name: column[state.buffer.table.group >= 0].tolist()
      for name, column in state.buffer.table.columns.items()
      if column is not None}
  return dict(
      tokens=[r.tokens.tolist() for r in watched.rollouts], picked=picked,
      exact={k: v for k, v in columns.items()
             if k not in ('advantage', 'entropy', 'clip_share', 'shard')},
      advantage=columns['advantage'], entropy=columns['entropy'],
      row=outcome.row, losses=[float(loss) for loss in updates],
      features=state.selection.pending.features.tolist())


def loop(sizes, fields):
  """Runs three steps on a mesh.

  Returns:
    Tokens and problems of each step; its metrics; held-out estimates before it;
    whether parameters, anchor and moments have the right shardings; names of
    the compiled programs; the shape of a matrix's shard; the parameters.
  """
  data, fsdp, tensor = sizes
  config = tiny.load(**{**dict(
      mesh__data=data, mesh__fsdp=fsdp, mesh__tensor=tensor, eval__samples=3,
      eval__k=1, model__heads=4, model__kv_heads=2, model__head_dim=8,
      learner__updates=2, loss__kl_coef=0.1, loss__entropy_bonus=0.01,
      optimizer__learning_rate=3e-4), **fields})
  compiled = tiny.compiled()
  watched = tiny.watch(build.parts(config), tiny.by_length)
  parts = watched.parts
  state, fixed, weights = tiny.begin(parts)
  # As train does: an evaluation first, with the same programs.
  figures = train.heldout.evaluate(parts, weights)
  watched.rollouts.clear()
  rows = []
  for _ in range(STEPS):
    with jax.transfer_guard('disallow'):
      state, outcome = train.take_step(
          parts, state, fixed, timing.Timer())
    rows.append({k: v for k, v in outcome.row.items()
                 if not k.startswith('sampler')})
  params = state.learner.params
  layout = describe.param_shardings(parts)
  laid_out = [
      jax.tree.map(lambda x: x.sharding, tree) == layout
      for tree in (params, fixed.anchors['anchor_logprobs'], *(
          optax.tree.get(state.learner.opt_state, name)
          for name in ('mu', 'nu')))]
  return dict(
      tokens=[r.tokens.tolist() for r in watched.rollouts],
      ids=[r.problem_id.tolist() for r in watched.rollouts],
      rows=rows, figures=figures, laid_out=laid_out,
      programs=tiny.programs(compiled),
      sizes=[len(parts.programs.learner.plans(rows)) for rows in (
          parts.programs.scored_rows,
          methods.minibatch_rows(config))],
      part=params['layers']['up'].sharding.shard_shape((1, 32, 32)),
      params=[np.asarray(x, np.float64).tolist()
              for x in jax.tree.leaves(params)])


@pytest.fixture(scope='module')
def results():
  """Results of `loop` on one device and on each mesh, run two at a time.

  """
  jobs = [((1, 1, 1), 1, {}), *((sizes, 8, {}) for sizes in MESHES),
          ((2, 2, 2), 8, LEARNER)]
  return both(loop, *jobs)


def both(what, *jobs):
  """Runs a function in processes of their own, two at a time.

  Args:
    what: the function.
    *jobs: shape of the mesh, devices, and other arguments.
  """
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    return list(pool.map(lambda job: devices.run(
        what, job[0], *job[2:], devices=job[1], timeout=900), jobs))


def test_the_loop_is_the_same_on_every_mesh(results):
  one, *others = results
  assert len(one['tokens']) == STEPS and one['tokens'][0] != one['tokens'][1]
  assert one['rows'][-1]['update/kl_anchor'] > 1e-6  # it has learned
  # Forward, back to states and to weights; the vocabulary; sums over tokens.
  # Log-probs and their mean are of the order of log 24 or 4.
  model = config_lib.model_config(tiny.load())
  error = typical(3 * decoder(model, 19), 24, 16 * 10)
  for other in others:
    assert other['ids'] == one['ids']
    assert other['tokens'] == one['tokens']
    assert other['figures'] == one['figures']
    for row, want in zip(other['rows'], one['rows'], strict=True):
      assert row.keys() == want.keys()
      for name, value in learners.unpadded(want).items():
        assert row[name] == pytest.approx(
            value, abs=4 * error, rel=4 * error), name
    # AdamW divides each gradient by its own size; one that is a thousandth of
    # the largest has a thousand times the relative error, in each of 6 updates.
    for leaf, want in zip(other['params'], one['params'], strict=True):
      np.testing.assert_allclose(
          leaf, want, rtol=0, atol=6 * 3e-4 * 1000 * error)


def test_everything_lies_as_it_should_and_compiles_once(results):
  learner = 2, 4, 1
  for result, (_, fsdp, tensor) in zip(
      results, ((1, 1, 1), *MESHES, learner), strict=True):
    assert result['laid_out'] == [True] * 4
    assert result['part'] == [1, 32 // fsdp, 32 // tensor]
    scores, updates = result['sizes']
    assert result['programs'] == [
        'jit(batch_advantages)', *['jit(score)'] * scores,
        'jit(sharded_generate)', *['jit(update)'] * updates,
        'jit(wave_signal)']


@pytest.mark.slow
def test_rows_of_an_actor_are_the_same_on_eight_devices():
  """One wave from one state: the first that is trained on, a step late."""
  one, eight = both(
      loop, ((1, 1, 1), 1, OF_ACTOR), ((2, 2, 2), 8, OF_ACTOR))
  model = config_lib.model_config(tiny.load())
  error = typical(3 * decoder(model, 19), 24, 16 * 10)
  assert eight['tokens'][:2] == one['tokens'][:2]
  first, row = one['rows'][:2]
  assert first['batch/rounds'] == 0 and row['batch/rounds'] == 1
  assert row['update/obrs_acceptance'] < 1 - 1e-3
  assert 0 < row['update/real_tokens'] <= row['update/real_tokens_limit'] <= 1
  for name, value in learners.unpadded(row).items():
    assert eight['rows'][1][name] == pytest.approx(
        value, abs=4 * error, rel=4 * error), name


@pytest.mark.slow
@pytest.mark.parametrize('form', ['all', 'top_k', 'sampled'])
def test_a_teacher_teaches_the_same_on_eight_devices(form):
  fields = dict(
      {name.replace('actor', 'teacher'): value
       for name, value in tiny.ACTOR.items()}, teacher__model__kv_heads=2,
      teacher__kl=form, **{'teacher__top_k': 5} if form == 'top_k' else {})
  one, eight = both(
      loop, ((1, 1, 1), 1, fields), ((2, 2, 2), 8, fields))
  model = config_lib.model_config(tiny.load())
  error = typical(3 * decoder(model, 19), 24, 16 * 10)
  assert eight['tokens'][:1] == one['tokens'][:1]
  row = learners.unpadded(one['rows'][0])
  assert row['update/teacher_kl'] > 0
  for name, value in row.items():
    assert eight['rows'][0][name] == pytest.approx(
        value, abs=4 * error, rel=4 * error), name


@pytest.mark.slow
def test_a_reward_model_scores_the_same_on_eight_devices():
  fields = {name.replace('actor', 'reward'): value
            for name, value in tiny.ACTOR.items()} | {
                'reward__model__kv_heads': 2}
  one, eight = both(
      loop, ((1, 1, 1), 1, fields), ((2, 2, 2), 8, fields))
  model = config_lib.model_config(tiny.load(**fields), 'reward')
  assert eight['tokens'][:1] == one['tokens'][:1]
  row = one['rows'][0]
  assert row['reward/std'] > 0
  for name in 'reward/mean', 'reward/std', 'rewards/model':
    assert eight['rows'][0][name] == pytest.approx(
        row[name], abs=4 * typical(decoder(model, 40), model.width)), name


def test_all_methods_pick_and_learn_the_same_on_eight_devices():
  """The first wave that is trained on, in two rounds, from one state."""
  one, eight = both(wave, ((1, 1, 1), 1), ((2, 2, 2), 8))
  assert eight['tokens'] == one['tokens'] and len(one['tokens']) == 4
  # Integers, and what is computed from rewards on the host.
  assert eight['exact'] == one['exact']
  assert one['row']['batch/rounds'] == len(one['picked']) == 2
  assert eight['picked'] == one['picked']
  assert 0 < one['row']['batch/replayed'] < .5
  assert 0 < one['row']['update/obrs_acceptance'] < 1 - 1e-4
  assert 0 < one['row']['update/obrs_kept'] < 1
  model = config_lib.model_config(tiny.load())
  error = typical(3 * decoder(model, 19), 24, 16 * 10)
  assert len(one['losses']) == 4 and len({*one['losses']}) == 4
  for name in 'losses', 'advantage', 'entropy', 'features':
    np.testing.assert_allclose(
        eight[name], one[name], rtol=4 * error, atol=4 * error, err_msg=name)
  for name, value in learners.unpadded(one['row']).items():
    # Slots are per device; a correlation of few rows amplifies.
    if not name.startswith('sampler/') and 'correlation' not in name:
      assert eight['row'][name] == pytest.approx(
          value, abs=4 * error, rel=4 * error, nan_ok=True), name
