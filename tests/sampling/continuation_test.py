"""Tests of responses in parts, against whole ones and full forward passes."""

import dataclasses
import functools
import re
import types

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jaxrl_llm import sharding
from jaxrl_llm.loop import rollout
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.prepare import arguments, programs
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling import queue as queue_lib
from jaxrl_llm.sampling import stops
from jaxrl_llm.sampling.generate import SamplerConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.sharding import processes
from jaxrl_llm.types import Requests
from launch.aot import chips
from tests.helpers import devices
from tests.reference import sampler as reference
from tests.sampling import generate_test as plain

_BASE, _BIRTH = jax.random.key(2), 7
_CLOSE = dict(rtol=0, atol=1e-5)
_CHANNELS = 'tokens', 'logprobs', 'entropy', 'tempered_logprobs', 'top_logprobs'
# Chunks of 2 tokens for up to 8; several prefills; texts of one to two tokens.
_FAMILY = 'gemma2'
_OPTIONS = dict(
    slots=3, chunk=4, unroll=True, share_prompts=True, prefill_prompts=2,
    tempered=True, top_logprobs=2, stop_ids=(3,), texts=(b'ca', b'll', b'hgb'))


def _texts(texts):
  """Returns the automaton of texts of the tokens 'a' to 'm'."""
  return stops.tabulate(texts, [bytes([97 + i]) for i in range(13)])


def _new(requests, done=None, tokens=None, birth=_BIRTH, length=plain._T):
  """Returns requests with the given tokens of their responses."""
  n = len(requests.prompt)
  done = np.zeros(n, np.int32) if done is None else np.asarray(done, np.int32)
  tokens = np.zeros((n, length)) if tokens is None else np.asarray(tokens)
  return requests.replace(
      done=done, birth=np.full(n, birth, np.int32), match=np.zeros(n, np.int32),
      tokens=np.where(np.arange(length) < done[:, None], tokens, 0).astype(
          np.int32))


@functools.cache
def _jitted(family, length=plain._T, texts=(), **options):
  sampler = SamplerConfig(
      max_response=length, stop_texts=_texts(texts) if texts else None,
      **{**dict(slots=5, stop_ids=plain._STOP, continues=True,
                continue_chunk=2), **options})
  return jax.jit(
      functools.partial(
          generate_lib.generate, cfg=plain._FAMILIES[family], sampler=sampler),
      compiler_options={'xla_backend_optimization_level': 0})


def _run(requests, family=_FAMILY, *, rows=None, max_steps=1 << 30,
         length=plain._T, **options):
  """Serves requests in a queue of a fixed number of rows, in NumPy."""
  n = len(requests.prompt)
  padded = jax.tree.map(
      lambda x: np.pad(x, ((0, (rows or n) - n), *[(0, 0)] * (x.ndim - 1))),
      requests)
  queue = Queue(plain._prompts(), padded, n, np.int32(max_steps))
  rollouts, used = jax.device_get(_jitted(family, length, **options)(
      plain._params(plain._FAMILIES[family]), queue, _BASE, SamplingParams(),
      12))
  return jax.tree.map(lambda x: x[:n], rollouts), used


_ROWS = 90
_quick = functools.partial(_run, rows=_ROWS, **_OPTIONS)


def _rows(rollouts, rows, done):
  """Returns some rows without their first `done` tokens."""
  new = np.arange(rollouts.tokens.shape[-1]) >= done[:, None]
  cut = lambda x: np.where(new if x.ndim == 2 else new[:, None], x[rows], 0)
  return {name: cut(getattr(rollouts, name)) for name in _CHANNELS
          if getattr(rollouts, name) is not None}


def _states(tokens, before=0):
  """Returns the automaton's states after some tokens, for every length."""
  found, automaton = [before], _texts(_OPTIONS['texts'])
  for token in tokens:
    found.append(int(automaton.after[automaton.kind[token], found[-1]]))
  return found


@functools.cache
def _whole():
  return _quick(_new(plain._requests()))


