"""Tests of runs of several processes: the same as with one, bit or rounding."""

import json
import re
import shutil
import socket
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint
from jaxrl_llm.base import place
from jaxrl_llm.prepare import describe
from jaxrl_llm.sharding import channel as channel_lib
from jaxrl_llm.sharding import distributed, processes
from tests import resume_test
from tests.helpers import many, tiny

SPEED_CBS = dict(
    steps=5, learner__updates=2, eval__every=0,
    curriculum='speed', speed__n_init=2, curriculum_prompts=8,
    selection='cbs', cbs__rounds=2, cbs__warmup=1, cbs__epsilon=.2,
    checkpoint__every=1, checkpoint__keep=9, log__samples=9,
    optimizer__learning_rate=.01)
PLAIN = dict(
    steps=5, learner__updates=2, loss__kl_coef=.1, eval__every=5,
    checkpoint__every=5, log__samples=9, optimizer__learning_rate=.01)
ACTOR = dict(
    steps=5, off_policy='jackpot', eval__every=0, checkpoint__every=5,
    log__samples=9, optimizer__learning_rate=.01, **tiny.ACTOR)


def team(homes, index=0):
  """Returns the processes of shards of these homes, whose channel is a stub."""
  channel = types.SimpleNamespace(index=index, count=max(homes) + 1)
  return processes.Processes(
      channel, processes.Homes(
          np.array(homes), tuple(range(max(homes) + 1))), index, None, None)


