"""Whether a job fits a TPU slice, and where its time will go; without a TPU.

  pip install -e '.[aot]'
  python launch/compile_check.py --config=configs/pkpo/gemma2_2b_math.py \
      --topology=v5e:16x8

Compiles the very programs that a step of training calls, from shapes alone, for
a slice that need not exist here: neither weights nor data are read. It prints
what fills each chip, what is exchanged between chips, and an estimate of the
time of each phase. It ends with 0, or with 1 and a sentence that says what to
turn if the job does not fit, 2 and a sentence if what is asked for is mistaken,
3 if the compiler failed otherwise. `--search` looks for the most decode slots
and the largest microbatch that do fit, and checks the job with those;
`--config.x=y` overrides fields of the config; the topology `cpu:8` is eight
emulated devices.
"""

import argparse
import json
import os
import pathlib
import sys
import traceback
from typing import Sequence

from ml_collections import ConfigDict

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax

from jaxrl_llm import config as config_lib
from launch.aot import check, chips, report, search


def parse(
    argv: Sequence[str]) -> tuple[argparse.Namespace, ConfigDict, str]:
  """The options, the config and the name of the slice that argv asks for.

  Raises:
    SystemExit: with one line to stderr, if something is misspelled or missing.
  """
  parser = argparse.ArgumentParser(
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--config', required=True, help='FILE.py or FILE.py:ARG')
  parser.add_argument(
      '--topology', help="such as v5e:16x8 or v5litepod-128 (default: the "
      "config file's TOPOLOGY)")
  parser.add_argument('--json', metavar='FILE',
                      help='write everything there too; - is the output')
  parser.add_argument('--search', action='store_true',
                      help='the most slots and the largest microbatch that fit')
  args, rest = parser.parse_known_args(argv)
  try:
    _, overrides = config_lib.split(rest)
    config = check.load(args.config, overrides)
    name = args.topology or check.topology_of(args.config)
    if args.json not in (None, '-'):  # found out before anything is compiled
      pathlib.Path(args.json).touch()
    return args, config, name
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')


def main(argv: Sequence[str] | None = None) -> int:
  """The program; returns its exit code."""
  args, config, name = parse(sys.argv[1:] if argv is None else argv)
  try:
    topology = chips.topology(name)
    if args.search:
      config = search.largest(
          config, topology, lambda line: print(line, file=sys.stderr))
    found = check.run(config, topology)
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
  except jax.errors.JaxRuntimeError:
    traceback.print_exc()
    return 3
  if args.json != '-':
    print(report.text(found))
  if args.json:
    content = json.dumps(report.to_json(found), indent=1)
    if args.json == '-':
      print(content)
    else:
      pathlib.Path(args.json).write_text(content + '\n')
  reasons = report.verdict(found)
  for reason in reasons:
    print(reason, file=sys.stderr)
  return int(bool(reasons))


if __name__ == '__main__':
  sys.exit(main())
