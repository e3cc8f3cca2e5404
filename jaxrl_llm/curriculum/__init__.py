"""Curricula: which problems to sample, which groups to train on.

`CURRICULA` names them for the config. A new one is a file here with a function
`create(sizes, *, hyperparameters) -> types.Curriculum`, a line here and a test.
"""

CURRICULA = {
    name: f'jaxrl_llm.curriculum.{name}:create'
    for name in ('uniform', 'dynamic', 'speed')}
