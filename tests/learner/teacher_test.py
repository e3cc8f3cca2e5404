"""Tests of the KL to a teacher, on models of three tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import teacher as teacher_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.learner.options import OptimizerConfig
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.types import LearnerBatch
from tests.helpers import learners

V, L, T = 3, 2, 1
MODEL = ModelConfig(
    vocab_size=V, width=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    mlp_width=8)
LARGER = dataclasses.replace(MODEL, width=12, layers=2, mlp_width=20)
SGD = optimizer_lib.Optimizer(optax.sgd(1.0), optax.constant_schedule(1.0))
LOSS = update_lib.LossParams(
    temperature=0.8, entropy_bonus=0.0, kl_coef=0.0, budget=1.0,
    objective=dict(clip_low=0.2, clip_high=0.2), importance={},
    teacher=dict(coef=0.5))
PROMPT = np.array([1, 2])


@functools.cache
def params(larger=False):
  made = transformer.init(
      jax.random.key(3 + larger), LARGER if larger else MODEL)
  made = jax.tree.map(lambda x: 1.5 * x, made)
  return jax.device_get(made)


@functools.cache
def learner(**teacher):
  return learner_lib.make_learner(
      {'policy': learner_lib.PlayerModel(MODEL, SGD),
       'teacher': learner_lib.PlayerModel(LARGER)},
      learner_lib.LearnerConfig(
          tokens=16, max_prompt=L, max_response=T,
          teacher=teacher_lib.Distillation(**teacher)))


def batch(token, advantage=0.0):
  """Makes a row whose response is a token."""
  row = lambda value: np.full((1, T), value, np.float32)
  return LearnerBatch(
      tokens=np.int32([[*PROMPT, token]]), prompt_length=np.int32([L]),
      response_length=np.int32([T]), mask=np.ones((1, T), bool),
      behaviour_logprobs=row(-1.0), advantages=np.float32([advantage]))


def update(token, advantage=0.0, loss=LOSS, **teacher):
  """Returns the gradient of an update, and its metrics."""
  made = learner(**teacher)
  rows = batch(token, advantage)
  state, metrics = made.update(
      made.init({'policy': jax.device_put(params())}), rows,
      learners.plan(made, rows), jax.tree.map(np.float32, loss), None,
      {'teacher': jax.device_put(params(True))})
  assert {*state} == {'policy'}
  return jax.tree.map(
      lambda a, b: a - np.asarray(b), params(), state['policy'].params), metrics


def logp(tree, model, temperature):
  hidden, _ = transformer.forward(tree, PROMPT[None], cfg=model)
  return jax.nn.log_softmax(
      transformer.logits(tree, hidden, model)[0, -1] / temperature)


def kl(tree, temperature=.8, top_k=V):
  """Computes KL(policy || teacher) after the prompt, written out."""
  p, q = logp(tree, MODEL, temperature), logp(params(True), LARGER, temperature)
  first = jnp.argsort(-q)[:top_k]
  total = jnp.sum(jnp.exp(p[first]) * (p - q)[first])
  if top_k < V:
    p, q = (1 - jnp.sum(jnp.exp(x[first])) for x in (p, q))
    total += p * jnp.log(p / q)
  return total


def close(got, want):
  scale = max(np.abs(x).max() for x in jax.tree.leaves(want))
  assert scale > 1e-3
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=0, atol=1e-4 * scale), got, want)


@pytest.mark.parametrize('options, temperature, top_k', [
    (dict(kl='all'), .8, V), (dict(kl='all'), 2.0, V),
    (dict(kl='top_k', top_k=1), .8, 1), (dict(kl='top_k', top_k=2), 1.3, 2)])
def test_gradient_by_enumeration(options, temperature, top_k):
  """It does not depend on the sampled token."""
  loss = LOSS if temperature == .8 else LOSS.replace(
      teacher=dict(coef=0.5, temperature=temperature))
  of = functools.partial(kl, temperature=temperature, top_k=top_k)
  want = jax.tree.map(lambda x: .5 * x, jax.grad(of)(params()))
  for token in range(V):
    got, metrics = update(token, loss=loss, **options)
    close(got, want)
    np.testing.assert_allclose(
        metrics['teacher_kl'], of(params()), rtol=1e-4)
    np.testing.assert_allclose(
        metrics['loss'], .5 * metrics['teacher_kl'], rtol=1e-5)


def test_of_the_sampled_token_it_is_the_same_on_average():
  chance = np.exp(logp(params(), MODEL, .8))
  found = [update(token, kl='sampled') for token in range(V)]
  mean = jax.tree.map(
      lambda *x: sum(c * one for c, one in zip(chance, x)),
      *(grad for grad, _ in found))
  close(mean, jax.tree.map(lambda x: .5 * x, jax.grad(kl)(params())))
  np.testing.assert_allclose(
      sum(c * m['teacher_kl'] for c, (_, m) in zip(chance, found)),
      kl(params()), rtol=1e-4)


def test_it_is_added_to_the_loss_of_rewards():
  alone, _ = update(1, kl='all')
  without = LOSS.replace(teacher=dict(coef=0.0))
  reward, _ = update(1, 2.0, loss=without, kl='all')
  both, _ = update(1, 2.0, kl='all')
  close(both, jax.tree.map(np.add, alone, reward))
  assert max(np.abs(x).max() for x in jax.tree.leaves(reward)) > 1e-2


@pytest.mark.parametrize('form', ['all', 'sampled'])
def test_corrections_weigh_it(form):
  """The sampler gave the token a fourth of its old probability: weight 2."""
  made = learner(kl=form)
  cfg = learner_lib.LearnerConfig(
      tokens=16, max_prompt=L, max_response=T, importance='tis',
      teacher=teacher_lib.Distillation(kl=form))
  weighed = learner_lib.make_learner(
      {'policy': learner_lib.PlayerModel(MODEL, SGD),
       'teacher': learner_lib.PlayerModel(LARGER)}, cfg)
  old = np.full((1, T), float(logp(params(), MODEL, .8)[1]), np.float32)
  rows = batch(1).replace(
      old_logprobs=old, behaviour_logprobs=old - np.log(np.float32(4)))
  grads = []
  for one, loss in (made, LOSS), (weighed, LOSS.replace(
      importance=dict(cap=2.0))):
    state, _ = one.update(
        one.init({'policy': jax.device_put(params())}), rows,
        learners.plan(one, rows), jax.tree.map(np.float32, loss), None,
        {'teacher': jax.device_put(params(True))})
    grads.append(jax.tree.map(
        lambda a, b: a - np.asarray(b), params(), state['policy'].params))
  close(grads[1], jax.tree.map(lambda x: 2 * x, grads[0]))


# Prompts of the policy, and the longer and shorter ones of the teacher.
_PROMPTS = [[1, 2], [2], [0, 1]], [[0, 2, 1, 1, 2], [1], [2, 2, 0]]
_OF_ROW, _LENGTHS = np.array([0, 0, 1, 2, 2, 2]), np.array([3, 1, 2, 3, 2, 1])


def _sequences(prompts, columns, responses):
  """Returns sequences [B, columns + 3], and the lengths of their prompts."""
  out = np.zeros((len(_OF_ROW), columns + 3), np.int32)
  for row, prompt, response in zip(out, _OF_ROW, responses, strict=True):
    whole = [*prompts[prompt], *response]
    row[:len(whole)] = whole
  return out, np.int32([len(prompts[p]) for p in _OF_ROW])


@pytest.mark.parametrize('fields', [
    dict(kl='all'), dict(kl='top_k', top_k=1), dict(kl='sampled'),
    dict(kl='all', attention='splash', tokens=18),
    dict(kl='all', own=True, tokens=18)], ids=str)
def test_a_teacher_reads_a_prompt_of_its_own(fields):
  """Another model, or the policy itself; lists in chunks and in rows."""
  fields = {'tokens': 60} | fields
  own, more = fields.pop('own', False), {
      name: fields.pop(name) for name in ('attention', 'tokens')
      if name in fields}
  players = {'policy': learner_lib.PlayerModel(MODEL, SGD)}
  if not own:
    players['teacher'] = learner_lib.PlayerModel(LARGER)
  made = learner_lib.make_learner(players, learner_lib.LearnerConfig(
      max_prompt=2, max_response=3, samples=3, **more,
      teacher=teacher_lib.Distillation(**fields, prompt_columns=5)))
  rng = np.random.default_rng(0)
  responses = [rng.integers(0, V, n).tolist() for n in _LENGTHS]
  (tokens, length), (hinted, hinted_length) = (
      _sequences(prompts, columns, responses)
      for prompts, columns in zip(_PROMPTS, (2, 5)))
  mask = np.arange(3) < _LENGTHS[:, None]
  rows = LearnerBatch(
      tokens=tokens, prompt_length=length, response_length=np.int32(_LENGTHS),
      mask=mask, behaviour_logprobs=np.zeros((6, 3), np.float32),
      advantages=np.zeros(6, np.float32), teacher_tokens=hinted,
      teacher_prompt_length=hinted_length)
  plan = made.plan(_OF_ROW, np.maximum(length, hinted_length), _LENGTHS)
  state, metrics = made.update(
      made.init({'policy': jax.device_put(params())}), rows, plan,
      jax.tree.map(np.float32, LOSS), None,
      None if own else {'teacher': jax.device_put(params(True))})
  got = jax.tree.map(
      lambda a, b: a - np.asarray(b), params(), state['policy'].params)

  def logps(tree, model, tokens, length):
    hidden, _ = transformer.forward(tree, tokens, cfg=model)
    found = jax.nn.log_softmax(
        transformer.logits(tree, hidden, model) / .8)
    at = length[:, None] - 1 + np.arange(3)
    return jnp.take_along_axis(found, at[..., None], 1)

  def mean(tree):
    p = logps(tree, MODEL, tokens, length)
    q = jax.lax.stop_gradient(logps(
        *(params(), MODEL) if own else (params(True), LARGER), hinted,
        hinted_length))
    if fields['kl'] == 'sampled':
      of = lambda x: jnp.take_along_axis(
          x, np.int32([r + [0] * (3 - len(r)) for r in responses])[..., None],
          -1)[..., 0]
      p, q = of(p), of(q)
      kl = jnp.exp(p - jax.lax.stop_gradient(p)) * jax.lax.stop_gradient(p - q)
    elif fields['kl'] == 'top_k':
      first = jnp.argmax(q, -1)[..., None]
      p, q = (jnp.take_along_axis(x, first, -1)[..., 0] for x in (p, q))
      kl = jnp.exp(p) * (p - q) + (1 - jnp.exp(p)) * (
          jnp.log1p(-jnp.exp(p)) - jnp.log1p(-jnp.exp(q)))
    else:
      kl = jnp.sum(jnp.exp(p) * (p - q), -1)
    return jnp.sum(jnp.where(mask, kl, 0)) / mask.sum()

  want, grad = jax.value_and_grad(mean)(params())
  np.testing.assert_allclose(metrics['teacher_kl'], want, rtol=1e-4)
  close(got, jax.tree.map(lambda x: .5 * x, grad))


def test_a_teacher_of_another_model_must_be_given():
  made, rows = learner(kl='all'), batch(1)
  with pytest.raises(ValueError, match="give others={'teacher': ...}"):
    made.update(
        made.init({'policy': jax.device_put(params())}), rows,
        learners.plan(made, rows), jax.tree.map(np.float32, LOSS))


@pytest.mark.parametrize('form', ['all', 'sampled'])
def test_a_student_reaches_its_teacher(form):
  """After all nine prompts, by the tokens that the student draws itself."""
  adam = optimizer_lib.make_optimizer(OptimizerConfig(
      learning_rate=1e-2, schedule='linear'), 400)
  made = learner_lib.make_learner(
      {'policy': learner_lib.PlayerModel(MODEL, adam),
       'teacher': learner_lib.PlayerModel(LARGER)},
      learner_lib.LearnerConfig(
          tokens=64, max_prompt=L, max_response=T,
          teacher=teacher_lib.Distillation(kl=form)))
  prompts = np.array([[a, b] for a in range(V) for b in range(V)])
  prompts = np.repeat(prompts, 8, 0)
  state = made.init({'policy': jax.device_put(params())})
  teacher = {'teacher': jax.device_put(params(True))}
  loss = jax.tree.map(np.float32, LOSS.replace(teacher=dict(coef=1.0)))
  plan = None
  rng = np.random.default_rng(0)

  @jax.jit
  def distributions(tree):
    hidden, _ = transformer.forward(tree, prompts, cfg=MODEL)
    return jax.nn.log_softmax(
        transformer.logits(tree, hidden, MODEL)[:, -1] / .8)

  hidden, _ = transformer.forward(params(True), prompts, cfg=LARGER)
  q = jax.nn.log_softmax(
      transformer.logits(params(True), hidden, LARGER)[:, -1] / .8)
  found = []
  for _ in range(400):
    p = np.asarray(distributions(state['policy'].params))
    found.append(float(np.mean(np.sum(np.exp(p) * (p - q), -1))))
    token = np.argmax(p + rng.gumbel(size=p.shape), -1)
    rows = LearnerBatch(
        tokens=np.int32(np.c_[prompts, token]),
        prompt_length=np.full(len(token), L, np.int32),
        response_length=np.full(len(token), T, np.int32),
        mask=np.ones((len(token), T), bool),
        behaviour_logprobs=np.zeros((len(token), T), np.float32),
        advantages=np.zeros(len(token), np.float32))
    plan = plan or learners.plan(made, rows)
    state, _ = made.update(state, rows, plan, loss, None, teacher)
  assert found[0] > .1 and found[-1] < .01, found[::40]
