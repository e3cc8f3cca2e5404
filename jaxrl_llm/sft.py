"""Supervised fine-tuning on rows of one's own, without RL.

  python -m jaxrl_llm.sft --config=configs/sft/smollm2_gsm8k.py

takes the first phase of `jaxrl_llm.train` with the same config, by its section
`sft`. It writes WORKDIR/sft, a folder like that of a run: config.json,
checkpoints, metrics.jsonl, summary.json and report.html. `jaxrl_llm.evaluate`
takes its config.json, `jaxrl_llm.export` the folder. `jaxrl_llm.train` with the
same config goes on with RL from the result. The same command again goes on
where it stopped.
"""

import sys
from typing import Any

from jaxrl_llm import cli


def check(config: Any, *, models: bool = True) -> None:
  """Checks a config as `cli.check` does, and that it has steps."""
  from jaxrl_llm import config as config_lib
  cli.check(config, models=models)
  if not config_lib.has_sft(config):
    raise ValueError(
        'There is nothing to do: set config.sft.path, and config.sft.epochs or '
        'config.sft.steps.')


def main() -> None:
  """The program."""
  with cli.starting():
    given, config, name = cli.parse(sys.argv[1:], 'sft', __doc__, check)
    from jaxrl_llm.jobs import sft
  with cli.running(given, config):
    print(sft.fine_tune(config, name), flush=True)


def __getattr__(name: str) -> Any:
  from jaxrl_llm.jobs import sft
  return getattr(sft, name)


if __name__ == '__main__':
  main()
