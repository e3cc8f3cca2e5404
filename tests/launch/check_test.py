"""Tests of the programs of a step, compiled ahead of time for a slice."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_llm.launch import compile_check
from jaxrl_llm.launch.aot import check, chips, memory
from jaxrl_llm.models import flops as model_flops
from tests.helpers import devices

# A job with everything that a pod's has, but small.
SMALL = {
    'sft.steps': 0, 'prompts_per_step': 8, 'samples_per_prompt': 4,
    'max_prompt': 24, 'max_response': 32, 'model.vocab_size': 64,
    'model.width': 64, 'model.layers': 3, 'model.heads': 4,
    'model.kv_heads': 4, 'model.head_dim': 16, 'model.mlp_width': 128,
    'learner.tokens_per_microbatch': 300, 'learner.updates': 2,
    'learner.remat': 'full',
    'sampling.slots': 4, 'sampling.chunk': 8, 'sampling.prefill_prompts': 1,
    'loss.kl_coef': 0.1}


def fields(**changes):
  return {**SMALL, **{k.replace('__', '.'): v for k, v in changes.items()}}


def case(made, lengths=check.FULL, measured=False):
  return check.cases_of(made, {'': (lengths, measured)})['']


def test_how_often_things_run():
  config = check.load('configs/countdown.py', SMALL)
  made = check.build(config, chips.topology('cpu:1'))
  # Old log-probs for the second update, and the anchor's.
  assert [check._runs(made, name) for name in (
      'reshard', 'sample', 'score', 'update')] == [1, 1, 2, 2]
  # Bins of 64 hold two responses of 32. 8 groups have 16 bins, and prompts of
  # 8 x 23 tokens; 5 bins of a list are 4 of responses and 1 of 2 prompts.
  assert check._turns(made, 'score', case(made)) == dict(microbatches=4)
  assert check._turns(made, 'update', case(made)) == dict(microbatches=2)
  turns = check._turns(made, 'sample', case(made))
  # 32 requests on 4 slots are 8 waves of 32 steps; one prompt in a round.
  steps = 8 * 32
  assert turns['prefills'] == 8
  assert turns['prefills'] * turns['serve'] * turns['decode'] == steps
  assert turns['prefills'] * turns['serve'] * turns['refill'] == 32
  # A prompt has 3 chunks of 8, a response 1 to 4: 2.5 in the mean.
  assert turns['chunks'] == 5.5


def test_how_often_shared_prompts_are_read():
  turns = []
  for slots in 8, 6:
    made = check.build(check.load('configs/countdown.py', {
        **SMALL, 'sampling.slots': slots, 'sampling.share_prompts': True}),
                       chips.topology('cpu:1'))
    turns.append(check._turns(made, 'sample', case(made)))
  # 8 slots have 2 prompts of 3 chunks, with 4 samples each. 6 slots have 2, 2,
  # 2, 2, 2 and, in the last wave, the 2 requests of 1.
  assert [t['prefixes'] for t in turns] == [6, 3 * 11 / 6]
  assert [t['chunks'] for t in turns] == [2.5, 2.5]
  # All steps copy 8 prompts.
  for t in turns:
    copies = t['prefills'] * t['serve'] * t['refill'] * t['new_prompt']
    assert round(copies) == 8


@pytest.mark.parametrize('changes, sorts', [
    ({}, 0), ({'sampling.top_k': 5}, 1), ({'sampling.top_p': 0.9}, 1),
    ({'sampling.min_p': 0.1}, 0)])
def test_logits_are_sorted_where_the_distribution_is_cut(changes, sorts):
  config = check.load('configs/countdown.py', {**SMALL, **changes})
  made = check.build(config, chips.topology('cpu:1'))
  assert check._chances(made, 'sample', case(made))['truncation'] == sorts


def test_how_much_of_the_head_is_needed():
  """16 responses of 32 tokens are in two lists of 304, in chunks of 16."""
  made = check.build(
      check.load('configs/countdown.py', SMALL), chips.topology('cpu:1'))
  assert check._chances(made, 'update', case(made))['needed'] == 16 / 19


def test_model_flops_of_phases():
  config = check.load('configs/countdown.py', SMALL)
  made = check.build(config, chips.topology('cpu:1'))
  flops = {name: check._model_flops(made, name) for name in (
      'reshard', 'sample', 'score', 'update')}
  assert flops['reshard'] == 0
  # A forward and a backward pass over all rows against two forward passes.
  assert flops['update'] / flops['score'] == pytest.approx(1.5)
  assert flops['score'] / flops['sample'] == pytest.approx(2)
  # Each prompt runs once, not four times: 8 * 24 + 32 * 32 of 32 * 56 tokens.
  rows = np.full(32, 24)
  assert flops['update'] / model_flops.update(
      made.model, rows, rows + 8) == pytest.approx(
          (8 * 24 + 32 * 32) / (32 * 56), rel=0.1)


def test_shorter_responses():
  """Their mean is a quarter of the limit; each call has the same."""
  made = check.build(
      check.load('configs/countdown.py', SMALL), chips.topology('cpu:1'))
  full, short = case(made), case(made, check.QUARTER)
  turns = [check._turns(made, 'sample', x) for x in (full, short)]
  steps = [t['prefills'] * t['serve'] * t['decode'] for t in turns]
  # 8 responses a slot; the last ones do not end together.
  assert 0.25 < steps[1] / steps[0] < 0.45
  # 16 responses and 4 prompts are in one list, of 288 tokens in place of 304.
  assert check._turns(made, 'update', short)['microbatches'] == 288 / 304


def test_decoding_at_the_share_of_bandwidth_that_was_measured():
  text = ('ENTRY %main (p: f32[1000000]) -> f32[1000000] {\n'
          '  %p = f32[1000000]{0} parameter(0)\n'
          '  ROOT %t = f32[1000000]{0} tanh(%p)\n}\n')
  for chunk, share in (8, 0.23), (None, 0.48):
    made = check.build(check.load('configs/countdown.py', {
        **SMALL, 'sampling.chunk': chunk}), chips.topology('cpu:1'))
    ideal, measured, update = (
        check._estimate(made, chips.CHIPS['v5e'], name, text, case(
            made, measured=measured))
        for name, measured in (
            ('sample', False), ('sample', True), ('update', True)))
    assert ideal.seconds == update.seconds == pytest.approx(8e6 / 819e9)
    assert ideal.seconds / measured.seconds == pytest.approx(share)


def program(*arguments):
  return subprocess.run(
      [sys.executable, 'launch/compile_check.py', *arguments],
      cwd=devices.ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'PYTHONPATH': str(devices.ROOT)})


def overrides(**changes):
  return [f'--config.{k}={v}' for k, v in fields(**changes).items()]


@devices.needs_libtpu
def test_a_slice_of_tpus(tmp_path):
  out = program(
      '--config=configs/countdown.py', '--topology=v5e:2x4',
      f'--json={tmp_path / "out.json"}', *overrides(
          mesh__data=2, mesh__fsdp=2, mesh__tensor=2, mesh__learner_tensor=1,
          model__dtype='bfloat16',
          # What is smaller is not done by the matrix units.
          model__width=256, model__head_dim=128, model__mlp_width=1024,
          max_prompt=128, max_response=128, sampling__chunk=128))
  assert out.returncode == 0, out.stderr[-2000:]
  found = json.loads((tmp_path / 'out.json').read_text())
  assert found['verdict'] == [] and found['mesh'] == dict(
      data=2, fsdp=2, tensor=2)
  assert found['learner_mesh'] == dict(data=2, fsdp=4, tensor=1)
  assert 'tensor=2 (learner 2, 4, 1);' in out.stdout
  # A part of a copy of the weights moves to its neighbour, before it is
  # gathered from the other copies.
  axes = {row['kind']: row['axes']
          for row in found['phases']['reshard']['collectives']}
  assert axes['all-to-all'] == 'tensor' and axes['all-gather'] == 'fsdp'
  for phase in found['phases'].values():
    assert phase['loops_not_counted'] == []
    assert phase['estimate']['seconds'] > 0
  # Two updates of 16 rows, each with as many products as the mathematics says,
  # once more for recomputed layers, and padding. A list has one row, so that a
  # prompt is computed with each of its four: 256 tokens a row, not 160.
  update = found['phases']['update']
  done = update['estimate']['TFLOP'] * 8e12
  assert 1.0 < done / update['model_flops'] * 160 / 256 < 2.0
  assert 'Estimate:' in out.stdout and 'decode loop' in out.stdout


def test_a_step_that_carries_responses_over():
  """Of 8 steps on 4 slots, where 32 responses have 32 tokens each."""
  made = check.build(check.load('configs/countdown.py', {
      **SMALL, 'sampling.carry_over': True, 'sampling.wave_steps': 8,
      'sampling.prefill_prompts': 2}), chips.topology('cpu:1'))
  x = case(made)
  # 4 rows are served for 4 steps each; the step begins 8 groups in 32 of them.
  assert x.use.waves == 32 and x.use.steps == 8
  assert [check._times(name, x) for name in ('sample', 'score', 'update')] == [
      32, 32, 1]
  # Its two updates, though as many batches may leave at once as may wait.
  assert made.needs.updates_per_step > 2 == check._runs(made, 'update')
  turns = check._turns(made, 'sample', x)
  assert turns['prefills'] * turns['serve'] * turns['decode'] == 8
  assert turns['prefills'] * turns['serve'] * turns['refill'] == 4
  # Tokens 0, 8, 16 and 24 exist in turn, of which none needs no chunk.
  assert turns['continued'] == 3 / 4 and x.use.existing == 16
  assert turns['continued_chunks'] == 1  # of 32 or 64 columns
  assert turns['unfinished'] == 3
  # Old log-probs of the 4 rows with new tokens, of 16 tokens and more.
  assert sum(check._lengths(made, 'score', x) > 0) == 4
  assert check._turns(made, 'update', x)['microbatches'] == 2
  assert check._model_flops(made, 'sample') == check._model_flops(
      check.build(check.load('configs/countdown.py', SMALL),
                  chips.topology('cpu:1')), 'sample')


@devices.needs_libtpu
@pytest.mark.slow
def test_lengths_on_a_slice(tmp_path):
  out = program(
      '--config=configs/countdown.py', '--topology=v5e:2x2',
      '--lengths=lognormal:8,1', '--config.sampling.carry_over=true',
      f'--json={tmp_path / "out.json"}', *overrides(mesh__fsdp=4))
  assert out.returncode == 0, out.stderr[-2000:]
  found = json.loads((tmp_path / 'out.json').read_text())
  for phase in found['phases'].values():
    assert phase['loops_not_counted'] == []
  for way in 'waiting', 'carried':
    assert 0 < found['lengths'][way]['seconds'] < (
        found['lengths'][way]['seconds, measured'])


@devices.needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize('data, fsdp', [(2, 2), (1, 4)])
def test_two_slices(tmp_path, data, fsdp):
  """In the decode loop nothing crosses; the update reduces its gradients."""
  out = program(
      '--config=configs/countdown.py', '--topology=2xv5e:2x2',
      f'--json={tmp_path / "out.json"}', *overrides(
          mesh__data=data, mesh__fsdp=fsdp, mesh__tensor=2,
          loss__kl_coef=0.0, learner__updates=1))
  assert out.returncode == 0, out.stderr[-2000:]
  found = json.loads((tmp_path / 'out.json').read_text())
  assert found['verdict'] == []
  # Over the axis between the slices, and no data moves in the sampler.
  axis = 'data' if data > 1 else 'fsdp'
  assert any(axis in row['axes'] for row in
             found['phases']['update']['collectives'])
  assert not any({'data', 'fsdp'} & {*row['axes']} for row in
                 found['phases']['sample']['collectives'])


@devices.needs_libtpu
def test_a_mesh_that_does_not_divide_over_slices():
  out = program('--config=configs/countdown.py', '--topology=2xv5e:2x2',
                '--config.mesh.tensor=8')
  assert out.returncode == 2
  assert 'mesh.fsdp must be a multiple of the 2 slices' in out.stderr


@devices.needs_libtpu
def test_a_job_that_is_too_large():
  out = program(
      '--config=configs/pkpo/gemma2_9b_math.py', '--topology=v5e:2x2',
      '--config.mesh.fsdp=1', '--config.mesh.tensor=4',
      '--config.sampling.slots=256')
  assert out.returncode == 1
  *progress, reason = out.stderr.splitlines()
  assert progress[0].endswith(': compiling') and 'update: compiling' in progress
  assert reason.startswith('The job does not fit v5e:2x2, where a chip has ')
  assert reason.endswith('.') and 'so raise mesh.fsdp' in reason


@pytest.mark.parametrize('arguments, want', [
    ([], 'defines no TOPOLOGY'),
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


def test_a_teacher_has_a_forward_pass():
  """Beside the policy's update, which is three; and its parameters stay."""
  load = lambda **more: check.build(
      check.load('configs/countdown.py', {**SMALL, **more}),
      chips.topology('cpu:1'))
  same = {f'teacher.{name}': value for name, value in SMALL.items()
          if name.startswith('model.')}
  plain, taught = load(), load(**{'teacher.model.preset': 'tiny', **same})
  flops = [check._model_flops(made, 'update') for made in (plain, taught)]
  assert flops[1] / flops[0] == pytest.approx(4 / 3)
  held = memory.held(taught, 'sample')
  assert held['teacher'] == held['parameters'] > 0
  assert not memory.held(plain, 'sample')['teacher']


def test_a_reward_model_is_a_phase():
  """A forward pass over all responses; its parameters stay."""
  same = {f'reward.{name}': value for name, value in SMALL.items()
          if name.startswith('model.')}
  config = check.load('configs/countdown.py', {
      **SMALL, 'reward.model.preset': 'tiny', **same})
  report = check.run(config, chips.topology('cpu:1'), only=('reward',))
  phase, = report.phases
  made = check.build(config, chips.topology('cpu:1'))
  held = memory.held(made, 'update')
  # The score and no unembedding, which the policy's is tied to.
  assert held['reward model'] == held['parameters'] + 4 * made.model.width
  assert phase.bytes['reward model'] == held['reward model']
  # As sampling, but for the logits of all response tokens.
  tokens = made.stages.curriculum.max_requests * config.max_response
  assert phase.runs == 1 and phase.model_flops == pytest.approx(
      check._model_flops(made, 'sample') - 2 * made.model.width * tokens * (
          made.model.vocab_size - 1))
  plain = check.build(
      check.load('configs/countdown.py', SMALL), chips.topology('cpu:1'))
  for name in 'sample', 'score', 'update':
    assert check._model_flops(made, name) == check._model_flops(plain, name)
