"""Countdown where the largest |advantage| misleads; a bandit of row rewards.

`create` makes a task whose verifier flips the verdict of some long responses to
training problems. In a group that solves nothing a flipped verdict is the one
with the largest |advantage|, and length, a feature of CBS, tells where this
happens. Held-out problems are judged as they are.

`learning` has CBS's scheduler learn from a reward of each row:

  r_i = <A_i d log p(i) / dW, mean_j A_j d log p(j) / dW>

W is the unembedding, i a row at its update, and j the rows of the next batch,
so that nothing more is sampled. It is how much a small step on row i alone
raises the next batch's objective, seen from the last layer. The scheduler
learns r_i / s; s^2 is a running mean of r^2 with the weight of CBS's newest
gain.
"""

import contextlib
import dataclasses
import functools
import hashlib
from typing import Annotated, Any, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.claims import oracle
from jaxrl_llm import config as config_lib
from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.selection import bandit
from jaxrl_llm.selection.cbs import Options as Scheduler
from jaxrl_llm.selection.replay import buffered, oldest_first
from jaxrl_llm.tasks import countdown, Problem
from jaxrl_llm.types import Array, LearnerBatch


@dataclasses.dataclass(frozen=True)
class Options(countdown.Options):
  """Options of the task.

  Attributes:
    flipped: share of the long responses whose verdict is flipped.
    long: characters from which a response is long.
  """
  flipped: Annotated[float, '[0, 1]'] = 0.15
  long: int = 12


class Misled(countdown.Countdown):
  """Countdown with flipped verdicts; see the module."""
  options: Options

  def __init__(self, options: Options, tokenizer: Tokenizer | None = None):
    super().__init__(options, tokenizer)
    self._trained = {problem.id for problem in self.train}

  def verify(self, problem: Problem, text: str, truncated: bool) -> Verdict:
    """Judges a response; the same text to a problem is always judged alike."""
    verdict = super().verify(problem, text, truncated)
    if truncated or problem.id not in self._trained or (
        len(text) < self.options.long):
      return verdict
    digest = hashlib.sha256(f'{problem.id} {text}'.encode()).digest()
    if int.from_bytes(digest[:4]) >= self.options.flipped * 2 ** 32:
      return verdict
    return Verdict(1.0 - verdict.reward, 'flipped')


_DEFAULTS = Options()


def create(
    tokenizer: Tokenizer | None = None, options: Options = _DEFAULTS) -> Misled:
  """Makes the task."""
  return Misled(options, tokenizer)


@functools.partial(jax.jit, static_argnames='model')
def gradients(
    params: Any, batch: LearnerBatch, temperature: float, *,
    model: ModelConfig) -> Array:
  """Returns [B, V D], each row's advantage times d log p / dW."""
  columns = batch.prompt_length[:, None] + jnp.arange(batch.mask.shape[1])
  columns = jnp.minimum(columns, batch.tokens.shape[1] - 1)[..., None]
  hidden, _ = transformer.forward(params, batch.tokens, cfg=model)
  hidden = jnp.take_along_axis(hidden, columns - 1, axis=1)
  targets = jnp.take_along_axis(batch.tokens, columns[..., 0], axis=1)
  logits = transformer.logits(params, hidden, model) / temperature
  slope = jax.nn.one_hot(targets, logits.shape[-1]) - jax.nn.softmax(logits)
  slope = jnp.where(batch.mask[..., None], slope / temperature, 0.0)
  found = jnp.einsum('btv,btd->bvd', slope, hidden.astype(slope.dtype))
  return found.reshape(len(found), -1) * batch.advantages[:, None]


class Learner:
  """CBS's scheduler with a reward of each row, an inner product.

  Attributes:
    options: CBS's, for the scheduler and its epsilon.
    response: most tokens of a response.
    state: of the scheduler.
    square: running mean of squared rewards.
    rounds: rounds that were picked for.
    pending: features [K, F] and gradients [K, V D] of the last picks.
    rewards: of the rows that were last learned from.
    correlations: of scores and features, of each round.
  """

  def __init__(self, options: Scheduler, response: int, seed: int):
    self.options, self.response = options, response
    self.state, self.rounds = bandit.init(options, (seed,)), 0
    self.square = 0.0
    self.pending: tuple[np.ndarray, np.ndarray] | None = None
    self.rewards = np.zeros(0)
    self.correlations: list[dict[str, float]] = []

  def learn(self, direction: np.ndarray) -> None:
    """Trains the scheduler on the last picks, by the next batch's gradient."""
    if self.pending is None:
      return
    features, rows = self.pending
    self.rewards = rows @ direction
    alpha = self.options.alpha if self.square else 1.0
    self.square += alpha * (float((self.rewards ** 2).mean()) - self.square)
    self.state, _ = bandit.train(
        self.options, self.state, features,
        self.rewards / (self.square ** 0.5 or 1.0))

  def pick(
      self, features: np.ndarray, rows: np.ndarray, count: int,
      rng: np.random.Generator) -> np.ndarray:
    """Picks `count` rows by their scores; [M, F], [M, V D] -> [count]."""
    self.rounds += 1
    self.state = self.state._replace(
        moments=bandit.observe(self.state.moments, features))
    scores = bandit.scores(self.options, self.state, features)
    self.correlations.append(bandit.correlations(scores, features))
    epsilon = bandit.epsilon(
        self.rounds, warmup=self.options.warmup, start=self.options.epsilon,
        decay=self.options.epsilon_decay, least=self.options.epsilon_min)
    picked = bandit.pick(
        scores, np.zeros(len(features), np.int16),
        rng.random(count) < epsilon, rng.permutation(len(features)))
    self.pending = features[picked], rows[picked]
    return picked


@contextlib.contextmanager
def learning(config: Any, options: Scheduler) -> Iterator[Learner]:
  """Has a `Learner` pick the rows of a run within it.

  Args:
    config: of the run, one round a step. Its selection is `largest_advantage`
      within groups, which says how many rows are picked and not which.
    options: of the scheduler.
  """
  model = config_lib.model_config(config)
  temperature = config.sampling.temperature
  learner = Learner(options, config.max_response, config.seed)

  def pick(params, tokens, table, rounds, key, count):
    rows = oldest_first(table, buffered(table, rounds, 1))
    found = np.concatenate(oracle.in_chunks(
        lambda batch: np.asarray(gradients(
            params, batch, temperature, model=model)),
        tokens, rows, table.advantage[rows]))[:len(rows)]
    learner.learn(found.mean(0))
    return rows[learner.pick(
        bandit.features(table, rows, rounds=rounds - 1,
                        response=learner.response),
        found, min(count, len(rows)), np.random.default_rng(key))]

  with oracle.picked_by(lambda *_: pick):
    yield learner
