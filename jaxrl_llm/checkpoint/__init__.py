"""Checkpoints of a run's state, and their trees of arrays on disk."""

from jaxrl_llm.checkpoint.files import (
    digest,
    fault,
    score,
    steps,
    untrained,
    whole_steps,
)
from jaxrl_llm.checkpoint.rescuer import rescue
from jaxrl_llm.checkpoint.saver import Checkpointer, restore, Restored

__all__ = (
    'Checkpointer', 'Restored', 'digest', 'fault', 'rescue', 'restore', 'score',
    'steps', 'untrained', 'whole_steps')
