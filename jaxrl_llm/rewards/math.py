"""Judge of mathematical answers in a process of `pool.Pool`; see `answers`."""

from jaxrl_llm.answers import judge, prepare

__all__ = ('judge', 'prepare')
