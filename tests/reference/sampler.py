"""Reference sampler: one request and one token at a time.

For every token, it runs the model over the whole row so far. Truncation is done
in float64, one filter after another, as in the papers. The noise comes from the
same keys as the sampler's, so the tokens must be identical.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.models import transformer


def softmax(x):
  e = np.exp(x - x.max())
  return e / e.sum()


def filtered(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
  """Returns probabilities of float64 logits [V] before and after truncation."""
  logits = np.asarray(logits, np.float64)
  if temperature == 0:
    one = np.zeros(logits.size)
    one[logits.argmax()] = 1.0
    return one, one
  tempered = probs = softmax(logits / temperature)
  if top_k:
    kth = sorted(probs, reverse=True)[min(top_k, probs.size) - 1]
    probs = np.where(probs >= kth, probs, 0)
    probs = probs / probs.sum()
  if top_p < 1:
    mass, least = 0.0, probs.max()
    for p in sorted(probs, reverse=True):
      if mass >= top_p:
        break
      mass, least = mass + p, p
    probs = np.where(probs >= least, probs, 0)
    probs = probs / probs.sum()
  probs = np.where(probs >= min_p * probs.max(), probs, 0)
  return tempered, probs / probs.sum()


def entropy(probs):
  """Computes the entropy in nats; 0 log 0 is 0."""
  return -sum(p * np.log(p) for p in probs if p > 0)


@functools.partial(jax.jit, static_argnums=2)
def _all_logits(params, row, cfg):
  hidden, _ = transformer.forward(params, row[None], cfg=cfg)
  return transformer.logits(params, hidden[0], cfg)


def teacher_forced(params, prompt, response, width, cfg):
  """Returns float64 logits [T, V] of the response from a full forward pass."""
  row = np.zeros(width, np.int32)
  row[:len(prompt) + len(response)] = [*prompt, *response]
  logits = _all_logits(params, jnp.asarray(row), cfg)
  first = len(prompt) - 1
  return np.asarray(logits, np.float64)[first:first + len(response)]


def generate(params, prompts, requests, count, key, sampling, cfg, *,
             max_response, stop_ids=()):
  """Returns (tokens, behaviour log-probs, entropies) of each request."""
  width = prompts.tokens.shape[1] + max_response
  responses = []
  for i in range(count):
    p = int(requests.prompt[i])
    prompt = prompts.tokens[p, :prompts.length[p]].tolist()
    sample_key = jax.random.fold_in(
        jax.random.fold_in(key, int(prompts.problem_id[p])),
        int(requests.sample[i]))
    noise = np.asarray(jax.random.uniform(sample_key, (max_response,)))
    tokens, logprobs, entropies = [], [], []
    while len(tokens) < requests.budget[i]:
      logits = teacher_forced(params, prompt, [*tokens, 0], width, cfg)[-1]
      tempered, probs = filtered(logits, **sampling)
      # The token whose stretch of [0, 1) the uniform number falls into.
      token, below = 0, probs[0]
      while below <= noise[len(tokens)]:
        token += 1
        below += probs[token]
      tokens.append(token)
      logprobs.append(np.log(probs[token]))
      entropies.append(entropy(tempered))
      if token in stop_ids:
        break
    responses.append((tokens, logprobs, entropies))
  return responses