def test_rows_stay_home_first():
  rng = np.random.default_rng(0)
  moved = 0
  for _ in range(300):
    homes = sorted(rng.integers(0, 3, 4)) if rng.random() < .5 else [0, 1, 1, 2]
    homes = np.unique(homes, return_inverse=True)[1].tolist()
    some, total = team(homes), 4 * int(rng.integers(1, 5))
    shard = rng.integers(0, 9, 30)  # also of another mesh
    rows = rng.permutation(30)[:total]
    rows[rng.random(total) < .2] = -1
    placed = some.place(rows, shard)
    assert sorted(placed) == sorted(rows)
    at = np.repeat(homes, total // 4)
    home = np.array(homes)[shard % 4]
    away = {int(row) for row, here in zip(placed, at)
            if row >= 0 and home[row] != here}
    assert set(some.surplus(placed, shard)) == away
    # No more move than a home has rows above its places.
    least = sum(
        max(int((home[rows[rows >= 0]] == h).sum() - (at == h).sum()), 0)
        for h in set(homes))
    assert len(away) == least
    for h in set(homes):  # in order
      ours = [row for row, here in zip(placed, at)
              if here == h and row >= 0 and home[row] == h]
      assert ours == [row for row in rows if row in set(ours)]
    if max(homes) == 0:
      assert (placed == rows).all()
    moved += len(away)
  assert moved > 100


def test_rows_are_exchanged_whole():
  """Each process starts with its rows, and ends with those of others too."""
  rng = np.random.default_rng(1)
  shard = rng.integers(0, 4, 20)
  whole = [rng.integers(0, 99, (20, 3)).astype(np.int32),
           rng.random((20, 2, 5)).astype(np.float32), rng.random(20) < .5]
  homes, wanted = [0, 1, 2, 2], np.array([0, 3, 4, 9, 17])
  teams, trees, sent = [], [], []
  for index in range(3):
    one = team(homes, index)
    own = np.array(homes)[shard] == index
    trees.append([np.where(
        own.reshape(-1, *[1] * (x.ndim - 1)), x, np.zeros((), x.dtype))
        for x in whole])
    teams.append(one)
    one.channel.gather = lambda values: sent.append(values) or {}['gone']
    with pytest.raises(KeyError):
      one.exchange(wanted, shard, trees[-1])
  for one, tree in zip(teams, trees):
    one.channel.gather = lambda _: sent
    one.exchange(wanted, shard, tree)
    for got, want in zip(tree, whole):
      np.testing.assert_array_equal(got[wanted], want[wanted])
      away = np.setdiff1d(
          np.flatnonzero(np.array(homes)[shard] != one.home), wanted)
      assert not got[away].any()


def test_messages_of_any_length_arrive():
  class Echo(channel_lib.Channel):
    """Two processes in one, the second with another message."""

    def __init__(self, other):
      super().__init__()
      self.count, self._other = 2, None
      self.other = other

    def _exchange(self, part, size):
      if not self._other:
        self._other = len(self.other).to_bytes(8, 'little') + self.other
      out = np.zeros((2, size), np.uint8)
      for row, text in zip(out, (part, self._other[:size])):
        row[:len(text)] = np.frombuffer(text, np.uint8)
      self._other = self._other[size:]
      self.calls.append(size)
      return out

  rng = np.random.default_rng(2)
  for short, long in ((0, 0), (5, 4088), (5, 4089), (5, 60_000), (7, 70_000),
                      (100, 9_000_000)):
    a, b = rng.bytes(short), rng.bytes(long)
    for mine, other in ((a, b), (b, a)):
      channel = Echo(other)
      channel.calls = []
      assert channel.gather_bytes(mine) == [mine, other]
      assert sum(channel.calls) >= long + 8
      assert len(channel.calls) <= 2 + long // (1 << 22)
      channel.calls.clear()
      assert channel.gather_bytes(mine) == [mine, other]
      if long <= 60_000:
        assert len(channel.calls) == 1  # the next one of its length
      channel.calls.clear()
      channel.other = b'b'
      assert channel.gather_bytes(b'a') == [b'a', b'b']
      assert channel.calls[1:] == [] and channel.calls[0] <= 1 << 16


def test_hosts_with_other_numbers_of_devices_are_refused(monkeypatch):
  monkeypatch.setattr(channel_lib.jax, 'devices', lambda: [
      types.SimpleNamespace(process_index=i) for i in (0, 0, 1, 2, 2)])
  with pytest.raises(ValueError, match='Process 1 has 1 devices, and process 0 '
                     'has 2: start all processes with the same config'):
    channel_lib._between_processes.__wrapped__()


def test_a_difference_is_named(monkeypatch):
  channel = channel_lib.Channel()
  channel.count = 3
  monkeypatch.setattr(channel, 'gather', lambda mine: [
      mine, mine, {**mine, 'steps': 7}])
  with pytest.raises(ValueError, match='steps differs here: it is 5 in process '
                     '0 and 7 in process 2'):
    channel.agree({'seed': 1, 'steps': 5}, 'here')


@pytest.mark.parametrize('argv, said', [
    (['--process_count=2'], '--process_id is missing'),
    (['--process_count=2', '--process_id=2', '--coordinator=a:1'],
     '--process_id=2 must be less than --process_count=2'),
    (['--process_count=x', '--process_id=0', '--coordinator=a:1'],
     '--process_count=x must be a whole number'),
    (['--process_count=2', '--process_id=0', '--coordinator=a'],
     '--coordinator=a must be HOST:PORT'),
    (['--process_count=2', '--process_id=0', '--coordinator=a:99999'],
     '--coordinator=a:99999 must be HOST:PORT'),
    (['--stopped_code=256'], '--stopped_code=256 must be')])
def test_wrong_flags_are_one_sentence(argv, said):
  with pytest.raises(ValueError, match=said):
    place.split(argv)


def test_flags_are_taken_out():
  given, rest = place.split([
      '--config=a', '--process_count=2', '--process_id=1',
      '--coordinator=[::1]:80'])
  assert given == (2, 1, '[::1]:80', 0) and rest == ['--config=a']
  assert place.split(['--process_count=auto'])[0].count == 'auto'
  assert place.split(['a'])[0].count is None
  assert place.split(['--process_count=1'])[0].count == 1
  given, rest = place.split(['--stopped_code=75', '--config=a'])
  assert given == (None, None, None, 75) and rest == ['--config=a']


@pytest.mark.parametrize('env, count', [
    ({}, None),
    (dict(SLURM_NTASKS='4', SLURM_PROCID='0'), None),  # a shell, no step
    (dict(SLURM_NTASKS='4', SLURM_PROCID='0', SLURM_STEP_NODELIST='n[0-3]'),
     'auto'),
    (dict(SLURM_NTASKS='1', SLURM_PROCID='0', SLURM_STEP_NODELIST='n0'), None),
    (dict(TPU_WORKER_HOSTNAMES='localhost'), None),
    (dict(TPU_WORKER_HOSTNAMES='a,b'), 'auto')])
def test_the_environment_tells_of_other_processes(env, count):
  assert distributed._found(env) == count


def test_a_task_of_slurm_has_all_gpus_of_its_node(monkeypatch):
  """JAX gives it one, by its number on the node."""
  updates = {}
  monkeypatch.setattr(jax.config, 'update', updates.__setitem__)
  distributed._take_all_gpus(dict(SLURM_STEP_NUM_NODES='2', SLURM_NTASKS='16'))
  assert not updates
  distributed._take_all_gpus(dict(SLURM_STEP_NUM_NODES='2', SLURM_NTASKS='2'))
  assert updates == {
      'jax_cuda_visible_devices': 'all', 'jax_rocm_visible_devices': 'all'}


def test_a_port_that_is_taken_is_one_sentence():
  with socket.create_server(('', 0)) as server:
    port = server.getsockname()[1]
    with pytest.raises(ValueError, match=f'cannot listen on port {port} of'):
      distributed._check_free(f'localhost:{port}')
  distributed._check_free(f'localhost:{port}')


def test_problems_in_another_order_are_another_set(parts):
  """All processes must have the same, in `Parts.compared`."""
  task = types.SimpleNamespace(
      train=parts.task.train, heldout=[*parts.task.heldout][::-1])
  ours, theirs = map(
      describe.compared, (parts, parts._replace(task=task)))
  assert [name for name in ours if ours[name] != theirs[name]] == [
      'the held-out problems']


def params(folder, step=None):
  """Returns the policy's parameters of a checkpoint, by name."""
  root = folder / 'run' / 'checkpoints'
  step = step or checkpoint.steps(root)[-1]
  tree = json.loads((root / str(step) / 'tree' / 'metadata').read_text())
  nested = {}
  for name, (shape, kind) in tree.items():
    *path, last = name.split('.')
    at = nested
    for part in path:
      at = at.setdefault(part, {})
    at[last] = np.zeros(shape, kind)
  found = checkpoint.restore(root, nested)
  return {jax.tree_util.keystr(k): leaf for k, leaf in
          jax.tree_util.tree_leaves_with_path(
              found.state['learners']['0']['params'])}


def one_then_two(tmp_path, fields, share):
  """Runs with one process, then with two, whose run goes on before its end.

  Args:
    tmp_path: a folder.
    fields: of the run. A checkpoint is written before the last step.
    share: devices of each of the two.

  Returns:
    The metrics of the two.
  """
  run = dict(
      module='tests.helpers.many', programs=tmp_path / 'programs', sgd=True)
  one, two = tmp_path / 'one', tmp_path / 'two'
  many.finish(many.start(one, fields, share=2 * share, **run), one)
  many.finish(many.start(two, fields, count=2, share=share, **run), two)
  alike(one, two, 1e-5)
  rows, last = many.rows(two), resume_test.final_state(two / 'run')
  shutil.rmtree(two / f'run/checkpoints/{fields["steps"]}')
  many.finish(many.start(two, fields, count=2, share=share, **run), two)
  assert many.rows(two) == rows
  assert resume_test.final_state(two / 'run') == last
  return rows


def alike(a, b, limit, steps=None):
  """Compares two runs: decisions are equal, numbers nearly so.

  Args:
    a, b: folders of the runs.
    limit: largest difference of a parameter at the end.
    steps: that are compared; None for all.
  """
  def samples(folder):
    lines = (folder / 'run/samples.jsonl').read_text().splitlines()
    return [line for line in lines if steps is None or json.loads(
        line)['step'] <= steps]

  assert samples(a) == samples(b) != []
  for ours, theirs in zip(many.rows(a), many.rows(b), strict=True):
    if steps is not None and ours['step'] > steps:
      continue
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
      if name.startswith(('reward/', 'batch/', 'verdict/')):
        assert value == theirs[name], name
      if name in ('update/loss', 'update/actor_loss'):
        assert value == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name
  ours, theirs = params(a), params(b)
  assert all(np.abs(ours[k] - theirs[k]).max() <= limit for k in theirs)
  assert any((ours[k] != 0).any() for k in theirs)


def gaps(folder):
  """Returns the gaps that a run of `tests.helpers.many` has printed."""
  return [float(text) for text in re.findall(
      r'^gap (.*)$', (folder / 'log-0.txt').read_text(), re.M)]


@pytest.mark.processes
def test_two_processes_do_what_one_does(tmp_path):
  """One process can go on with their checkpoint."""
  fields = {**SPEED_CBS, 'steps': 3}
  run = dict(
      module='tests.helpers.many', programs=tmp_path / 'programs', sgd=True)
  one, two = tmp_path / 'one', tmp_path / 'two'
  many.finish(many.start(one, fields, share=2, **run), one)
  many.finish(many.start(two, fields, count=2, **run), two)
  alike(one, two, 1e-5)
  assert gaps(two) and min(gaps(two)) > 2
  assert sum(row.get('batch/rounds', 0) for row in many.rows(two)) >= 2
  shutil.rmtree(two / 'run/checkpoints/3')
  many.finish(many.start(two, fields, share=2, **run), two)
  alike(one, two, 1e-5)


@pytest.mark.slow
def test_a_reward_model_scores_the_rows_of_two_processes(tmp_path):
  """Each is sent its own rows, which the other does not have."""
  rows = one_then_two(tmp_path, dict(
      {name.replace('actor', 'reward'): value
       for name, value in tiny.ACTOR.items()}, steps=3, eval__every=0,
      checkpoint__every=2, log__samples=9, reward__verifier=1.,
      optimizer__learning_rate=.01), share=1)
  assert all(row['reward/std'] > 0 for row in rows[1:])


@pytest.mark.processes
def test_a_process_with_another_config_is_refused(tmp_path):
  started = many.start(
      tmp_path, dict(steps=1), count=2, own=[{}, dict(seed=7)])
  assert [process.wait(300) for process in started] == [1, 1]
  for index in range(2):
    assert 'seed differs between the processes: it is 0 in process 0 and 7 in' \
        in many.said(tmp_path, index)
  assert not (tmp_path / 'run' / 'checkpoints').exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    'mesh', [(8, 1, 1), (2, 2, 2), (1, 2, 4, 1)],
    ids=['rows', 'cube', 'learner'])  # the last has shards of two processes
