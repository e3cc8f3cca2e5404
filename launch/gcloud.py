"""The commands of gcloud that `tpu_pod.py` runs, as lists of words."""

import shlex
from typing import NamedTuple

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
    program: arguments of Python on each worker.
    secrets: environment variables to send to the workers.
  """
  name: str
  zone: str
  type: str
  version: str
  capacity: str
  queued: bool
  project: str | None
  program: list[str]
  secrets: tuple[str, ...]


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


def delete(job: Job) -> list[str]:
  """Returns the command that deletes the VM, and its request."""
  if job.queued:
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


def remote(job: Job, text: str) -> list[str]:
  """Returns the command that runs a shell command on every worker."""
  return command(
      job, 'tpu-vm', 'ssh', job.name, '--worker=all', f'--command={text}')


def setup(job: Job) -> list[str]:
  """Returns the command that installs the code on every worker."""
  return remote(job, (
      f'set -e; rm -rf jaxrl_llm; mkdir jaxrl_llm; tar -xzf {CODE} -C '
      'jaxrl_llm; cd jaxrl_llm; python3 -m venv ~/venv; ~/venv/bin/pip install '
      "-q -c constraints.txt -e '.[tpu,gcs]'"))


def program(job: Job) -> list[str]:
  """Returns the command that runs the program on every worker."""
  secrets = f'set -a; . ~/{SECRETS}; set +a; ' if job.secrets else ''
  return remote(job, (
      f'{secrets}cd jaxrl_llm && exec ~/venv/bin/python '
      f'{shlex.join(job.program)}'))


def stop(job: Job) -> list[str]:
  """Returns the command that asks the program to save, and waits for its end.
  """
  # The brackets keep the pattern from matching its own shell.
  return remote(job, (
      'pkill -TERM -f [j]axrl_llm.train; '
      'while pgrep -f [j]axrl_llm.train > /dev/null; do sleep 1; done'))
