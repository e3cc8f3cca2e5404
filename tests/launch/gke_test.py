"""Tests of gke.py: the manifest by the published schema, and what pods run."""

import json
import os
import shlex
import subprocess

from kubeflow_trainer_api.models import jobset_v1alpha2_job_set
import pytest
import yaml

from jaxrl_llm.launch import gke

ARGV = ['--name=math', '--type=v5litepod-16', '--image=registry/train',
        '--config=countdown', '--workdir=gs://bucket/math']


def written(capsys, *more):
  assert gke.main([*ARGV, *more]) == 0
  return capsys.readouterr().out


def is_valid(manifest):
  """Returns whether the API has each field, of this type."""
  found = jobset_v1alpha2_job_set.JobsetV1alpha2JobSet.from_dict(manifest)
  return found.to_dict() == manifest


def parts(manifest):
  """Returns the job of a slice, its pod, and the pod's container."""
  job = manifest['spec']['replicatedJobs'][0]
  pod = job['template']['spec']['template']['spec']
  return job, pod, pod['containers'][0]


@pytest.mark.parametrize('more, hosts, chips, shape', [
    ([], 4, 4, '4x4'),
    (['--type=v5litepod-128', '--slices=2', '--spot'], 32, 4, '8x16'),
    (['--type=v5p-16', '--secret=s', '--account=a'], 2, 4, '2x2x2'),
    (['--type=v6e-1', '--queue=q'], 1, 1, '1x1')])
def test_the_manifest(capsys, more, hosts, chips, shape):
  manifest = yaml.safe_load(written(capsys, *more))
  assert is_valid(manifest)
  job, pod, container = parts(manifest)
  spec = job['template']['spec']
  assert job['replicas'] == (2 if '--slices=2' in more else 1)
  assert spec['parallelism'] == spec['completions'] == hosts
  assert container['resources']['limits'] == {'google.com/tpu': chips}
  assert pod['nodeSelector']['cloud.google.com/gke-tpu-topology'] == shape
  assert pod['terminationGracePeriodSeconds'] == 120 + 60
  assert ('cloud.google.com/gke-spot' in pod['nodeSelector']) == (
      '--spot' in more)
  assert ('--process_count=auto' in container['command'][2]) == (hosts > 1)
  # What the schema does not know is noticed.
  spec['backoffLimits'] = spec.pop('backoffLimit')
  assert not is_valid(manifest)


def test_a_pod_has_the_config_and_its_files(capsys, tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text(
      'import jaxrl_llm\ndef sharp(rewards, *, where):\n  return rewards\n')
  monkeypatch.chdir(tmp_path)
  _, _, container = parts(yaml.safe_load(written(
      capsys, '--config.advantage=mine.py:sharp')))
  python = tmp_path / 'bin' / 'python'  # shows where it is, and its arguments
  python.parent.mkdir()
  python.write_text('#!/bin/sh\npwd; echo "$@"; cat math.json\n')
  python.chmod(0o755)
  path = f'{tmp_path}/bin:{os.environ["PATH"]}'
  shown = subprocess.run(
      container['command'], capture_output=True, text=True, check=True, env={
          'PATH': path, 'TMPDIR': str(tmp_path),
          **{e['name']: e['value'] for e in container['env']}}).stdout
  folder, argv, text = shown.split('\n', 2)
  assert argv == ('-m jaxrl_llm.train --config=math.json --process_count=auto '
                  '--stopped_code=75')
  monkeypatch.chdir(folder)
  config = json.loads(text)
  assert config['workdir'] == 'gs://bucket/math'
  file, _, name = config['advantage'].partition(':')
  assert name == 'sharp' and file.startswith('files/')
  assert open(file).read().startswith('import jaxrl_llm')


def test_the_command_of_xpk(capsys):
  words = shlex.split(written(capsys, '--xpk=mine', '--slices=2'))
  assert words[:3] == ['xpk', 'workload', 'create']
  assert {'--cluster=mine', '--workload=math', '--tpu-type=v5litepod-16',
          '--num-slices=2', '--docker-image=registry/train',
          '--restart-on-exit-codes=1,75'} <= {*words}
  assert words[-1].endswith('--stopped_code=75')


@pytest.mark.parametrize('argv, said', [
    (['--config.stepz=1'], 'stepz is not a field'),
    (['--config.task.name=no.py'], 'There is no file'),
    (['--name=Math'], '--name=Math must be'),
    (['--xpk=a', '--secret=b'], '--secret is not for --xpk'),
    (['--send=no'], '--send=no: there is no'),
    (['--workdir=/shared/math'], 'must be in a bucket'),
    (['--config=grpo/qwen3_1p7b_math', '--config.task.path=link.jsonl',
      '--config.task.heldout=gs://b/t.jsonl'], 'has room for 96')])
def test_a_mistake_is_one_sentence(
    capsys, argv, said, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'large').write_bytes(os.urandom(1 << 17))
  (tmp_path / 'link.jsonl').symlink_to('large')
  with pytest.raises(SystemExit) as end:
    gke.main([*ARGV, *argv])
  assert end.value.code == 2
  text = capsys.readouterr().err
  assert said in text and len(text.strip().splitlines()) == 1
