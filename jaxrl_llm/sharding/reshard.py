"""Resharding of training weights to sampling weights, once per update.

If the learner has a mesh of its own, a weight first takes the layout that it
would have in training on the sampler's mesh: its parts move between the
neighbours that share a copy of the sampling weights. Then it is all-gathered.

Sampling weights may be quantised, see `ops/quantise.py`. Each matrix of a layer
then has a scale for each output, in a leaf beside it such as 'layers/q_scale'.
Embedding and unembedding have a scale for each row.
"""

import re
from typing import Any, Callable, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_llm.ops import quantise
from jaxrl_llm.sharding import rules as rules_lib
from jaxrl_llm.sharding.rules import Rules, SAMPLE_RULES, TRAIN_RULES

# Matrices that can be quantised, and the axis that a product sums over.
_MATRICES = (
    (re.compile(r'\blayers/(q|k|v|o|gate|up|down)$'), -2),
    (re.compile(r'(^|/)(un)?embed$'), -1))


class Resharder(NamedTuple):
  """The program that reshards training weights to sampling weights.

  Attributes:
    apply: (parameters in the training layout) -> parameters in the sampling
      layout and type. Call it once per update. Weights whose type and layout
      stay the same are not copied, so call it again after each update that
      donates the parameters.
    lower: () -> lowered program; needs only shapes.
    result: abstract parameters as `apply` returns them.
  """
  apply: Callable[[Any], Any]
  lower: Callable[[], Any]
  result: Any


def to_sampling(
    shapes: Any,
    mesh: Mesh,
    dtype: Any,
    *,
    kind: str | None = None,
    learner: Mesh | None = None,
    train_rules: Rules = TRAIN_RULES,
    sample_rules: Rules = SAMPLE_RULES,
) -> Resharder:
  """Makes the program that reshards training weights to sampling weights.

  Args:
    shapes: tree of shapes and types of the parameters.
    mesh: the sampler's, see `make_mesh`.
    dtype: compute type of the sampling weights.
    kind: quantised type of the matrices, a key of `quantise.TYPES`; None for
      the compute type.
    learner: the mesh of the input, see `learner_mesh`; None for `mesh`.
    train_rules: layout of the input.
    sample_rules: layout of the output.

  Returns:
    The program. Nothing is compiled yet.

  Raises:
    ValueError: no rule matches a parameter, or the mesh does not divide it.
  """
  learner = mesh if learner is None else learner
  before = jax.tree.leaves(rules_lib.shardings(shapes, train_rules, learner))
  after = jax.tree.leaves(rules_lib.shardings(shapes, sample_rules, mesh))
  abstract = jax.tree.leaves(
      rules_lib.abstract_params(shapes, train_rules, learner))
  # Layouts that a weight takes in turn.
  ways = [*zip(*(
      *([jax.tree.leaves(rules_lib.shardings(shapes, train_rules, mesh))]
        if learner is not mesh else []), after))]
  flat = [
      (rules_lib.path_of(keys), leaf)
      for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)]
  axes = [_summed_axis(path) if kind else None for path, _ in flat]
  types = [
      quantise.TYPES[kind] if axis else
      rules_lib.sampling_type(path, leaf, dtype)
      for axis, (path, leaf) in zip(axes, flat)]
  # A program takes arrays of one mesh alone.
  stays = [
      learner is mesh and a.is_equivalent_to(b, len(leaf.shape))
      for a, b, (_, leaf) in zip(before, after, flat)]
  moved = [
      i for i, (_, leaf) in enumerate(flat)
      if leaf.dtype != types[i] or not stays[i]]

  def laid_out(x, places, layer=0):
    for place in places:
      x = jax.lax.with_sharding_constraint(
          x, NamedSharding(place.mesh, P(*place.spec[layer:])))
    return x

  def quantised(x, i, layer=0):
    values, scale = quantise.quantise(x, types[i], axes[i])
    # The first constraint makes XLA round before it gathers: it sends 8 bits.
    return laid_out(values, (before[i], *ways[i]), layer), scale

  def one(i, x):
    stacked = re.search(r'\blayers/', flat[i][0])
    if axes[i]:
      return jax.lax.map(
          lambda layer: quantised(layer, i, 1), x) if stacked else (
              quantised(x, i))
    if stays[i] or not stacked:
      return laid_out(x.astype(types[i]), ways[i][:-1]), None
    # One layer at a time, because XLA keeps a copy of each gathered array.
    return jax.lax.map(
        lambda layer: laid_out(layer.astype(types[i]), ways[i], 1), x), None

  def cast(leaves):
    done = [one(i, x) for i, x in zip(moved, leaves)]
    return [values for values, _ in done], {
        f'{flat[i][0]}_scale': scale for i, (_, scale) in zip(moved, done)
        if scale is not None}

  _, scales = jax.eval_shape(cast, [abstract[i] for i in moved])
  scales = rules_lib.abstract_params(scales, sample_rules, mesh)
  program = jax.jit(cast, out_shardings=(
      [after[i] for i in moved], jax.tree.map(lambda x: x.sharding, scales)))

  def apply(params):
    leaves, tree = jax.tree.flatten(params)
    values, scales = program([leaves[i] for i in moved])
    for i, leaf in zip(moved, values):
      leaves[i] = leaf
    return _with_scales(tree.unflatten(leaves), scales)

  result = jax.tree.structure(shapes).unflatten([
      jax.ShapeDtypeStruct(leaf.shape, kind, sharding=place)
      for (_, leaf), kind, place in zip(flat, types, after)])
  return Resharder(
      apply, lambda: program.lower([abstract[i] for i in moved]),
      _with_scales(result, scales))


def _summed_axis(path: str) -> int | None:
  """Returns the axis that products with a matrix sum over, if it is one."""
  return next(
      (axis for pattern, axis in _MATRICES if pattern.search(path)), None)


def _with_scales(params: Any, scales: dict[str, Any]) -> Any:
  """Returns the tree with scales, named by their paths, in its dictionaries."""
  for path, scale in scales.items():
    *parents, name = path.split('/')
    params = {**params}
    into = params
    for parent in parents:
      into[parent] = {**into[parent]}
      into = into[parent]
    into[name] = scale
  return params
