"""Resharding of training weights to sampling weights, once per update."""

import re
from typing import Any, Callable, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_llm.sharding import rules as rules_lib
from jaxrl_llm.sharding.rules import Rules, SAMPLE_RULES, TRAIN_RULES


class Resharder(NamedTuple):
  """The program that reshards training weights to sampling weights.

  Attributes:
    apply: (parameters in the training layout) -> parameters in the sampling
      layout and type. Call it once per update. Weights whose type and layout
      stay the same are not copied, so call it again after each update that
      donates the parameters.
    lower: () -> lowered program; needs only shapes.
  """
  apply: Callable[[Any], Any]
  lower: Callable[[], Any]


def to_sampling(
    shapes: Any,
    mesh: Mesh,
    dtype: Any,
    *,
    train_rules: Rules = TRAIN_RULES,
    sample_rules: Rules = SAMPLE_RULES,
) -> Resharder:
  """Makes the program that reshards training weights to sampling weights.

  Args:
    shapes: tree of shapes and types of the parameters.
    mesh: see `make_mesh`.
    dtype: compute type of the sampling weights.
    train_rules: layout of the input.
    sample_rules: layout of the output.

  Returns:
    The program. Nothing is compiled yet.

  Raises:
    ValueError: no rule matches a parameter, or the mesh does not divide it.
  """
  before = jax.tree.leaves(rules_lib.shardings(shapes, train_rules, mesh))
  after = jax.tree.leaves(rules_lib.shardings(shapes, sample_rules, mesh))
  abstract = jax.tree.leaves(
      rules_lib.abstract_params(shapes, train_rules, mesh))
  flat = [
      (rules_lib.path_of(keys), leaf)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)]
  types = [rules_lib.sampling_type(path, leaf, dtype) for path, leaf in flat]
  stays = [
      a.is_equivalent_to(b, len(leaf.shape))
      for a, b, (_, leaf) in zip(before, after, flat)]
  moved = [
      i for i, (_, leaf) in enumerate(flat)
      if leaf.dtype != types[i] or not stays[i]]

  def one(i, x):
    if stays[i] or not re.search(r'\blayers/', flat[i][0]):
      return x.astype(types[i])
    # One layer at a time, because XLA keeps a copy of each gathered array.
    spec = NamedSharding(mesh, P(*after[i].spec[1:]))
    return jax.lax.map(
        lambda layer: jax.lax.with_sharding_constraint(
            layer.astype(types[i]), spec), x)

  def cast(leaves):
    return [one(i, x) for i, x in zip(moved, leaves)]

  program = jax.jit(cast, out_shardings=[after[i] for i in moved])

  def apply(params):
    leaves, tree = jax.tree.flatten(params)
    for i, leaf in zip(moved, program([leaves[i] for i in moved])):
      leaves[i] = leaf
    return tree.unflatten(leaves)

  return Resharder(
      apply, lambda: program.lower([abstract[i] for i in moved]))
