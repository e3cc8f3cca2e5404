r"""Runs a config on a TPU slice: makes its VM, sends the code, streams the log.

  python launch/tpu_pod.py --name=math --zone=us-west4-a --type=v5litepod-128 \
      --config=configs/pkpo/gemma2_2b_math.py --workdir=gs://bucket/math \
      --config.task.path=train.jsonl --config.task.heldout=test.jsonl --spot

Needs a checkout, whose code it sends, and `gcloud`, signed in. Local files that
the config names (functions, problems, a small model) are sent too; one that is
not there is named before a VM is made. Every worker of the slice runs the
training program; they find each other. A preempted VM is
made again, and the run goes on from its last checkpoint, so the workdir must be
one that all workers share and that outlives them. At the end the VM is deleted,
unless `--keep` is given or deletion fails: then the last line says so and how
to delete it. `--status` shows the VMs of a zone. `--dry_run` prints the
commands.
"""

import argparse
import contextlib
import fcntl
import io
import json
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
from typing import Iterator, Sequence

from rich import box, console
from rich import table as rich_table

from jaxrl_llm import config as config_lib
from jaxrl_llm.launch import archive, gcloud, local_files, pod
from jaxrl_llm.launch.aot import chips
from jaxrl_llm.launch.pod import show

_ENDS = signal.SIGTERM, signal.SIGHUP


def status(job: gcloud.Job) -> rich_table.Table:
  """Returns a table of the VMs in a zone.

  Raises:
    pod.Failed: gcloud cannot list them.
  """
  text = pod.Pod(job).ask(
      gcloud.command(job, 'tpu-vm', 'list', '--format=json'))
  try:
    found = json.loads(text)
    rows = [[vm['name'].rpartition('/')[2], *(
        vm.get(name, '') for name in (
            'acceleratorType', 'state', 'health', 'createTime'))]
            for vm in found]
  except (ValueError, TypeError, KeyError, AttributeError):
    raise pod.Failed(
        f'The list of gcloud cannot be read: {text[:200]!r}.') from None
  table = rich_table.Table(box=box.SIMPLE)
  for name in ('name', 'type', 'state', 'health', 'created'):
    table.add_column(name, overflow='fold')
  for row in rows:
    table.add_row(*row)
  return table


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, gcloud.Job]:
  parser = argparse.ArgumentParser(
      usage='python launch/tpu_pod.py --name=NAME --zone=ZONE --type=TYPE '
      '--config=FILE.py --workdir=gs://BUCKET/RUN [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--zone', required=True, help='such as us-west4-a')
  add('--name', help='of the VM')
  add('--type', help='of the slice, such as v5litepod-128')
  add('--config', help='FILE.py or FILE.py:ARG')
  add('--workdir', help='gs://BUCKET/RUN, or a folder that all workers share')
  add('--project', help="default: that of gcloud's configuration")
  add('--version', help="of the VM's software (default: by the type)")
  add('--spot', action='store_true', help='cheaper, but may be preempted')
  add('--reserved', action='store_true', help='of a reservation')
  add('--queued', action='store_true', help='wait for capacity in a queue')
  add('--env', default='', help='names of environment variables to send, such '
      'as HF_TOKEN,WANDB_API_KEY; their values appear nowhere')
  add('--setup', default='', help='command that each worker runs after the '
      "install, such as '~/venv/bin/pip install sympy'")
  add('--send', action='append', default=[], metavar='PATH', help='other file '
      'or folder that the workers need, such as data that a function opens')
  add('--log', help='file for the output (default: NAME.log)')
  add('--tries', type=int, default=8, help='of each step')
  add('--backoff', type=float, default=10.0, help='seconds before a retry')
  add('--poll', type=float, default=60.0, help='seconds between two looks at '
      'the VM while the program runs')
  add('--keep', action='store_true', help='do not delete the VM at the end')
  add('--status', action='store_true', help='show the VMs of the zone')
  add('--dry_run', action='store_true', help='print the commands and stop')
  args, rest = parser.parse_known_args(argv)
  args.grace = 0.0
  try:
    job = _status_job(args) if args.status else _job(args, rest)
    for name, least in (('tries', 1), ('backoff', 0), ('poll', 0)):
      if not getattr(args, name) >= least:
        raise ValueError(
            f'--{name}={getattr(args, name)} must be at least {least}.')
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  return args, job


def _status_job(args: argparse.Namespace) -> gcloud.Job:
  """Returns a job that is only good for `status`."""
  return gcloud.Job('', args.zone, '', '', '', False, args.project,
                    local_files.Sent('', {}, ()))


