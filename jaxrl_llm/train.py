"""Reinforcement learning from verifiable rewards.

  python -m jaxrl_llm.train --config=configs/countdown.py

The loop is `jobs/train.py`; its functions are names of this module too, as in
`train.train(config)`. The same command again continues a run that was cut off.
"""

import sys
from typing import Any

from jaxrl_llm import cli


def main() -> None:
  """The program."""
  with cli.starting():
    given, config, name = cli.parse(sys.argv[1:], 'train')
    from jaxrl_llm.jobs import train
  with cli.running(given, config):
    train.train(config, name)


def __getattr__(name: str) -> Any:
  from jaxrl_llm.jobs import train
  return getattr(train, name)


if __name__ == '__main__':
  main()
