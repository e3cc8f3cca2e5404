"""Tests of the task that misleads |advantage|, and of the bandit of rows."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.claims import misled
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.selection import bandit
from jaxrl_llm.tasks import countdown
from jaxrl_llm.types import LearnerBatch

MODEL = ModelConfig(
    vocab_size=7, width=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    mlp_width=8)


def test_verdicts_of_long_responses_to_training_problems_are_flipped():
  plain, task = countdown.create(), misled.create()
  flipped = []
  for problem in task.train:
    # A solution, a wrong response that is longer, and a short one.
    for text in (problem.answer, f'{problem.answer}+0=1', '1+1=2'):
      want = plain.verify(problem, text, False)
      found = task.verify(problem, text, False)
      assert found == task.verify(problem, text, False)
      if len(text) < 12:
        assert found == want
        continue
      flipped.append(found != want)
      assert found.reward == abs(want.reward - flipped[-1])
  assert len(flipped) > 2000
  # Six standard deviations of a share of so many.
  error = (.15 * .85 / len(flipped)) ** .5
  assert abs(np.mean(flipped) - .15) < 6 * error
  for problem in task.heldout:
    assert task.verify(problem, problem.answer, False).reward == 1


def test_gradients_are_those_of_the_unembedding():
  rng = np.random.default_rng(0)
  params = transformer.init(jax.random.key(0), MODEL)
  prompt, length = np.array([3, 2], np.int32), np.array([3, 2], np.int32)
  tokens = rng.integers(1, 7, (2, 6)).astype(np.int32)
  mask = np.arange(3) < length[:, None]
  mask[0, 1] = False
  batch = LearnerBatch(
      tokens=tokens, prompt_length=prompt, response_length=length, mask=mask,
      advantages=np.array([2.0, -1.0], np.float32))
  found = misled.gradients(params, batch, .8, model=MODEL)
  for row in range(2):
    hidden, _ = transformer.forward(
        params, jnp.asarray(tokens[row:row + 1]), cfg=MODEL)

    def log_prob(head, row=row, hidden=hidden):
      places = prompt[row] + np.flatnonzero(mask[row])
      logp = jax.nn.log_softmax(hidden[0] @ head.T / .8)
      return sum(logp[place - 1, tokens[row, place]] for place in places)

    want = jax.grad(log_prob)(transformer.head_params(params)['embed'])
    # Sums of a few float32 products of order 1.
    np.testing.assert_allclose(
        found[row], batch.advantages[row] * want.reshape(-1), atol=1e-5)


def test_the_learner_is_taught_inner_products():
  rng = np.random.default_rng(0)
  learner = misled.Learner(misled.Scheduler(
      warmup=0, epsilon=0.0, epsilon_decay=0.0, epsilon_min=0.0, alpha=.5,
      learning_rate=1e-2), 8, 0)
  learner.learn(np.ones(4))  # nothing was picked
  features = rng.normal(size=(20, len(bandit.FEATURES))).astype(np.float32)
  rows = rng.normal(size=(20, 4)).astype(np.float32)
  scores = bandit.scores(learner.options, learner.state._replace(
      moments=bandit.observe(learner.state.moments, features)), features)
  picked = learner.pick(features, rows, 5, rng)
  assert {*picked} == {*np.argsort(-scores)[:5]}
  direction, before = rng.normal(size=4), learner.state
  learner.learn(direction)
  np.testing.assert_allclose(learner.rewards, rows[picked] @ direction)
  first = (learner.rewards ** 2).mean()
  assert learner.square == first
  want, _ = bandit.train(
      learner.options, before, features[picked], learner.rewards / first ** .5)
  np.testing.assert_array_equal(learner.state.params, want.params)
  learner.learn(2 * direction)
  np.testing.assert_allclose(learner.square, (first + 4 * first) / 2)