def _job(args: argparse.Namespace, rest: Sequence[str]) -> gcloud.Job:
  """Returns the job of a command line, and notes the grace of its config.

  Raises:
    ValueError: an argument is missing or wrong.
  """
  _, overrides = config_lib.split(rest)
  args.workdir = args.workdir or overrides.get('workdir')
  for name in ('name', 'type', 'config', 'workdir'):
    if not getattr(args, name):
      raise ValueError(f'--{name} is missing.')
  if args.spot and args.reserved:
    raise ValueError('--spot and --reserved exclude each other.')
  if not re.fullmatch('[a-z]([-a-z0-9]{0,60}[a-z0-9])?', args.name):
    raise ValueError(
        f'--name={args.name} must be lower-case letters, digits and -.')
  secrets = tuple(filter(None, args.env.split(',')))
  for name in secrets:
    if not os.environ.get(name):
      raise ValueError(f'--env={name} is not in the environment, or empty.')
  if not re.match('gs://|/|~', args.workdir):
    raise ValueError(
        f'--workdir={args.workdir} must be in a bucket, such as '
        'gs://BUCKET/RUN, or an absolute path that all workers share.')
  overrides['workdir'] = args.workdir
  if not (archive.ROOT / 'setup.py').exists():
    raise ValueError(
        'tpu_pod sends a checkout to the workers, and this is an installed '
        'package: start launch/tpu_pod.py in a clone of the repository.')
  config = local_files.load(
      args.config, overrides, hub=not args.dry_run,
      devices=chips.count(args.type))
  args.grace = config.checkpoint.grace
  if config.task.get('sandbox') == 'bubblewrap':
    args.setup = '; '.join(filter(None, (
        'sudo apt-get -qq install -y bubblewrap', args.setup)))
  return gcloud.Job(
      args.name, args.zone, args.type,
      args.version or gcloud.version(args.type),
      'spot' if args.spot else 'reserved' if args.reserved else 'on_demand',
      args.queued, args.project,
      local_files.send(config, args.workdir, archive.ROOT, args.send),
      args.setup, secrets)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
  """Makes SIGTERM and the end of the terminal an interrupt, like Ctrl-C.

  One that is ignored, as with nohup, stays so.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = {number: signal.getsignal(number) for number in _ENDS}
  for number, old in before.items():
    if old is not signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)
  try:
    yield
  finally:
    for number, old in before.items():
      signal.signal(number, old)


def _ignore_ends() -> None:
  """Lets only Ctrl-C interrupt what follows."""
  if threading.current_thread() is threading.main_thread():
    for number in _ENDS:
      signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _alone(job: gcloud.Job) -> Iterator[None]:
  """Holds the name of a VM against other launchers on this machine.

  Raises:
    pod.Failed: another one has it.
  """
  with contextlib.ExitStack() as held:
    with contextlib.suppress(OSError):  # no home to write to
      folder = pathlib.Path.home() / '.cache' / 'jaxrl_llm'
      folder.mkdir(parents=True, exist_ok=True)
      lock = held.enter_context(open(
          folder / f'pod-{job.project or ""}-{job.zone}-{job.name}', 'ab'))
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise pod.Failed(
            f'Another launcher is at work on {job.name}: wait for it, or '
            'choose another --name.') from None
    yield


def _dry_run(job: gcloud.Job) -> None:
  """Prints the commands of a job, and the files that it sends."""
  secrets = [gcloud.copy(job, gcloud.SECRETS)] if job.secrets else []
  request = [gcloud.describe(job, queued=True)] if job.queued else []
  for command in (
      gcloud.create(job), gcloud.describe(job), *request,
      gcloud.copy(job, gcloud.CODE), *secrets, gcloud.setup(job),
      gcloud.program(job), gcloud.delete(job, job.queued)):
    show(shlex.join(command))
  show('# After Ctrl-C, and before the program runs again:')
  show(shlex.join(gcloud.stop(job)))
  show(f'# {gcloud.CODE} has the code, the config as {job.config}'
       + ''.join(f', {path}' for path in job.sent.files.values()))


def _run(
    job: gcloud.Job, args: argparse.Namespace, log: io.RawIOBase) -> int:
  """Runs a job, and deletes its VM; returns the exit code."""
  vm = pod.Pod(job, tries=args.tries, backoff=args.backoff, poll=args.poll,
               grace=args.grace, log=log)
  code = 1
  try:
    try:
      code = vm.run()
    except pod.Failed as error:
      vm.show(f'{error}')
    except KeyboardInterrupt:
      _ignore_ends()
      code = 130
      vm.show('Interrupted: the program is asked to save and end.')
      vm.stop()
    finally:
      if not args.keep and (vm.exists or code == 130):
        vm.delete()
  except pod.Failed as error:
    vm.show(f'{error}')
    code = code or 1
  except KeyboardInterrupt:
    code = 130
  finally:
    if vm.exists:
      vm.show(f'The TPU VM {job.name} in {job.zone} still exists and costs '
              'money. Delete it with: '
              f'{shlex.join(gcloud.delete(job, job.queued))}')
  return code


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  args, job = _parse(argv)
  if hasattr(sys.stdout, 'reconfigure'):
    sys.stdout.reconfigure(errors='replace')  # output of the program
  if args.dry_run:
    _dry_run(job)
    return 0
  try:
    with _interruptible():
      if args.status:
        console.Console().print(status(job))
        return 0
      # Without a buffer, so that nothing is left to write at the end.
      with _alone(job), open(
          args.log or f'{job.name}.log', 'ab', buffering=0) as log:
        return _run(job, args, log)
  except pod.Failed as error:
    show(f'{error}')
  except OSError as error:
    show(f'{error.filename}: {error.strerror}.')
  except KeyboardInterrupt:
    return 130
  return 1


if __name__ == '__main__':
  sys.exit(main())