def test_nothing_done_equals_the_single_turn_call_to_the_bit():
  (got, used), want = _whole(), []
  requests = plain._requests()
  cfg = plain._FAMILIES[_FAMILY]
  run = _jitted(_FAMILY, **_OPTIONS, continues=False)
  grown = jax.tree.map(lambda x: np.pad(x, (0, _ROWS - plain._R)), requests)
  for birth in (_BIRTH, 8):
    rollouts, steps = run(
        plain._params(cfg), Queue(plain._prompts(), grown, plain._R),
        jax.random.fold_in(_BASE, np.uint32(birth)), SamplingParams(), 12)
    want.append(jax.tree.map(lambda x: x[:plain._R], rollouts))
    assert birth == 8 or used == steps
  assert want[0].match is None and got.match is not None
  for name, x in vars(want[0]).items():
    if x is not None:
      np.testing.assert_array_equal(getattr(got, name), x, name)
  # Requests of two steps in one call.
  mixed = np.where(np.arange(plain._R) % 2, 8, _BIRTH).astype(np.int32)
  both, _ = _quick(_new(requests).replace(birth=mixed))
  np.testing.assert_array_equal(both.tokens, np.where(
      mixed[:, None] == 8, want[1].tokens, want[0].tokens))
  assert (want[0].tokens != want[1].tokens).any(-1).sum() > 10


def test_cut_at_every_position_it_goes_on_as_the_whole():
  whole, _ = _whole()
  requests = plain._requests()
  rows, done = (np.array(x) for x in zip(*(
      (i, t) for i, n in enumerate(whole.length) for t in range(n))))
  states = [_states(whole.tokens[i, :whole.length[i]])
            for i in range(plain._R)]
  parts = jax.tree.map(lambda x: x[rows], requests)
  got, _ = _quick(_new(parts, done, whole.tokens[rows]).replace(
      match=np.array([states[i][t] for i, t in zip(rows, done)], np.int32)))
  np.testing.assert_array_equal(got.length, whole.length[rows])
  np.testing.assert_array_equal(got.truncated, whole.truncated[rows])
  np.testing.assert_array_equal(
      got.match, [states[i][-1] for i in rows])
  want = _rows(whole, rows, done)
  np.testing.assert_array_equal(got.tokens, want['tokens'])
  for name in want:
    np.testing.assert_allclose(getattr(got, name), want[name], **_CLOSE)
  for i in range(plain._R):
    tokens = whole.tokens[i, :whole.length[i]]
    logits = plain._teacher_forced(plain._FAMILIES[_FAMILY], tokens, i)
    logprobs = np.log([reference.softmax(row)[token]
                       for row, token in zip(logits, tokens)])
    for row in np.flatnonzero(rows == i):
      first = done[row]
      np.testing.assert_allclose(
          got.logprobs[row, first:len(tokens)], logprobs[first:], **_CLOSE)
  # Texts ended some of them, after a cut inside of a text too.
  last = [x[-1] for x in states]
  assert 1 < last.count(max(last)) < plain._R
  assert len(rows) > 50


def test_observations_are_read_as_if_they_had_been_drawn():
  rng = np.random.default_rng(1)
  requests = plain._requests()
  tokens = rng.integers(0, 13, (plain._R, plain._T))
  done = rng.integers(0, requests.budget)
  got, _ = _quick(_new(requests, done, tokens))
  assert (got.length > done).all()
  for i, (first, n) in enumerate(zip(done, got.length)):
    assert not got.tokens[i, :first].any()
    row = [*tokens[i, :first], *got.tokens[i, first:n]]
    logits = plain._teacher_forced(plain._FAMILIES[_FAMILY], row, i)[first:]
    np.testing.assert_allclose(
        got.logprobs[i, first:n], np.log([
            reference.softmax(x)[token] for x, token in zip(logits, row[first:])
        ]), **_CLOSE)


