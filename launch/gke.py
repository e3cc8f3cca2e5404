r"""Writes the manifest that runs a config on TPUs of a Kubernetes cluster.

  python -m jaxrl_llm.launch.gke --name=math --type=v5litepod-16 \
      --image=REGISTRY/jaxrl_llm --config=grpo/qwen3_1p7b_math \
      --config.task.path=gs://bucket/train.jsonl \
      --config.task.heldout=gs://bucket/test.jsonl \
      --workdir=gs://bucket/math --secret=tokens > math.yaml
  kubectl apply -f math.yaml

It is a JobSet of GKE: a job for each slice, a pod for each host. The image has
this package with the extras `tpu` and `gcs`. The manifest holds the config and
the small local files that it names, such as functions; one that is not there is
named before anything is written, and large ones belong in a bucket. A run
that was asked to stop, or whose host is preempted, is started again and goes on
from its last checkpoint; other failures `--restarts` times. `--xpk=CLUSTER`
prints the command of xpk instead, for clusters made by it.
"""

import argparse
import base64
import io
import math
import pathlib
import re
import shlex
import sys
import tarfile
from typing import Any, Sequence

import yaml

from jaxrl_llm import config as config_lib
from jaxrl_llm.launch import commands, local_files
from jaxrl_llm.launch.aot import chips

# Families of chips, as labels of GKE's nodes name them.
_NODES = {'v5e': 'tpu-v5-lite-podslice', 'v5p': 'tpu-v5p-slice',
          'v6e': 'tpu-v6e-slice'}
_PER_HOST = 4  # chips
_MOST = 96 << 10  # bytes of files as text; Linux takes 128 KiB for a variable
_FILES = 'JAXRL_LLM_FILES'


def _slice(kind: str) -> tuple[str, list[int], int]:
  """Returns the chips' family, their shape as GKE writes it, and the hosts."""
  family, _, shape = chips.TOPOLOGIES[kind].partition(':')
  sizes = sorted(map(int, shape.split('x')))
  return family, sizes, -(-math.prod(sizes) // _PER_HOST)


def manifest(
    args: argparse.Namespace, command: str, files: str,
    grace: int) -> dict[str, Any]:
  """Returns the JobSet.

  Args:
    args: of the command line.
    command: of the shell in each pod.
    files: content of the variable _FILES.
    grace: seconds that a pod may take to save and end.
  """
  family, sizes, hosts = _slice(args.type)
  spot = {'cloud.google.com/gke-spot': 'true'} if args.spot else {}
  tpus = {'google.com/tpu': min(math.prod(sizes), _PER_HOST)}
  pod = {
      'restartPolicy': 'Never',
      'terminationGracePeriodSeconds': grace,
      **({'serviceAccountName': args.account} if args.account else {}),
      'nodeSelector': {
          'cloud.google.com/gke-tpu-accelerator': _NODES[family],
          'cloud.google.com/gke-tpu-topology': 'x'.join(map(str, sizes)),
          **spot},
      'tolerations': [
          {'key': key, 'operator': 'Exists'} for key in (
              'google.com/tpu', *spot)],
      'containers': [{
          'name': 'train', 'image': args.image,
          'command': ['sh', '-c', command],
          'env': [{'name': _FILES, 'value': files}],
          **({'envFrom': [{'secretRef': {'name': args.secret}}]} if (
              args.secret) else {}),
          'resources': {'requests': {**tpus}, 'limits': {**tpus}}}]}
  ends = [
      {'action': 'FailJob', 'onExitCodes': {
          'containerName': 'train', 'operator': 'In',
          'values': [commands.STOPPED]}},
      {'action': 'FailJob', 'onPodConditions': [
          {'type': 'DisruptionTarget', 'status': 'True'}]}]
  queue = {'labels': {'kueue.x-k8s.io/queue-name': args.queue}} if (
      args.queue) else {}
  return {
      'apiVersion': 'jobset.x-k8s.io/v1alpha2', 'kind': 'JobSet',
      'metadata': {
          'name': args.name, **queue, 'annotations': {
              'alpha.jobset.sigs.k8s.io/exclusive-topology':
                  'cloud.google.com/gke-nodepool'}},
      'spec': {
          'failurePolicy': {
              'maxRestarts': args.restarts,
              'rules': [{  # The reason of a job that failed by `ends`.
                  'name': 'stopped', 'onJobFailureReasons': [
                      'PodFailurePolicy'],
                  'action': 'RestartJobSetAndIgnoreMaxRestarts'}]},
          'replicatedJobs': [{
              'name': 'slice', 'replicas': args.slices,
              'template': {'spec': {
                  'parallelism': hosts, 'completions': hosts,
                  'completionMode': 'Indexed', 'backoffLimit': 0,
                  'podFailurePolicy': {'rules': ends},
                  'template': {'spec': pod}}}}]}}


def xpk(
    args: argparse.Namespace, command: str, files: str, grace: int) -> str:
  """Returns the command of xpk; the arguments are those of `manifest`."""
  return shlex.join([
      'xpk', 'workload', 'create', f'--cluster={args.xpk}',
      f'--workload={args.name}', f'--tpu-type={args.type}',
      f'--num-slices={args.slices}', f'--docker-image={args.image}',
      f'--max-restarts={args.restarts}',
      f'--restart-on-exit-codes=1,{commands.STOPPED}',
      f'--termination-grace-period-seconds={grace}',
      f'--env={_FILES}={files}', f'--command={command}'])


def _packed(sent: local_files.Sent, name: str) -> str:
  """Returns the config and its files as text.

  Raises:
    ValueError: they are too large.
  """
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode='w:gz') as archive:
    sent.write(archive, name)
  text = base64.b64encode(content.getvalue()).decode()
  if len(text) > _MOST:
    raise ValueError(
        f'The files that the config names take {len(text) >> 10} KiB, and a '
        f'manifest has room for {_MOST >> 10}: {sent.too_large()}')
  return text


