"""Hyperparameters of objectives and corrections."""

import inspect


def hyperparameters(function):
  """Returns the names of a function's keyword-only arguments."""
  return tuple(
      name for name, p in inspect.signature(function).parameters.items()
      if p.kind == p.KEYWORD_ONLY)