def test_calls_of_a_few_steps_make_the_whole():
  """The host merges what calls of 0 to 5 steps return."""
  whole, _ = _whole()
  requests = plain._requests()
  n = plain._R
  got = {name: np.zeros_like(getattr(whole, name)) for name in _CHANNELS}
  done, match = np.zeros((2, n), np.int32)
  left, cut, limits = np.arange(n), 0, iter((3, 0, 1, 5) + (2,) * 30)
  while len(left):
    limit = next(limits)
    part, used = _quick(_new(
        jax.tree.map(lambda x, left=left: x[left], requests), done[left],
        got['tokens'][left]).replace(match=match[left]), max_steps=limit)
    assert used.steps <= limit
    assert used.busy == np.maximum(part.length - done[left], 0).sum()
    for name, x in got.items():
      x[left] += getattr(part, name)
    served = part.length > 0
    assert served.any() == (limit > 0)
    done[left], match[left] = (
        np.where(served, part.length, done[left]),
        np.where(served, part.match, match[left]))
    cut += np.sum(part.truncated & (part.length < requests.budget[left]))
    left = left[~served | part.truncated & (
        part.length < requests.budget[left])]
  np.testing.assert_array_equal(done, whole.length)
  np.testing.assert_array_equal(match, whole.match)
  np.testing.assert_array_equal(got['tokens'], whole.tokens)
  for name, x in got.items():
    np.testing.assert_allclose(x, getattr(whole, name), **_CLOSE)
  assert cut > 10


def test_one_program_whose_caches_are_updated_in_place():
  """After the tests above, or after these two calls."""
  _whole()
  _quick(_new(plain._requests()), max_steps=1)
  run = _jitted(_FAMILY, plain._T, **_OPTIONS)
  assert run._cache_size() == 1
  requests = jax.tree.map(
      lambda x: np.pad(x, ((0, _ROWS - plain._R), *[(0, 0)] * (x.ndim - 1))),
      _new(plain._requests()))
  text = run.lower(
      plain._params(plain._FAMILIES[_FAMILY]), Queue(
          plain._prompts(), requests, plain._R, np.int32(1)), _BASE,
      SamplingParams(), 12).compile().as_text()
  # Rings of 9 columns and 2 seats of 6, in chunks of 4.
  shapes = 'f32[3,2,6,12]', 'f32[3,2,12,6]', 'f32[3,2,6,8]', 'f32[3,2,8,6]'
  loops = [part for part in text.split('\n\n') if 'ENTRY' not in part]
  for shape in shapes:
    assert any(shape in part for part in loops), shape
    assert not [line for part in loops for line in part.splitlines()
                if ' copy(' in line and f'= {shape}' in line]


def test_errors_name_the_field():
  for requests, options in (
      (plain._requests(), dict(continues=True)),
      (_new(plain._requests()), dict(continues=False))):
    with pytest.raises(ValueError, match='give done, tokens and birth'):
      plain._run('qwen2', requests=requests, **options)
  requests = plain._requests()
  for done in (requests.budget, requests.budget + 1):
    with pytest.raises(ValueError, match='request 3 has done='):
      plan_lib.plan(
          plain._prompts(), _new(requests, np.where(
              np.arange(plain._R) == 3, done, 0)), shards=1,
          requests_per_shard=plain._R, prompts_per_shard=6)


def _abstract(mesh, sampler, *, prompt, requests, prompts):
  """Returns shapes of the arguments of a sampler after the weights."""
  made = programs.SamplerProgram(
      None, sampler, prompts, requests, requests, prompts)
  return arguments._generate(types.SimpleNamespace(
      config=types.SimpleNamespace(
          max_prompt=prompt, max_response=sampler.max_response),
      mesh=mesh, rollout_sampler=types.SimpleNamespace(sampler=made)))


class _Called(Exception):
  """Ends a call of the sampler, whose arguments are known."""


