r"""Checks whether a job fits a TPU slice and estimates its time; needs no TPU.

  pip install 'jaxrl_llm[aot]'
  python -m jaxrl_llm.launch.compile_check --config=pkpo/gemma2_2b_math \
      --topology=v5e:16x8

Compiles the programs of a training step from shapes alone, ahead of time; reads
neither weights nor data, so `auto` buckets are none: the full length, which
needs most memory. Prints the memory of each chip by part, the collectives, and
an estimate of the time of each phase. `jaxrl-compile-check` is the same.

Exit codes: 0 if the job fits; 1 if it does not, with a sentence that names the
field to change, or if its decode loop has a fault, with a sentence that names
it (see launch/aot/faults.py); 2 for a mistake in the arguments, with a
sentence; 3 if the compiler failed for another reason.

`--search` finds the most decode slots and tokens of a microbatch that fit, and
checks the job with these. `--lengths=lognormal:1200,1` also says the time if
responses have these lengths (a mean of 1,200 tokens and a sigma of 1, before
max_response cuts), with and without sampling.carry_over; it compiles both.
`--config.x=y` overrides fields of the config. The
topology `2xv5e:16x8` means two slices, between which only the axis `data` of
the mesh, or else `fsdp`, crosses; `cpu:8` means eight emulated devices.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import traceback
from typing import Sequence

from ml_collections import ConfigDict

os.environ['JAX_PLATFORMS'] = 'cpu'  # even beside a run on the accelerator

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import own_code
from jaxrl_llm.launch.aot import check, chips, report, search, waves


def parse(
    argv: Sequence[str]) -> tuple[argparse.Namespace, ConfigDict, str]:
  """Parses argv into the options, the config and the name of the slice.

  Raises:
    SystemExit: an argument is wrong or missing; one line goes to stderr.
  """
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.launch.compile_check --config=FILE.py '
      '[OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--config', required=True, help='FILE.py or FILE.py:ARG')
  parser.add_argument(
      '--topology', help="such as v5e:16x8 or v5litepod-128 (default: the "
      "config file's TOPOLOGY)")
  parser.add_argument('--json', metavar='FILE',
                      help='also write the results as JSON; - means stdout')
  parser.add_argument('--search', action='store_true',
                      help='find the most slots and tokens of a microbatch '
                      'that fit')
  parser.add_argument('--lengths', metavar='lognormal:MEAN,SIGMA',
                      help='also estimate the time with responses of these '
                      'lengths, with and without sampling.carry_over')
  args, rest = parser.parse_known_args(argv)
  try:
    args.lengths = args.lengths and waves.parse(args.lengths)
    _, overrides = config_lib.split(rest)
    config = check.load(args.config, overrides)
    if args.lengths:
      check.other_way(config)  # fails before anything is compiled
    name = args.topology or check.topology_of(args.config)
    if args.json not in (None, '-'):  # likewise
      args.json = own_code.expanded(args.json)
      pathlib.Path(args.json).touch()
    return args, config, name
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  args, config, name = parse(sys.argv[1:] if argv is None else argv)
  say = functools.partial(print, file=sys.stderr, flush=True)
  try:
    topology = chips.topology(name)
    if args.search:
      config = search.largest(config, topology, say)
    run = functools.partial(
        check.run, topology=topology, say=say, lengths=args.lengths)
    found, ways = run(config), {}
    if args.lengths:
      other = run(check.other_way(config))
      ways = dict(zip(('waiting', 'carried'), sorted(
          (found, other), key=lambda x: x.config.sampling.carry_over)))
  except ValueError as error:
    print(error, file=sys.stderr)
    return 2
  except jax.errors.JaxRuntimeError:
    traceback.print_exc()
    return 3
  if args.json != '-':
    print(report.text(found))
    if ways:
      print(report.compared(**ways))
  if args.json:
    content = json.dumps({
        **report.to_json(found), 'lengths': {
            name: report.at_lengths(way) for name, way in ways.items()}},
                         indent=1)
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
