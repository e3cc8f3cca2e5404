"""Selections: which rows to train on.

`SELECTIONS` names them for the config. A new one is a file here with a function
`create(sizes, *, hyperparameters) -> types.Selection`, a line here and a test.
"""

SELECTIONS = {
    'all_rows': 'jaxrl_llm.selection.all_rows:create',
    'random': 'jaxrl_llm.selection.replay:random',
    'newest': 'jaxrl_llm.selection.replay:newest',
    'replay': 'jaxrl_llm.selection.replay:replay',
    'largest_advantage': 'jaxrl_llm.selection.replay:largest_advantage',
    'cbs': 'jaxrl_llm.selection.cbs:create',
}
