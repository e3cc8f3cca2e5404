"""Configs: made from declared fields, a file, and the command line.

A config file is a document. At its top it has the command, the time it takes
and the result to expect, then

  from jaxrl_llm import config

  def get_config(arg=None):
    c = config.base()
    c.steps = 300
    c.loss.clip_high = 0.28
    return c

and, if it is to be swept, `get_hyper(hyper)` (see `launch/hyper.py`). The
command line overrides it field by field:

  python -m jaxrl_llm.train --config=configs/countdown.py \
      --config.steps=10 --config.loss.clip_high=.28

`--config=file.py:arg` calls `get_config(arg)`, `--config=run/config.json` takes
the config that a run has saved, and `--help` prints the fields by what they
are for. A name that TRL, verl or OpenRLHF has for a field is answered with the
field (`names.py`, from the tables of docs/coming_from_trl.md).

The files in `configs/` are part of the package. They are found by their names
in any folder, as in `--config=pkpo/gemma2_2b_math:4k`; and another config file
can build on one of them:

  from jaxrl_llm.configs.pkpo import gemma2_2b_math

  def get_config(arg=None):
    c = gemma2_2b_math.get_config()
    c.steps = 300
    return c
"""

from jaxrl_llm.base.declared import EVALUATION, ROUNDING, SFT, WEIGHTS
from jaxrl_llm.config.auto_values import choices, with_saved_auto_values
from jaxrl_llm.config.checks import validate
from jaxrl_llm.config.command_line import parse, refused, split
from jaxrl_llm.config.compare import (
    affecting,
    difference,
    fingerprint,
    resume_conflicts,
)
from jaxrl_llm.config.files import (
    base,
    complete,
    load,
    load_file,
    name_of,
    title,
    to_json,
)
from jaxrl_llm.config.model import (
    is_large,
    model_config,
    models,
    of_player,
)
from jaxrl_llm.config.nested import flatten
from jaxrl_llm.config.sections import as_section, MODELS
from jaxrl_llm.config.table import has_sft, players, sft_of_lora
from jaxrl_llm.config.values import to_text
from jaxrl_llm.learner.options import PLAYERS

__all__ = (
    'EVALUATION', 'MODELS', 'PLAYERS', 'ROUNDING', 'SFT', 'WEIGHTS',
    'affecting', 'as_section', 'base', 'choices', 'complete', 'difference',
    'fingerprint', 'flatten', 'has_sft', 'is_large', 'load', 'load_file',
    'model_config', 'models', 'name_of', 'of_player', 'parse', 'players',
    'refused', 'resume_conflicts', 'sft_of_lora', 'split', 'title', 'to_json',
    'to_text', 'validate', 'with_saved_auto_values')
