"""Conversion between a state tree and named arrays on disk, bit for bit.

Names are dotted paths such as 'learner.params.layers.q', so that a checkpoint
does not depend on the classes that hold the state.
"""

from typing import Any, Mapping

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxrl_llm.storage import paths

_SHOWN = 3  # differences that an error names


def is_key(leaf: Any) -> bool:
  """Returns whether a leaf is an array of typed PRNG keys."""
  return hasattr(leaf, 'dtype') and jax.dtypes.issubdtype(
      leaf.dtype, jax.dtypes.prng_key)


def _key_impl(leaf: Any) -> Any:
  """Returns the PRNG implementation of keys, arrays or abstract ones."""
  found = []
  jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), leaf)
  return found[0]


def _named(tree: Any) -> dict[str, Any]:
  """Returns leaves by dotted path, in the tree's order."""
  return {
      jax.tree_util.keystr(keys, simple=True, separator='.'): leaf
      for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _shape_and_type(leaf: Any) -> list[Any]:
  leaf = leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
  return [list(leaf.shape), str(leaf.dtype)]


def encode(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
  """Converts a tree to {name: array to write} and {name: [shape, type]}.

  Keys are written as their data. NumPy arrays are copied, because they are
  written later. Arrays without elements are only in the second.
  """
  arrays = {}
  for name, leaf in _named(state).items():
    leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
    if np.size(leaf):
      arrays[name] = leaf if isinstance(leaf, jax.Array) else np.array(leaf)
  return arrays, {k: _shape_and_type(v) for k, v in _named(state).items()}


def read(
    directory: paths.Path, saved: Mapping[str, Any], like: Any,
    partial: bool) -> Any:
  """Fills a tree from a directory.

  Args:
    directory: holds the arrays of `encode`, as Orbax wrote them.
    saved: names, shapes and types from `encode`.
    like: the tree to fill.
    partial: `like` may leave out part of the saved state.

  Returns:
    A tree like `like`.

  Raises:
    ValueError: names, shapes or types differ.
  """
  wanted = _named(like)
  ours = {name: _shape_and_type(leaf) for name, leaf in wanted.items()}
  lines = [
      f'{name} was {saved.get(name, "absent")}, is {ours.get(name, "absent")}'
      for name in sorted(ours if partial else ours.keys() | saved.keys())
      if saved.get(name) != ours.get(name)]
  if lines:
    more = len(lines) - _SHOWN
    raise ValueError(
        'another model or version of this package wrote it, with other arrays '
        f'({"; ".join(lines[:_SHOWN])}{f"; {more} more" * (more > 0)}): start '
        'again in another workdir.')
  # `encode` leaves out arrays without elements.
  kinds = {name: _restore_args(leaf) for name, leaf in wanted.items()
           if 0 not in ours[name][0]}
  with jax.transfer_guard('allow'):
    arrays = ocp.PyTreeCheckpointer().restore(
        directory, args=ocp.args.PyTreeRestore(
            item=dict.fromkeys(kinds, 0), restore_args=kinds,
            partial_restore=True)) if kinds else {}
    return jax.tree.structure(like).unflatten(
        _decode(arrays.get(name), leaf) for name, leaf in wanted.items())


def _restore_args(leaf: Any) -> ocp.RestoreArgs:
  """Returns the kind and layout in which Orbax restores a leaf."""
  if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) or is_key(leaf):
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(
      sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _decode(array: Any, leaf: Any) -> Any:
  """Converts an array that Orbax has read to the kind of `leaf`."""
  if array is None:
    array = np.zeros(leaf.shape, leaf.dtype)
  if is_key(leaf):
    array = jax.random.wrap_key_data(array, impl=_key_impl(leaf))
  if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
    return array if isinstance(array, jax.Array) and not is_key(leaf) else (
        jax.device_put(array, leaf.sharding))
  return array if isinstance(leaf, np.ndarray) else type(leaf)(array)