@pytest.mark.parametrize('texts', [(), _OPTIONS['texts']])
def test_the_host_gives_the_arguments_that_are_compiled_ahead(texts):
  seen = []

  def generate(weights, *rest):
    seen.append(jax.tree.map(lambda x: (x.shape, x.dtype), rest))
    raise _Called

  made = programs.SamplerProgram(generate, SamplerConfig(
      slots=2, max_response=plain._T, continues=True,
      stop_texts=_texts(texts) if texts else None), 6, plain._R, plain._R, 6)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  requests = _new(plain._requests())
  if not texts:
    requests = requests.replace(match=None)
  for limit in (None, 3):
    with pytest.raises(_Called):
      rollout.host_sampler(made, mesh)(
          {}, plain._prompts(), requests, _BASE, processes.replicate(
              SamplingParams(), mesh), policy_step=0, max_steps=limit)
  want = _abstract(
      mesh, made.sampler, prompt=6, requests=plain._R, prompts=6)
  want = jax.tree.map(lambda x: (x.shape, x.dtype), want)
  assert seen == [want, want]


@pytest.mark.slow
@devices.needs_libtpu
def test_a_tpu_copies_no_cache():
  """Its compiler may choose another layout where a slot is refilled."""
  cfg = ModelConfig(
      vocab_size=256, width=256, layers=3, heads=8, kv_heads=8, head_dim=128,
      mlp_width=256, dtype='bfloat16')
  sampler = SamplerConfig(
      slots=16, max_response=1024, chunk=256, share_prompts=True,
      continues=True, continue_chunk=256)
  mesh = sharding.make_mesh(4, 1, 1, chips.topology('v5e:2x2').devices)
  weights = sharding.abstract_params(
      jax.eval_shape(lambda: transformer.init(_BASE, cfg)),
      sharding.SAMPLE_RULES, mesh, 'bfloat16')
  text = jax.jit(functools.partial(
      generate_lib.sharded_generate, mesh, cfg=cfg, sampler=sampler)).lower(
          weights, *_abstract(mesh, sampler, prompt=512, requests=16, prompts=5)
      ).compile().as_text()
  for shape in ('bf16[3,16,8,128,1024]', 'bf16[3,16,8,1024,128]',
                'bf16[3,5,8,128,512]'):
    assert text.count(f' {shape}{{4,3,2,1,0'), shape
    assert not text.count(f' {shape}{{3,4'), shape
  assert not re.search(r'= bf16\[3,16,8,\d+,\d+\]\S* copy\(', text)


_LONG = 40


@pytest.mark.slow
@pytest.mark.parametrize('family, options', [
    ('qwen2', dict(unroll=True, transpose=150, continue_chunk=16)),
    ('qwen3', dict(continue_chunk=64)),
    ('llama3', dict(chunk=4, share_prompts=True, continue_chunk=3)),
    ('gemma2', dict(chunk=8, unroll=True, continue_chunk=5)),
    ('gemma3', dict(share_prompts=True, prefill_prompts=1, continue_chunk=7)),
    ('gemma3', dict(kv='int8', chunk=8, prefill_lengths=(3,))),
    ('qwen3', dict(kv='float8', unroll=True, share_prompts=True)),
    ('qwen3_moe', dict(chunk=8, continue_chunk=8)),
    ('qwen3_moe', dict(unroll=True, transpose=150))], ids=str)
