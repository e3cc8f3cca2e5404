"""The commands of gcloud that `tpu_pod.py` runs, as lists of words."""

import shlex
from typing import NamedTuple

from jaxrl_llm.launch import commands, local_files

CODE = 'jaxrl_llm.tgz'  # on each worker
SECRETS = '.jaxrl_llm_env'
_VERSIONS = {
    'v5litepod': 'v2-alpha-tpuv5-lite', 'v5p': 'v2-alpha-tpuv5',
    'v6e': 'v2-alpha-tpuv6e'}


class Job(NamedTuple):
  """A run on a slice.

  Attributes:
    name: of the VM.
    zone: of the VM.
    type: accelerator type, such as v5litepod-128.
    version: of the VM's software.
    capacity: 'on_demand', 'spot' or 'reserved'.
    queued: whether to ask for it as a queued resource.
    project: of Google Cloud; None for that of gcloud's configuration.
    sent: the config, and files that are sent beside the code.
    setup: shell command that each worker runs after the install; '' for none.
    secrets: environment variables to send to the workers.
  """
  name: str
  zone: str
  type: str
  version: str
  capacity: str
  queued: bool
  project: str | None
  sent: local_files.Sent
  setup: str = ''
  secrets: tuple[str, ...] = ()

  @property
  def config(self) -> str:
    """Place of the config on each worker."""
    return f'files/{self.name}.json'


def version(kind: str) -> str:
  """Returns the software of VMs of an accelerator type."""
  return _VERSIONS.get(kind.partition('-')[0], 'tpu-ubuntu2204-base')


def command(job: Job, *words: str) -> list[str]:
  """Returns a command in the zone and project of a job."""
  project = [f'--project={job.project}'] if job.project else []
  return ['gcloud', 'compute', 'tpus', *words, f'--zone={job.zone}', *project,
          '--quiet']


def create(job: Job) -> list[str]:
  """Returns the command that makes the VM, or asks for it."""
  flag = {'spot': ['--spot'], 'reserved': ['--reserved']}.get(job.capacity, [])
  if job.queued:
    return command(
        job, 'queued-resources', 'create', job.name, f'--node-id={job.name}',
        f'--accelerator-type={job.type}', f'--runtime-version={job.version}',
        *flag)
  return command(
      job, 'tpu-vm', 'create', job.name, f'--accelerator-type={job.type}',
      f'--version={job.version}', *flag)


def delete(job: Job, queued: bool = False) -> list[str]:
  """Returns the command that deletes the VM, or its request with the VM."""
  if queued:
    return command(job, 'queued-resources', 'delete', job.name, '--force')
  return command(job, 'tpu-vm', 'delete', job.name)


def describe(job: Job, queued: bool = False) -> list[str]:
  """Returns the command that prints the state of the VM, or of its request."""
  if queued:
    return command(job, 'queued-resources', 'describe', job.name,
                   '--format=value(state.state)')
  return command(job, 'tpu-vm', 'describe', job.name, '--format=value(state)')


def copy(job: Job, file: str) -> list[str]:
  """Returns the command that copies a file to the home of every worker."""
  return command(job, 'tpu-vm', 'scp', file, f'{job.name}:', '--worker=all')


def remote(job: Job, text: str, options: tuple[str, ...] = ()) -> list[str]:
  """Returns the command that runs a shell command on every worker.

  Args:
    job: the job.
    text: the shell command.
    options: of ssh, after `--`.
  """
  return [*command(
      job, 'tpu-vm', 'ssh', job.name, '--worker=all', f'--command={text}'),
          *options]


def setup(job: Job) -> list[str]:
  """Returns the command that installs the code on every worker.

  Images of TPU VMs have a Python that is too old; uv brings another.
  """
  return remote(job, (
      f'set -e; rm -rf jaxrl_llm; mkdir jaxrl_llm; tar -xzf {CODE} -C '
      'jaxrl_llm; cd jaxrl_llm; PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip '
      'install -q --user uv; '
      "python3 -m uv venv -q --seed --allow-existing --python '>=3.11,<3.13' "
      '~/venv; ~/venv/bin/pip install -q -c constraints.txt -e '
      f"'.[{','.join(['tpu', 'gcs', *job.sent.extras])}]'"
      + (job.setup and f'; {job.setup}')))


# Matches Python, not the shells that have it in their command lines.
_PROGRAM = "'^[^ ]*python -m [j]axrl_llm.train'"
_STOP = (f'pkill -TERM -f {_PROGRAM}; '
         f'while pgrep -f {_PROGRAM} > /dev/null; do sleep 1; done')


def program(job: Job) -> list[str]:
  """Returns the command that runs the program on every worker.

  Its exit code is STOPPED if the run was asked to stop, and is not finished.
  """
  secrets = f'set -a; . ~/{SECRETS}; set +a; ' if job.secrets else ''
  return remote(job, (
      # gcloud runs the command again by itself if a connection breaks.
      f'{_STOP}; {secrets}cd jaxrl_llm && ~/venv/bin/python '
      f'{shlex.join(commands.train(job.config))}'),
                # Else ssh may wait for ever for a host that is lost.
                ('--', '-o', 'ServerAliveInterval=30',
                 '-o', 'ServerAliveCountMax=6'))


def stop(job: Job) -> list[str]:
  """Returns the command that asks the program to save, and waits for its end.
  """
  return remote(job, _STOP)
