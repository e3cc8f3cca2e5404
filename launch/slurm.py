r"""Writes the SLURM batch script that runs a config on several hosts.

  python -m jaxrl_llm.launch.slurm --config=grpo/qwen3_1p7b_math \
      --workdir=/shared/math --nodes=2 --gpus_per_node=8 > math.sbatch
  sbatch math.sbatch

A task is a process of the run, with all GPUs of its node; they find each other.
SLURM sends SIGTERM before the time is up, the run saves and ends, and the job
queues itself again. `--sbatch` adds other options, such as
--sbatch=--partition=gpu, and may be repeated.
"""

import argparse
import math
import pathlib
import re
import shlex
import sys
from typing import Sequence

from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm.host import stages
from jaxrl_llm.launch import commands


def script(
    argv: Sequence[str], config: ConfigDict, *, name: str, nodes: int,
    gpus: int, time: str, python: str, options: Sequence[str] = ()) -> str:
  """Returns the batch script.

  Args:
    argv: arguments of the training program.
    config: of the run.
    name: of the job.
    nodes: hosts; each runs one process.
    gpus: of each host; 0 for none.
    time: limit of SLURM, such as 12:00:00.
    python: command of Python with the package.
    options: other options of sbatch.
  """
  # SLURM may send the signal up to 60 s late.
  early = math.ceil(config.checkpoint.grace) + 60
  program = shlex.join([*shlex.split(python), '-m', 'jaxrl_llm.train', *argv])
  lines = [
      f'--job-name={name}', f'--nodes={nodes}', '--ntasks-per-node=1',
      f'--time={time}', f'--signal=TERM@{early}', '--requeue',
      '--open-mode=append', f'--output={name}-%j.log',
      *([f'--gpus-per-node={gpus}'] if gpus else []), *options]
  options = ''.join(f'#SBATCH {line}\n' for line in lines)
  return f'''#!/bin/bash
{options}
cd {shlex.quote(str(pathlib.Path.cwd()))}
srun --kill-on-bad-exit=1 {program}
code=$?
# A run that was asked to stop exits with 0 as well.
if [ $code -eq 0 ] && ! {commands.finished(python, config.workdir)}; then
  scontrol requeue "$SLURM_JOB_ID" || exit 75  # Not done, and not queued.
fi
exit $code
'''


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.launch.slurm --config=FILE.py '
      '--workdir=FOLDER [OPTIONS]', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--config', required=True, help='FILE.py or FILE.py:ARG')
  add('--workdir', required=True, help='folder that all hosts share')
  add('--name', help="of the job (default: the config's name)")
  add('--nodes', type=int, default=1, help='hosts (default: 1)')
  add('--gpus_per_node', type=int, default=8, help='default: 8')
  add('--time', default='24:00:00', help='limit (default: 24:00:00)')
  add('--python', default=shlex.quote(sys.executable),
      help='command of Python on the hosts (default: this one)')
  add('--sbatch', action='append', default=[], metavar='OPTION',
      help='other option of sbatch')
  args, rest = parser.parse_known_args(argv)
  name = args.name or config_lib.name_of(args.config)
  try:
    # The lines of #SBATCH have no quotes.
    if not re.fullmatch(r'[\w.=-]+', name):
      raise ValueError(
          f'--name={name} must be letters, digits and any of _ . = -.')
    _, overrides = config_lib.split(rest)
    overrides['workdir'] = args.workdir
    config = config_lib.load(args.config, overrides)
    stages.validate(config)
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  sys.stdout.write(script(
      commands.argv(args.config, overrides), config,
      name=name, nodes=args.nodes, gpus=args.gpus_per_node, time=args.time,
      python=args.python, options=args.sbatch))
  return 0


if __name__ == '__main__':
  sys.exit(main())