def test_every_position_of_20_responses(family, options):
  cfg = plain._FAMILIES[family]
  rng = np.random.default_rng(3)
  requests = Requests(
      rng.choice([0, 1, 3, 4, 5], 20).astype(np.int32),
      np.arange(20, dtype=np.int32), np.full(20, _LONG, np.int32))
  run = functools.partial(
      _run, family=family, length=_LONG, slots=16, rows=20 * _LONG,
      stop_ids=(), **options)
  whole, _ = run(_new(requests, length=_LONG))
  rows, done = (x.ravel() for x in np.mgrid[:20, :_LONG])
  got, _ = run(_new(
      jax.tree.map(lambda x: x[rows], requests), done, whole.tokens[rows],
      length=_LONG))
  prompts = plain._prompts()
  noise = np.asarray(queue_lib.noise(
      jax.random.fold_in(_BASE, _BIRTH), prompts.problem_id[requests.prompt],
      requests.sample, _LONG))
  # Draws whose token depends on the rounding, and what comes after them.
  doubtful, logprobs = np.zeros((2, 20, _LONG))
  for i, tokens in enumerate(whole.tokens):
    p = requests.prompt[i]
    probs = np.stack([reference.softmax(x) for x in reference.teacher_forced(
        plain._params(cfg), prompts.tokens[p, :prompts.length[p]], tokens,
        6 + _LONG, cfg)])
    logprobs[i] = np.log(probs[range(_LONG), tokens])
    doubtful[i] = np.cumsum(np.any(
        np.abs(probs.cumsum(-1) - noise[i, :, None]) < 1e-5, -1))
  assert np.sum(doubtful[:, -1]) < 4
  new = (np.arange(_LONG) >= done[:, None]) & (doubtful[rows] == 0)
  assert new.sum() > .7 * 20 * _LONG * _LONG / 2
  both = lambda x, y: (np.where(new, x, 0), np.where(new, y[rows], 0))
  if 'kv' in options:
    # A number halfway between two of 8 bits may be either.
    same = np.isclose(*both(got.logprobs, whole.logprobs), **_CLOSE).all(-1)
    assert np.mean(same) > .9
    new &= same[:, None]
  else:  # A forward pass has no rounded keys and values.
    np.testing.assert_allclose(*both(got.logprobs, logprobs), **_CLOSE)
  np.testing.assert_array_equal(*both(got.tokens, whole.tokens))
  for name in ('logprobs', 'entropy'):
    np.testing.assert_allclose(
        *both(getattr(got, name), getattr(whole, name)), **_CLOSE)
  np.testing.assert_array_equal(got.length, _LONG)
  assert not np.any(got.tokens[np.arange(_LONG) < done[:, None]])


def _on_meshes(shapes):
  """Returns tokens, lengths and log-probs, on one device and on meshes."""
  cfg = dataclasses.replace(
      plain._FAMILIES['qwen3_moe'], vocab_size=16, experts=4)
  params, rng = plain._params(cfg), np.random.default_rng(1)
  requests = plain._requests()
  requests = _new(requests, rng.integers(0, requests.budget), rng.integers(
      0, 13, (plain._R, plain._T)))
  sampler = SamplerConfig(
      slots=plain._R, max_response=plain._T, stop_ids=plain._STOP,
      continues=True, continue_chunk=2, share_prompts=True)
  jit = lambda f, *args: jax.jit(functools.partial(
      f, *args, cfg=cfg, sampler=sampler))
  results = [jit(generate_lib.generate)(
      params, Queue(plain._prompts(), requests, plain._R, np.int32(3)), _BASE,
      SamplingParams(), 0)[0]]
  for shape in shapes:
    mesh = sharding.make_mesh(*shape)
    shards = shape[0] * shape[1]
    plan = plan_lib.plan(
        plain._prompts(), requests, shards=shards,
        requests_per_shard=plain._R // shards, prompts_per_shard=6)
    rows = NamedSharding(mesh, P(('data', 'fsdp')))
    put = lambda x, mesh=mesh: jax.device_put(x, NamedSharding(mesh, P()))
    placed = jax.device_put(params, sharding.shardings(
        params, sharding.SAMPLE_RULES, mesh))
    rollouts, _ = jit(generate_lib.sharded_generate, mesh)(
        placed, jax.device_put(
            Queue(*plan[:3], np.full(shards, 3, np.int32)), rows),
        put(_BASE), put(SamplingParams()), put(0))
    results.append(plan_lib.undo(
        rollouts, plan, np.arange(len(rollouts.length))))
  return [{name: np.asarray(getattr(x, name)).tolist()
           for name in ('tokens', 'length', 'truncated', 'logprobs')}
          for x in results]


@pytest.mark.slow
def test_meshes_give_the_tokens_of_one_device():
  one, *others = devices.run(_on_meshes, [[8, 1, 1], [2, 2, 2]])
  assert any(one['truncated'])
  for other in others:
    for name in ('tokens', 'length', 'truncated'):
      assert other[name] == one[name]
    np.testing.assert_allclose(other['logprobs'], one['logprobs'], **_CLOSE)