@pytest.mark.parametrize(
    'fields', [PLAIN, SPEED_CBS, ACTOR], ids=['plain', 'speed_cbs', 'actor'])
@pytest.mark.parametrize('sgd', [True, False], ids=['sgd', 'adamw'])
def test_eight_devices_in_processes(tmp_path, fields, mesh, sgd):
  data, fsdp, tensor, *learner = mesh
  fields = dict(
      fields, mesh__learner_tensor=learner[0] if learner else None,
      mesh__data=data, mesh__fsdp=fsdp, mesh__tensor=tensor,
      **{f'{model}__{name}': count
         for model in ('model', 'actor__model')[:1 + (fields is ACTOR)]
         for name, count in (('heads', max(tensor, 2)), ('kv_heads', tensor))})
  run = dict(
      module='tests.helpers.many', programs=tmp_path / 'programs', sgd=sgd)
  for count in (1, 2, 4):
    folder = tmp_path / str(count)
    many.finish(many.start(
        folder, fields, count=count, share=8 // count, **run), folder)
    updates = sum('update/loss' in row for row in many.rows(folder))
    assert updates >= 2
    if sgd:
      alike(tmp_path / '1', folder, 1e-5)
      if 'cbs__rounds' in fields:
        assert min(gaps(folder)) > 2
    else:
      # AdamW divides a gradient by its own size, so one that is all rounding
      # moves a weight by .01 either way in each of 10 updates, and a token may
      # be another one after the first.
      alike(tmp_path / '1', folder, 2 * .01 * 10, steps=1)


@pytest.mark.slow
@pytest.mark.parametrize('count', [1, 2, 4])
def test_a_run_of_two_goes_on_with(tmp_path, count):
  """To rounding; with two to the bit. Rows of earlier rounds wait in it."""
  fields = dict(SPEED_CBS, steps=6, mesh__data=4)
  run = dict(
      module='tests.helpers.many', programs=tmp_path / 'programs', sgd=True)
  two, other = tmp_path / 'two', tmp_path / 'other'
  many.finish(many.start(two, fields, count=2, share=2, **run), two)
  shutil.copytree(two / 'run', other / 'run')
  for step in (5, 6):
    shutil.rmtree(other / f'run/checkpoints/{step}')
  # The config is that of another folder.
  many.finish(
      many.start(other, fields, count=count, share=4 // count, **run), other)
  alike(two, other, 1e-5)
  if count == 2:
    assert resume_test.final_state(two / 'run') == resume_test.final_state(
        other / 'run')
    assert many.rows(two) == many.rows(other)
