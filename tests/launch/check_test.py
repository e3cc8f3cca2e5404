"""The programs of a step, compiled for machines that are not there."""

import json
import os
import subprocess
import sys

import pytest

from launch import compile_check
from tests import devices

# A job with everything that a pod's has, but small.
SMALL = {
    'warm_start.steps': 0, 'prompts_per_step': 8, 'samples_per_prompt': 4,
    'max_prompt': 24, 'max_response': 32, 'model.vocab_size': 64,
    'model.width': 64, 'model.layers': 3, 'model.heads': 4,
    'model.kv_heads': 4, 'model.head_dim': 16, 'model.mlp_width': 128,
    'learner.microbatch': 8, 'learner.updates': 2, 'learner.remat': 'full',
    'sampling.slots': 4, 'sampling.chunk': 8, 'sampling.prompts_per_round': 1,
    'loss.kl_coef': 0.1}


def fields(**changes):
  return {**SMALL, **{k.replace('__', '.'): v for k, v in changes.items()}}


def on_emulated_devices(overrides):
  """A check for 8 CPU devices, and the bytes of what a run holds there."""
  import jax
  import jax.numpy as jnp

  from launch.aot import check, chips, report
  topology = chips.topology('cpu:8')
  config = check.load('configs/countdown.py', overrides)
  found = check.run(config, topology)
  made = check.build(config, topology)
  state = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding),
      made.learner.state)
  held = sum(
      x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(
          (state.params, state.opt_state)))
  parts = found.phases[-1].bytes
  return dict(
      names=[p.name for p in found.phases], verdict=report.verdict(found),
      held=held, said=parts['parameters'] + parts['optimiser'],
      total=[p.total for p in found.phases], text=report.text(found))


def test_a_small_job_on_emulated_devices():
  found = devices.run(
      on_emulated_devices,
      fields(mesh__data=2, mesh__fsdp=2, mesh__tensor=2), devices=None)
  assert found['names'] == ['relayout', 'sample', 'score', 'update']
  # Nothing crosses data shards in the decode loop, no weight moves there and
  # no cache is copied.
  assert found['verdict'] == []
  assert found['said'] == found['held']
  assert min(found['total']) > found['held']
  assert 'GiB per device' in found['text']


LOOP = '''
%body (p: (s32[], bf16[2,8,64])) -> (s32[], bf16[2,8,64]) {{
  %p = (s32[], bf16[2,8,64]) parameter(0)
  %c = bf16[2,8,64] get-tuple-element(%p), index=1
  {line}
  ROOT %r = (s32[], bf16[2,8,64]) tuple(%p, %c)
}}
%condition (q: (s32[], bf16[2,8,64])) -> pred[] {{
  ROOT %q = pred[] parameter(0)
}}
ENTRY %main (x: bf16[2,8,64]) -> bf16[2,8,64] {{
  %x = (s32[], bf16[2,8,64]) parameter(0)
  ROOT %w = (s32[], bf16[2,8,64]) while(%x), condition=%condition, \
body=%body, metadata={{op_name="jit(f)/serve/while/body/{scope}/while"}}
}}
'''


def planted(lines):
  """Faults of decode loops with each line in them, on a (2, 2, 2) mesh."""
  from launch.aot import check, chips
  config = check.load('configs/countdown.py', {
      **SMALL, 'model.mlp_width': 1024, 'mesh.data': 2, 'mesh.fsdp': 2,
      'mesh.tensor': 2})
  made = check.build(config, chips.topology('cpu:8'))
  return [check.faults(LOOP.format(line=line, scope=scope), made)
          for line, scope in lines]


