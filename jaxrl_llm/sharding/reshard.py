"""Resharding of training weights to sampling weights, once per update.

If the learner has a mesh of its own, a weight first takes the layout that it
would have in training on the sampler's mesh: its parts move between the
neighbours that share a copy of the sampling weights. Then it is all-gathered.

Sampling weights may be quantised, see `ops/quantise.py`. Each matrix of a layer
then has a scale for each output, in a leaf beside it such as 'layers/q_scale'.
Embedding and unembedding have a scale for each row.
"""

import re
from typing import Any, Callable, NamedTuple, Sequence

from flax import traverse_util
import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_llm.ops import quantise
from jaxrl_llm.sharding import rules as rules_lib
from jaxrl_llm.sharding.rules import Rules, SAMPLE_RULES, TRAIN_RULES

# Matrices that can be quantised, and the axis that a product sums over.
_MATRICES = (
    (re.compile(r'\blayers/(q|k|v|o|(experts_)?(gate|up|down))$'), -2),
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
  apply: Callable[..., Any]
  lower: Callable[[], Any]
  result: Any


class _Weight(NamedTuple):
  """A parameter on its way from training to sampling.

  Attributes:
    path: in the tree, such as 'layers/q'.
    abstract: shape, type and layout of the input.
    dtype: type of the result.
    axis: axis that products sum over, if it gets quantised; else None.
    layouts: those that it takes in turn; the last one is of the result.
    stays: whether its layout is the same before and after.
  """
  path: str
  abstract: jax.ShapeDtypeStruct
  dtype: Any
  axis: int | None
  layouts: tuple[NamedSharding, ...]
  stays: bool


def to_sampling(
    shapes: Any,
    mesh: Mesh,
    dtype: Any,
    *,
    kind: str | None = None,
    learner: Mesh | None = None,
    train_rules: Rules = TRAIN_RULES,
) -> Resharder:
  """Makes the program that reshards training weights to sampling weights.

  Args:
    shapes: tree of shapes and types of the parameters.
    mesh: the sampler's, from `make_mesh`.
    dtype: compute type of the sampling weights.
    kind: quantised type of the matrices, a key of `quantise.TYPES`; None for
      the compute type.
    learner: the mesh of the input, from `learner_mesh`; None for `mesh`.
    train_rules: layout of the input.

  Returns:
    The program. Nothing is compiled yet.

  Raises:
    ValueError: no rule matches a parameter, or the mesh does not divide it.
  """
  learner = mesh if learner is None else learner
  weights = _weights(
      shapes, mesh, learner, train_rules, dtype, kind)
  # The others are no arguments: a program would copy them unless they were
  # donated, and the caller keeps its parameters.
  places = [i for i, weight in enumerate(weights)
            if weight.abstract.dtype != weight.dtype or not weight.stays]
  moved = [weights[i] for i in places]
  abstract = [weight.abstract for weight in moved]

  def cast(leaves):
    done = [*map(_cast, moved, leaves)]
    return [values for values, _ in done], {
        f'{weight.path}_scale': scale
        for weight, (_, scale) in zip(moved, done) if scale is not None}

  _, scales = jax.eval_shape(cast, abstract)
  scales = rules_lib.abstract_params(scales, SAMPLE_RULES, mesh)
  program = jax.jit(cast, out_shardings=(
      [weight.layouts[-1] for weight in moved],
      jax.tree.map(lambda x: x.sharding, scales)))

  def apply(params):
    leaves, tree = jax.tree.flatten(params)
    values, scales = program([leaves[i] for i in places])
    for i, leaf in zip(places, values):
      leaves[i] = leaf
    return _with_scales(tree.unflatten(leaves), scales)

  result = jax.tree.structure(shapes).unflatten(
      jax.ShapeDtypeStruct(
          weight.abstract.shape, weight.dtype, sharding=weight.layouts[-1])
      for weight in weights)
  return Resharder(
      apply, lambda: program.lower(abstract), _with_scales(result, scales))


def _weights(
    shapes, mesh, learner, train_rules, dtype, kind,
) -> list[_Weight]:
  """Returns the weights in the order of the tree's leaves."""
  after = jax.tree.leaves(rules_lib.shardings(shapes, SAMPLE_RULES, mesh))
  abstract = jax.tree.leaves(
      rules_lib.abstract_params(shapes, train_rules, learner))
  # From another mesh, first the training layout on the sampler's: a device then
  # fetches only its part from its neighbours, not the whole weight.
  between = []
  if learner is not mesh:
    between = [jax.tree.leaves(rules_lib.shardings(shapes, train_rules, mesh))]
  weights = []
  for (keys, leaf), x, *layouts in zip(
      jax.tree_util.tree_leaves_with_path(shapes), abstract, *between, after):
    path = rules_lib.path_of(keys)
    axis = next((axis for pattern, axis in _MATRICES
                 if kind and pattern.search(path)), None)
    weights.append(_Weight(
        path, x, quantise.TYPES[kind] if axis else rules_lib.sampling_type(
            path, leaf, dtype), axis, tuple(layouts),
        # A program takes arrays of one mesh alone.
        learner is mesh and x.sharding.is_equivalent_to(
            layouts[-1], len(leaf.shape))))
  return weights


def _laid_out(x: jax.Array, layouts: Sequence[NamedSharding], layer: int = 0):
  """Gives x layouts in turn; with `layer` 1, without their leading axis."""
  for layout in layouts:
    x = jax.lax.with_sharding_constraint(
        x, NamedSharding(layout.mesh, P(*layout.spec[layer:])))
  return x


def _cast(weight: _Weight, x: jax.Array) -> tuple[jax.Array, Any]:
  """Returns the values of a weight for sampling, and their scales or None."""
  def quantised(x, layer=0):
    values, scale = quantise.quantise(x, weight.dtype, weight.axis)
    # The first constraint makes XLA round before it gathers: it sends 8 bits.
    return _laid_out(
        values, (weight.abstract.sharding, *weight.layouts), layer), scale

  # Stacked weights go one layer at a time, because XLA keeps a copy of each
  # gathered array.
  stacked = re.search(r'\blayers/', weight.path)
  if weight.axis:
    if not stacked:
      return quantised(x)
    return jax.lax.map(lambda layer: quantised(layer, 1), x)
  if weight.stays or not stacked:
    # `out_shardings` gives the last layout.
    return _laid_out(x.astype(weight.dtype), weight.layouts[:-1]), None
  return jax.lax.map(
      lambda layer: _laid_out(layer.astype(weight.dtype), weight.layouts, 1),
      x), None


def _with_scales(params: Any, scales: dict[str, Any]) -> Any:
  """Returns the tree with scales, named by their paths, in its dictionaries."""
  flat = traverse_util.flatten_dict(params, sep='/')
  return traverse_util.unflatten_dict(flat | scales, sep='/')
