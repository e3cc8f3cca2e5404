"""Checkpoints of a run's state, and their trees of arrays on disk."""

from jaxrl_llm.checkpoint.saver import (
    Checkpointer,
    digest,
    fault,
    rescue,
    restore,
    Restored,
    score,
    steps,
)

__all__ = (
    'Checkpointer', 'Restored', 'digest', 'fault', 'rescue', 'restore', 'score',
    'steps')
