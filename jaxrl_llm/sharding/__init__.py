"""Sharding of arrays: the mesh, two layouts of the weights, collectives.

The mesh has three axes. Rows of a batch are split over `data` and `fsdp`.
Training weights are split over `fsdp` and `tensor`, sampling weights over
`tensor` only. The learner may have a mesh of its own: the same devices, with a
smaller `tensor` and a larger `fsdp`.
"""

from jaxrl_llm.sharding.cpu import keep_memory, split_cpu
from jaxrl_llm.sharding.mesh import (
    AXES,
    axis_sizes,
    data_shards,
    learner_mesh,
    learner_shards,
    make_mesh,
    replicated,
    rows,
)
from jaxrl_llm.sharding.reshard import Resharder, to_sampling
from jaxrl_llm.sharding.rules import (
    abstract_params,
    optimizer_shardings,
    SAMPLE_RULES,
    shardings,
    spec_of,
    table,
    TRAIN_RULES,
)

__all__ = (
    'AXES', 'Resharder', 'SAMPLE_RULES', 'TRAIN_RULES', 'abstract_params',
    'axis_sizes', 'data_shards', 'keep_memory', 'learner_mesh',
    'learner_shards', 'make_mesh', 'optimizer_shardings', 'replicated', 'rows',
    'shardings', 'spec_of', 'split_cpu', 'table', 'to_sampling')
