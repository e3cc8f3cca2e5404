r"""Writes the SLURM batch script that runs a config, or its sweep.

  python -m jaxrl_llm.launch.slurm --config=grpo/qwen3_1p7b_math \
      --config.task.path=train.jsonl --config.task.heldout=test.jsonl \
      --workdir=/shared/math --nodes=2 --gpus_per_node=8 > math.sbatch
  sbatch math.sbatch

A task is a process of the run, with all GPUs of its node; they find each other.
SLURM sends SIGTERM before the time is up, the run saves and ends, and the job
queues itself again. `--sbatch` adds other options, such as
--sbatch=--partition=gpu, and may be repeated. With `--sweep` the trials of the
config's `get_hyper` that are not finished are a job array, at most `--parallel`
at a time; `jaxrl-sweep` with the same config and workdir then shows the table.
"""

import argparse
import math
import pathlib
import re
import shlex
import sys
from typing import Sequence

from jaxrl_llm import config as config_lib
from jaxrl_llm.base import own_code
from jaxrl_llm.launch import commands, local_files, run
from jaxrl_llm.storage import paths

_FINISHED = (
    'import sys; from jaxrl_llm.storage import paths; '
    "sys.exit(not (paths.place(sys.argv[1]) / 'summary.json').exists())")


def script(
    trials: Sequence[run.Trial], *, name: str, nodes: int, gpus: int, time: str,
    python: str, options: Sequence[str] = ()) -> str:
  """Returns the batch script.

  Args:
    trials: runs; several are a job array.
    name: of the job.
    nodes: hosts; each runs one process.
    gpus: of each host; 0 for none.
    time: limit of SLURM, such as 12:00:00.
    python: command of Python with the package.
    options: other options of sbatch.
  """
  # SLURM may send the signal up to 60 s late.
  early = math.ceil(max(trial.grace for trial in trials)) + 60
  log = '%A-%a' if len(trials) > 1 else '%j'
  lines = [
      f'--job-name={name}', f'--nodes={nodes}', '--ntasks-per-node=1',
      f'--time={time}', f'--signal=TERM@{early}', '--requeue',
      '--open-mode=append', f'--output={name}-{log}.log',
      *([f'--gpus-per-node={gpus}'] if gpus else []), *options]
  options = ''.join(f'#SBATCH {line}\n' for line in lines)
  cases = ''.join(
      f'  {i}) run={shlex.quote(str(trial.folder))}\n'
      f'     set -- {shlex.join(trial.command)};;\n'
      for i, trial in enumerate(trials))
  return f'''#!/bin/bash
{options}
cd {shlex.quote(str(pathlib.Path.cwd()))}
case ${{SLURM_ARRAY_TASK_ID:-0}} in
{cases}esac
# A step of SLURM 22.05 and later has one CPU unless it is told.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --kill-on-bad-exit=1 "$@"
code=$?
# A run that was asked to stop exits with 0 as well, but writes no summary.
if [ $code -eq 0 ] && ! {python} -c "{_FINISHED}" "$run"; then
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
  add('--sweep', action='store_true', help="the trials of the config's "
      'get_hyper, as a job array')
  add('--parallel', type=int, help='trials at a time (default: all)')
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
    if wrong := [x for x in args.sbatch if not x.startswith('-')]:
      raise ValueError(f'--sbatch={wrong[0]} must begin with --, such as '
                       '--sbatch=--partition=gpu.')
    _, overrides = config_lib.split(rest)
    program = [*shlex.split(args.python), '-m', 'jaxrl_llm.train']
    if args.sweep:
      trials = [trial for trial in run.plan(
          args.config, sweep=True, workdir=own_code.expanded(args.workdir),
          overrides=overrides, program=program, hub=False)
                if not trial.finished]
      if not trials:
        raise ValueError('Every trial is finished.')
      at_once = f'%{args.parallel}' if args.parallel else ''
      args.sbatch.insert(0, f'--array=0-{len(trials) - 1}{at_once}')
    else:
      overrides['workdir'] = args.workdir
      config = local_files.load(args.config, overrides)
      trials = [run.Trial(
          paths.place(config.workdir), {}, '', [
              *program, *commands.argv(args.config, overrides)],
          config.checkpoint.grace)]
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  sys.stdout.write(script(
      trials, name=name, nodes=args.nodes, gpus=args.gpus_per_node,
      time=args.time, python=args.python, options=args.sbatch))
  return 0


if __name__ == '__main__':
  sys.exit(main())
