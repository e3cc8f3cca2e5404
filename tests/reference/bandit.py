"""Naive twins of `selection.bandit` and `selection.cbs`, in float64."""

import numpy as np


def pick(scores, age, newest, order):
  """Picks one row after the other, each from all that are left."""
  left, picked = list(range(len(scores))), []
  for take_newest in newest:
    if take_newest:
      best = min(left, key=lambda i: (age[i], list(order).index(i)))
    else:
      best = min(left, key=lambda i: (-scores[i], i))
    left.remove(best)
    picked.append(best)
  return picked


def forward(params, x):
  """Returns the scores, and the input of each layer.

  Args:
    params: by Flax's names.
    x: [M, F] float64.
  """
  layers = [params['params'][f'Dense_{i}'] for i in range(
      len(params['params']))]
  inputs = []
  for i, layer in enumerate(layers):
    inputs.append(x)
    x = x @ np.float64(layer['kernel']) + np.float64(layer['bias'])
    if i < len(layers) - 1:
      x = np.maximum(x, 0)
  return x[:, 0], inputs


def gradient(params, x, targets):
  """Returns the mean squared error and its gradient, by hand."""
  scores, inputs = forward(params, x)
  error = scores - targets
  back = (2 * error / len(x))[:, None]
  grads = {}
  for i in reversed(range(len(inputs))):
    grads[f'Dense_{i}'] = {'kernel': inputs[i].T @ back, 'bias': back.sum(0)}
    kernel = np.float64(params['params'][f'Dense_{i}']['kernel'])
    back = (back @ kernel.T) * (inputs[i] > 0)
  return (error ** 2).mean(), {'params': grads}


class Bandit:
  """Rounds, probes and rewards of CBS as lists and dictionaries.

  Attributes:
    trained: (wave, rows, reward) of each judged round, in order.
    waiting: (wave, rows) of rounds that are not judged yet.
  """

  def __init__(self, *, lag, room, alpha, weight, least):
    self.trained, self.waiting = [], []
    self._lag, self._room = lag, room
    self._alpha, self._weight, self._least = alpha, weight, least
    self._wave, self._mean, self._variance = -1, 0.0, 0.0
    self._last = None

  def feedback(self, probe):
    """Begins a wave; returns the reward of the rounds it judges, or None."""
    self._wave += 1
    if np.isnan(probe.reward):
      return None
    last, self._last = self._last, probe
    sampled = self._wave - self._lag  # wave that the probe is of
    ready = [r for r in self.waiting if r[0] < sampled]
    self.waiting = [r for r in self.waiting if r[0] >= sampled]
    if not ready or last is None or last.policy_step == probe.policy_step:
      return None
    gain = probe.reward - last.reward
    a = self._alpha
    self._mean = (1 - a) * self._mean + a * gain
    self._variance = (1 - a) * self._variance + a * (gain - self._mean) ** 2
    z = (gain - self._mean) / max(self._variance ** .5, 1e-6)
    reward = 1 / (1 + np.exp(-z))
    if last.entropy > self._least:
      reward -= self._weight * (probe.entropy - last.entropy)
    self.trained += [(wave, rows, reward) for wave, rows in ready]
    return reward

  def selected(self, rows):
    """Notes the rows of a round of this wave, of any form."""
    self.waiting.append((self._wave, rows))
    self.waiting = self.waiting[-self._room:]