def _parse(argv: Sequence[str] | None) -> tuple[
    argparse.ArgumentParser, argparse.Namespace, list[str]]:
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.launch.gke --name=NAME --type=TYPE '
      '--image=IMAGE --config=FILE.py --workdir=gs://BUCKET/RUN [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add('--name', required=True, help='of the JobSet')
  add('--type', required=True, choices=chips.TOPOLOGIES, metavar='TYPE',
      help='of the slice, such as v5litepod-16')
  add('--slices', type=int, default=1, help='default: 1')
  add('--image', required=True, help='container image with this package')
  add('--config', required=True, help='FILE.py or FILE.py:ARG')
  add('--workdir', required=True, help='gs://BUCKET/RUN')
  add('--secret', help='secret whose keys become environment variables, such '
      'as HF_TOKEN and WANDB_API_KEY')
  add('--account', help='service account that may use the bucket')
  add('--spot', action='store_true', help='nodes that may be preempted')
  add('--queue', help='local queue of Kueue')
  add('--restarts', type=int, default=3, help='after failures (default: 3)')
  add('--send', action='append', default=[], metavar='PATH',
      help='other small file or folder that the pods need')
  add('--xpk', metavar='CLUSTER', help="print xpk's command for this cluster")
  args, rest = parser.parse_known_args(argv)
  return parser, args, rest


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code."""
  parser, args, rest = _parse(argv)
  try:
    # Names of the pods are longer, and labels may have 63 characters.
    if not re.fullmatch('[a-z]([-a-z0-9]{0,38}[a-z0-9])?', args.name):
      raise ValueError(f'--name={args.name} must be up to 40 lower-case '
                       'letters, digits and -.')
    if not args.workdir.startswith('gs://'):
      raise ValueError(f'--workdir={args.workdir} must be in a bucket, such as '
                       'gs://BUCKET/RUN: pods do not outlive the run.')
    others = ('secret', 'account', 'spot', 'queue')
    if args.xpk and (given := [x for x in others if getattr(args, x)]):
      raise ValueError(f'--{given[0]} is not for --xpk: it is a matter of the '
                       'cluster, or of other options of xpk.')
    _, overrides = config_lib.split(rest)
    overrides['workdir'] = args.workdir
    config = local_files.load(
        args.config, overrides,
        devices=args.slices * math.prod(_slice(args.type)[1]))
    # The program starts in a folder of its own, without a copy of this one.
    sent = local_files.send(
        config, args.workdir, pathlib.Path('/none'), args.send)
    files = _packed(sent, f'{args.name}.json')
  except (OSError, ValueError) as error:
    parser.exit(2, f'{error}\n')
  argv = commands.train(
      f'{args.name}.json', several=_slice(args.type)[2] * args.slices > 1)
  command = (
      f'cd "$(mktemp -d)" && echo "${_FILES}" | base64 -d | tar -xz && '
      f'exec python {shlex.join(argv)}')
  made = (args, command, files, math.ceil(config.checkpoint.grace) + 60)
  sys.stdout.write(f'{xpk(*made)}\n' if args.xpk else yaml.safe_dump(
      manifest(*made), sort_keys=False))
  return 0


if __name__ == '__main__':
  sys.exit(main())
