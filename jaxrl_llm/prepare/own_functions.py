"""Checks of the user's advantage and functions of the loss, on shapes.

Else a wrong result would end the run after its SFT and first wave, or would be
broadcast into a wrong loss.
"""

from typing import Any, Callable, Mapping

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import plugs
from jaxrl_llm.ops import policy_losses
from jaxrl_llm.prepare import methods
from jaxrl_llm.types import LearnerBatch, Needs, Table

# First parts of names of the loop's own metrics.
_GROUPS = frozenset({
    'batch', 'eval', 'logged', 'memory', 'response', 'reward', 'rewards',
    'sampler', 'seconds', 'speed', 'step', 'turns', 'update', 'verdict'})
_ROWS, _TOKENS = 2, 3


def _array(*shape: int, kind: Any = np.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, kind)


def check(config: ConfigDict, needs: Needs) -> None:
  """Traces each of the functions once.

  Args:
    config: of a run.
    needs: of the run: its columns.

  Raises:
    ValueError: one fails, or returns something else than it should.
  """
  axes = {**needs.axes, 'T': _TOKENS, 'L': 2, 'S': 2 + _TOKENS}

  def columns(view, field, *lead):
    taken = methods.named(config, field)
    return {
        name: _array(*lead, *(axes[a] for a in column.axes),
                     kind=needs.columns.get(name) or column.type)
        for name, column in view.declared.items() if name in taken and (
            taken[name] or name in needs.columns)}

  known: dict[str, str] = {}
  chosen, lead = plugs.plug('advantage', config.advantage), (
      _ROWS, config.samples_per_prompt)
  by_token = 'turn' in chosen.columns
  if not chosen.packaged:
    given = columns(Table, 'advantage', *lead)
    if by_token:
      given['turn'] = _array(*lead, _TOKENS, kind=np.int32)
    _, own, *_ = _result(
        'advantage', chosen.name, methods.advantage(config), _array(*lead),
        _array(*lead, kind=bool), _array(kind=np.uint32), given)
    _check_metrics('advantage', chosen.name, own, ((),), known)
  tokens, mask = _array(_ROWS, _TOKENS), _array(_ROWS, _TOKENS, kind=bool)
  for field, args in (
      ('loss.objective', (
          tokens, tokens, tokens if by_token else _array(_ROWS), mask)),
      ('loss.importance', (tokens, mask)),
      ('loss.term', (tokens, tokens, tokens, mask))):
    function, numbers = methods.traced(config, field)
    if callable(function):
      name = config_lib.flatten(config)[field]
      found = _result(
          field, name, function, *args, **numbers,
          **columns(LearnerBatch, field, _ROWS))
      own = _check_loss(field, name, found, by_token)
      _check_metrics(field, name, own, ((), tokens.shape), known)


def _result(
    field: str, name: str, function: Callable[..., Any], *args: Any,
    **given: Any) -> Any:
  """Returns the shapes of a function's result."""
  try:
    return jax.eval_shape(function, *args, **given)
  except TypeError as error:  # of a result that is no array
    said = ' '.join(str(error).split('\n')[0].split())[:160]
    raise ValueError(
        f'{field}={name} returns something else than arrays ({said}): return '
        'arrays, and metrics by their names.') from None


def _check_loss(
    field: str, name: str, found: Any, by_token: bool) -> Mapping[str, Any]:
  """Checks what a function of the loss returns; returns its metrics."""
  own: Any = {}
  if field != 'loss.importance':
    found, own = policy_losses.with_metrics(found)
  wanted = {
      'loss.objective':
          'an ops.policy_losses.PolicyLoss of arrays, or (that, metrics),',
      'loss.importance': 'an array',
      'loss.term': 'an array, or (that, metrics),'}[field]
  shape, objective = (_ROWS, _TOKENS), field == 'loss.objective'
  leaves = jax.tree.leaves(found)
  shapes = [x.shape for x in leaves]
  right = isinstance(found, policy_losses.PolicyLoss) and all(
      x.dtype == bool for x in leaves[2:]) if objective else (
          hasattr(found, 'shape'))
  if not right or {*shapes} != {shape} or not isinstance(own, dict):
    note = ' Its advantages are [rows, tokens], since the advantage names turn.'
    note *= objective and by_token
    raise ValueError(
        f'{field}={name} returns {type(found).__name__} of the shapes {shapes} '
        f'for tokens of the shape {shape}: return {wanted} of that shape'
        f'{", with bool flags" * objective}.{note}')
  return own


def _check_metrics(
    field: str, name: str, own: Mapping[str, Any], shapes: tuple[Any, ...],
    known: dict[str, str]) -> None:
  """Checks names and shapes of metrics; notes them in `known`, by field."""
  for metric, value in own.items():
    if not isinstance(metric, str) or metric.partition('/')[0] in _GROUPS or (
        metric in known or value.shape not in shapes):
      other = f', which {known[metric]} has too' if metric in known else ''
      raise ValueError(
          f'{field}={name} returns the metric {metric} of the shape '
          f'{value.shape}{other}: return a number'
          f'{"".join(f" or an array {shape}" for shape in shapes[1:])}, whose '
          'name is a text of its own and does not begin with '
          f'{", ".join(sorted(_GROUPS))}.')
    known[metric] = f'{field}={name}'
