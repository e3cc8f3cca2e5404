"""An oracle of CBS's claim: it picks the rows whose gradients help most.

In each round a probe batch is sampled anew: other training problems, as many as
a step has, under the policy before the update. Its responses give an estimate g
of the gradient of the mean reward (REINFORCE with RLOO's baseline). A row i
with the loss L_i, a sum over its tokens, has the score

  s_i = -d/de L_i(theta + e g) at e = 0,

the inner product of g and the negative gradient of L_i: how much a small step
of plain gradient descent on row i alone raises the mean reward of the probe.
The rows with the largest scores are trained on, of equal ones the newest.
Candidates and their number are those of CBS. No run could afford this: the
probe costs as many samples as the step, and they are not counted.
"""

import contextlib
import functools
from typing import Any, Callable, Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.learner import update as update_lib
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop import step as loop
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import advantages
from jaxrl_llm.selection.replay import buffered, oldest_first
from jaxrl_llm.types import Array, LearnerBatch, RolloutTokens

CHUNK = 64  # rows of a pass
FIRST = 1 << 20  # sample number of the probes: no sample of a run has it


def log_probs(
    params: Any, batch: LearnerBatch, temperature: float, *,
    model: ModelConfig) -> Array:
  """Returns [B, T] log-probs of the responses' tokens, any past their ends."""
  columns = batch.prompt_length[:, None] + jnp.arange(batch.mask.shape[1])
  columns = jnp.minimum(columns, batch.tokens.shape[1] - 1)
  hidden, _ = transformer.forward(params, batch.tokens, cfg=model)
  logits = jnp.take_along_axis(
      transformer.logits(params, hidden, model), columns[..., None] - 1, axis=1)
  targets = jnp.take_along_axis(batch.tokens, columns, axis=1)
  return jnp.take_along_axis(
      jax.nn.log_softmax(logits / temperature), targets[..., None],
      axis=-1)[..., 0]


@functools.partial(jax.jit, static_argnames='model')
def reward_gradient(params, batch, temperature, *, model):
  """Returns the gradient of the sum of advantage times log-prob."""
  return jax.grad(lambda params: jnp.sum(jnp.where(
      batch.mask, log_probs(params, batch, temperature, model=model), 0.0)
                                         * batch.advantages[:, None]))(params)


@functools.partial(jax.jit, static_argnames=('model', 'objective'))
def slopes(
    params, direction, batch, temperature, hyperparameters, *, model,
    objective):
  """Returns [B] the derivative of each row's loss along a direction."""
  def loss(params, row):
    new = log_probs(params, row, temperature, model=model)
    return jnp.sum(update_lib.OBJECTIVES[objective](
        new, row.old_logprobs, row.advantages, row.mask, **hyperparameters
    ).loss)

  # The model has no forward-mode derivative.
  def slope(row):
    gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[None], row))
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradient, direction)))

  return jax.vmap(slope)(batch)


def in_chunks(
    function: Callable[[LearnerBatch], Any], tokens: RolloutTokens,
    rows: np.ndarray, advantage: np.ndarray) -> list[Any]:
  """Applies a function to batches of CHUNK rows; filler has no mask."""
  made = []
  for first in range(0, len(rows), CHUNK):
    part = slice(first, first + CHUNK)
    fill = CHUNK - len(rows[part])
    chosen = np.pad(rows[part], (0, fill), constant_values=-1)
    made.append(function(rows_lib.learner_batch(
        tokens, chosen, np.pad(advantage[part], (0, fill)), chosen >= 0)))
  return made


def probe_gradient(
    parts: Any, state: Any, fixed: Any, policy: tuple[ModelConfig, float],
) -> Any:
  """Samples a probe batch, and returns its gradient of the mean reward."""
  config, task = parts.config, parts.task
  sampler = parts.programs.rollout_sampler
  model, temperature = policy
  n, count = config.samples_per_prompt, config.prompts_per_step
  rng = np.random.default_rng((config.seed, state.step, FIRST))
  chosen = rng.choice(len(task.train), count, replace=False)
  problems = [task.train[i] for i in chosen]
  call = rollout.SampleCall(
      problems, rollout.encode(problems, task.tokenizer, config.max_prompt),
      rollout.requests(
          np.repeat(np.arange(count), n),
          FIRST + np.tile(np.arange(n), count), config.max_response))
  responses = rollout.respond(
      parts.sample, sampler.weights.apply(
          state.learner.params, fixed.frozen['policy']), call, parts.step_key(
              parts.replicate(np.uint32(state.step))), fixed.sampling,
      tokenizer=task.tokenizer, processes=parts.processes)
  with jax.transfer_guard('allow'):
    judged = rollout.start_judging(task, responses, parts.processes)()
    advantage = np.asarray(advantages.rloo(
        jnp.nan_to_num(judged.reward.reshape(count, n)),
        where=judged.valid.reshape(count, n))).reshape(-1)
    rollouts, row = responses.rollouts, call.requests.prompt
    tokens = RolloutTokens(
        prompt=call.prompts.tokens[row],
        prompt_length=call.prompts.length[row], response=rollouts.tokens,
        length=rollouts.length, behaviour_logprobs=rollouts.logprobs)
    parts_of_it = in_chunks(
        lambda batch: reward_gradient(
            state.learner.params, batch, temperature, model=model),
        tokens, np.arange(count * n), advantage)
    return jax.tree.map(lambda *x: sum(x) / (count * n), *parts_of_it)


@contextlib.contextmanager
def picked_by(prepare: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
  """Replaces the picks of the selection in runs within it.

  Args:
    prepare: (parts, state, fixed), those of `loop.learn` -> a function (params,
      tokens, table, rounds begun, key, count) -> numbers of rows, of which the
      first `count` are trained on. The run's selection says how many these are.
  """
  learn = loop.learn

  def learn_by(parts, state, fixed, absorbed, tokens, timer):
    # The update is given these arrays to overwrite.
    params = jax.tree.map(jnp.copy, state.learner.params)
    pick = prepare(parts, state, fixed)

    def select(chosen, table, batch, key):
      chosen, filler = selection.select(chosen, table, batch, key)
      count = len(filler)
      with jax.transfer_guard('allow'):
        rows = pick(params, tokens, table, chosen.rounds, key, count)[:count]
      return chosen, np.pad(rows, (0, count - len(rows)), constant_values=-1)

    selection = parts.stages.selection
    stages = parts.stages._replace(selection=selection._replace(select=select))
    return learn(
        parts._replace(programs=parts.programs._replace(stages=stages)), state,
        fixed, absorbed, tokens, timer)

  with mock.patch.object(loop, 'learn', learn_by):
    yield


def picking(config: Any) -> contextlib.AbstractContextManager[None]:
  """Has the oracle pick the rows of runs within it.

  Args:
    config: of the run. Its selection is `largest_advantage`, which makes room
      for the candidates; it is not asked which to pick.
  """
  model = config_lib.model_config(config)
  temperature = config.sampling.temperature
  last = config.largest_advantage.rounds

  def prepare(parts, state, fixed):
    gradient = probe_gradient(parts, state, fixed, (model, temperature))

    def pick(params, tokens, table, rounds, key, count):
      del key, count
      rows = oldest_first(table, buffered(table, rounds, last))
      scores = -np.concatenate(in_chunks(
          lambda batch: np.asarray(slopes(
              params, gradient, batch, temperature, fixed.loss.objective,
              model=model, objective=config.loss.objective)),
          tokens, rows, table.advantage[rows]))[:len(rows)]
      return rows[np.lexsort((-table.round[rows], -scores))]

    return pick

  return picked_by(prepare)
