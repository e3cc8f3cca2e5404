"""Tests of the oracle of CBS's claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.claims import oracle
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.types import RolloutTokens

MODEL = ModelConfig(
    vocab_size=7, width=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    mlp_width=8)
CLIP = dict(clip_low=0.2, clip_high=0.2)
ROWS, L, T = 5, 3, 4


def rollouts(rng):
  length = np.array([4, 1, 3, 2, 4], np.int32)
  real = np.arange(T) < length[:, None]
  return RolloutTokens(
      prompt=rng.integers(1, 7, (ROWS, L)).astype(np.int32),
      prompt_length=np.array([3, 2, 1, 3, 2], np.int32),
      response=np.where(real, rng.integers(1, 7, (ROWS, T)), 0).astype(
          np.int32), length=length,
      behaviour_logprobs=np.zeros((ROWS, T), np.float32),
      old_logprobs=np.where(real, rng.uniform(-2.3, -1.7, (ROWS, T)), 0).astype(
          np.float32))


def row_loss(params, tokens, row, advantage, temperature):
  """The clipped loss of one row, token by token."""
  prompt = tokens.prompt[row, :tokens.prompt_length[row]]
  response = tokens.response[row, :tokens.length[row]]
  sequence = jnp.array([*prompt, *response])[None]
  hidden, _ = transformer.forward(params, sequence, cfg=MODEL)
  logp = jax.nn.log_softmax(
      transformer.logits(params, hidden, MODEL)[0] / temperature)
  new = jnp.stack([logp[len(prompt) + t - 1, token]
                   for t, token in enumerate(response)])
  ratio = jnp.exp(new - tokens.old_logprobs[row, :len(response)])
  bounded = jnp.clip(ratio, 1 - .2, 1 + .2)
  return -jnp.sum(jnp.minimum(ratio * advantage, bounded * advantage))


@pytest.mark.slow
def test_scores_are_inner_products_with_the_probes_gradient(monkeypatch):
  monkeypatch.setattr(oracle, 'CHUNK', 4)  # two passes, the last with filler
  rng = np.random.default_rng(0)
  tokens = rollouts(rng)
  params = transformer.init(jax.random.key(1), MODEL)
  advantage = np.array([1.0, -1.0, 0.5, 0.0, -2.0], np.float32)
  parts = oracle.in_chunks(
      lambda batch: oracle.reward_gradient(params, batch, 0.9, model=MODEL),
      tokens, np.arange(ROWS), advantage)
  gradient = jax.tree.map(lambda *x: sum(x), *parts)

  def log_prob(params, row):
    # At old log-probs equal to the new ones, the loss of advantage -1 has the
    # gradient of the log-prob.
    prompt, length = tokens.prompt_length[row], tokens.length[row]
    sequence = jnp.array(
        [*tokens.prompt[row, :prompt], *tokens.response[row, :length]])[None]
    hidden, _ = transformer.forward(params, sequence, cfg=MODEL)
    logp = jax.nn.log_softmax(
        transformer.logits(params, hidden, MODEL)[0] / 0.9)
    return sum(logp[prompt + t - 1, sequence[0, prompt + t]]
               for t in range(length))

  want = jax.tree.map(
      lambda *x: sum(a * g for a, g in zip(advantage, x)),
      *(jax.grad(log_prob)(params, row) for row in range(ROWS)))
  # Sums of some 100 float32 products of order 1.
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-5), gradient, want)

  found = -np.concatenate(oracle.in_chunks(
      lambda batch: np.asarray(oracle.slopes(
          params, gradient, batch, 0.9, CLIP, model=MODEL, objective='clip')),
      tokens, np.arange(ROWS), advantage))[:ROWS]
  for row in range(ROWS):
    of_row = jax.grad(row_loss)(params, tokens, row, advantage[row], 0.9)
    score = -sum(jax.tree.leaves(jax.tree.map(jnp.vdot, of_row, want)))
    np.testing.assert_allclose(found[row], score, rtol=1e-3, atol=1e-4)
  assert found[3] == 0 and (np.abs(found[[0, 1, 2, 4]]) > 1e-3).sum() >= 2