def test_faults_are_found():
  # A weight's part is 64 * 4 * 16 / 2 numbers of 4 bytes, and half a shard's
  # cache 3 layers * 2 heads * 16 * 4 slots * (24 + 32) columns.
  lines = [
      'all-reduce(%c), replica_groups=[4,2]<=[2,2,2]T(2,1,0)',  # data
      'all-reduce(%c), replica_groups=[4,2]<=[2,2,2]T(2,0,1)',  # fsdp
      'all-reduce(%c), replica_groups=[4,2]<=[8]',  # tensor
      'all-gather(%c), replica_groups=[4,2]<=[8]',
      'copy(%c)', 'copy(%c)', 'copy(%c)']  # the last: of a layer's weight
  shapes = ['bf16[2,8]'] * 3 + [
      'f32[2048]', 'f32[21504]', 'f32[21503]', 'f32[64,512]']
  found = devices.run(planted, [
      [f'%y = {shape} {line}', 'decode'] for shape, line in zip(
          shapes, lines)] + [[f'%y = bf16[2,8] {lines[0]}', 'other']],
                      devices=None)
  assert [len(f) for f in found] == [1, 1, 0, 1, 1, 0, 0, 0]
  assert 'over data' in found[0][0] and 'over fsdp' in found[1][0]
  assert 'as much as a weight' in found[3][0]
  assert 'a whole cache' in found[4][0]


def program(*arguments):
  return subprocess.run(
      [sys.executable, 'launch/compile_check.py', *arguments],
      cwd=devices.ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'PYTHONPATH': str(devices.ROOT)})


def overrides(**changes):
  return [f'--config.{k}={v}' for k, v in fields(**changes).items()]


aot = pytest.mark.skipif(
    sys.platform != 'linux', reason='libtpu, of the extra aot, is for Linux')


@aot
def test_a_slice_of_tpus(tmp_path):
  out = program(
      '--config=configs/countdown.py', '--topology=v5e:2x4',
      f'--json={tmp_path / "out.json"}', *overrides(
          mesh__data=2, mesh__fsdp=2, mesh__tensor=2, model__dtype='bfloat16',
          # What is smaller is not done by the matrix units.
          model__width=256, model__head_dim=128, model__mlp_width=1024,
          max_prompt=128, max_response=128, sampling__chunk=128))
  assert out.returncode == 0, out.stderr[-2000:]
  found = json.loads((tmp_path / 'out.json').read_text())
  assert found['verdict'] == [] and found['mesh'] == dict(
      data=2, fsdp=2, tensor=2)
  for phase in found['phases'].values():
    assert phase['loops_not_counted'] == []
    assert phase['estimate']['seconds'] > 0
  # Two updates of 16 rows, each with as many products as the mathematics says,
  # once more for recomputed layers, and padding.
  update = found['phases']['update']
  done = update['estimate']['TFLOP'] * 8e12
  assert 1.0 < done / update['model_flops'] < 2.0
  assert 'Estimate:' in out.stdout and 'decode loop' in out.stdout


@aot
def test_a_job_that_is_too_large():
  out = program(
      '--config=configs/pkpo/gemma2_9b_math.py', '--topology=v5e:2x2',
      '--config.mesh.fsdp=1', '--config.mesh.tensor=4',
      '--config.sampling.slots=256')
  assert out.returncode == 1
  reasons = out.stderr.splitlines()
  assert any('does not fit' in r and 'mesh.fsdp' in r for r in reasons)
  assert 'Traceback' not in out.stderr


@pytest.mark.parametrize('arguments, want', [
    ([], 'names no TOPOLOGY'),
    (['--topology=v5e:2x2', '--config.slots=3'], 'sampling.slots'),
    (['--topology=v5e:2x2', '--what'], '--what is not understood')])
def test_mistakes(arguments, want, capsys):
  with pytest.raises(SystemExit) as stop:
    compile_check.main(['--config=configs/countdown.py', *arguments])
  assert stop.value.code == 2
  error, = capsys.readouterr().err.strip().splitlines()
  assert want in error


def test_an_unknown_topology(capsys):
  assert compile_check.main(
      ['--config=configs/countdown.py', '--topology=v5e:3']) == 2
  error, = capsys.readouterr().err.strip().splitlines()
  assert 'v5e:3 is not a known topology' in error
  assert 'v5litepod-128' in error and 'v6e-256' in error


def test_a_mesh_that_does_not_fit_the_devices():
  out = program('--config=configs/countdown.py', '--topology=cpu:2',
                '--config.mesh.data=1', '--config.mesh.tensor=4')
  assert out.returncode == 2
  assert 'makes 4 devices, but there are 2' in out.stderr
  assert 'Traceback' not in out.stderr
