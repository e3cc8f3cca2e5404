"""Tests of the report of a check, from artificial results."""

import json
import types

import jax
import numpy as np
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm.launch import compile_check
from jaxrl_llm.launch.aot import check, chips, cost, report, waves

GIB = chips.GIB


def phase(name='update', needs=None, faults=(), runs=2, **bytes_):
  spent = cost.Cost(
      flops=197e12, bytes=819e9, compute=1.0, memory=0.5, interconnect=0.25,
      seconds=1.25, collectives=[
          cost.Collective('all-gather', ('fsdp',), 1000, 3, 0.25,
                          'jit(f)/serve/while/body/decode/while', True)])
  return check.Phase(
      name, 1.0, {k.replace('_', ' '): int(v * GIB) for k, v in bytes_.items()},
      needs, None if needs else spent, runs, 4 * 197e12, list(faults),
      {case: runs * seconds for case, seconds in zip(
          [*check.CASES, 'lengths', 'lengths, measured'],
          (1.25, 2.0, 3.0, 4.0, 5.0, 6.0))})


def made(*phases, shards=4, **fields):
  config = config_lib.load(
      'configs/countdown.py',
      {'learner.tokens_per_microbatch': 512, **fields})
  mesh = types.SimpleNamespace(
      shape=dict(data=1, fsdp=shards, tensor=1), size=shards)
  topology = chips.Topology('v5e:2x2', chips.CHIPS['v5e'], [None] * shards)
  use = waves.Use(1.0, 70.0, 1.0, 8.0, 1.0, 0.0, 0.0, 0.0, 0.0, np.ones(3))
  cases = {case: check.Case(waves.parse('lognormal:8,1'), False, use)
           for case in [*check.CASES, 'lengths', 'lengths, measured']}
  return check.Report(
      config, topology, mesh, mesh, 8, 16, list(phases), 10_000, cases)


def test_a_job_that_fits():
  # 15.75 GiB less a tenth are 14.175.
  assert report.verdict(made(phase(parameters=14.1))) == []
  found, = report.verdict(made(phase(parameters=14.2)))
  assert found == (
      'The job does not fit v5e:2x2, where a chip has 15.75GiB and 10% should '
      'stay free: update needs 14.20GiB, most of it parameters, so raise '
      'mesh.fsdp.')


def test_a_job_that_lacks_memory_everywhere_gets_one_sentence():
  found, = report.verdict(made(
      phase('reshard', parameters=1), phase('sample', decode_cache=20),
      phase(needs='1.50TiB', parameters=10, activations=2)))
  assert found.endswith(
      'free: sample needs 20.00GiB, most of it decode cache, so lower '
      'sampling.slots; update needs 1.50TiB, most of it parameters, so raise '
      'mesh.fsdp.')


@pytest.mark.parametrize('name, bytes_, fields, knob', [
  ('sample', dict(decode_cache=20), {}, 'sampling.slots'),
  ('sample', dict(prefix_cache=20), {}, 'sampling.prefill_prompts'),
  ('sample', dict(sampling_weights=20), {}, 'mesh.tensor'),
  ('sample', dict(buffers=20), {}, 'mesh.data'),
  ('update', dict(optimiser=20), {}, 'mesh.fsdp'),
  # What the same knob makes smaller counts together.
  ('update', dict(parameters=4, optimiser=8, activations=9), {},
   'most of it optimiser and parameters, so raise mesh.fsdp'),
  # Without a backward pass there is nothing to compute again.
  ('score', dict(activations=20), {'learner.tokens_per_microbatch': 1},
   'so raise mesh.tensor'),
  ('update', dict(activations=20), {}, 'lower learner.tokens_per_microbatch'),
  # One row per device is as few as there can be.
  ('update', dict(activations=20), {'learner.tokens_per_microbatch': 1},
   'learner.remat'),
  ('update', dict(activations=20),
   {'learner.tokens_per_microbatch': 1, 'learner.remat': 'full'},
   'mesh.tensor'),
])
def test_what_to_turn(name, bytes_, fields, knob):
  found, = report.verdict(made(phase(name, **bytes_), **fields))
  assert knob in found and f'{name} needs 2' in found


def test_memory_that_ran_out_in_the_compiler_is_a_row():
  checked = made(phase('sample', parameters=1),
                 phase(needs='17.2GiB', parameters=2, activations=15))
  found, = report.verdict(checked)
  assert 'free: update needs 17.2GiB, most of it activations' in found
  assert 'so lower learner.tokens_per_microbatch' in found
  assert '17.2GiB' in report.text(checked)
  assert report.to_json(checked)['phases']['update']['total_bytes'] is None
  assert report.to_json(checked)['peak_bytes'] is None
  assert report.to_json(checked)['seconds_per_step'] is None


def test_a_kernel_that_is_too_large_is_no_lack_of_hbm():
  said = 'RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.'
  found, = report.verdict(made(phase(needs=said, parameters=2)))
  assert found.startswith(f'update does not compile: {said}')
  assert 'learner.attention=xla' in found


def test_a_phase_that_takes_no_time_has_rates():
  """Sampling weights that are those of training."""
  idle = phase('reshard', parameters=1)
  idle.cost, idle.model_flops = cost.Cost(), 0.0
  assert report.rates(made(idle), idle)['model-flops use'] == 0.0
  assert 'reshard' in report.text(made(idle, phase(parameters=1)))


def test_faults_of_the_decode_loop_are_reasons_too():
  assert report.verdict(made(phase(faults=['copy of a cache.']))) == [
      'copy of a cache.']


def test_rates_and_what_they_are_of():
  checked = made(phase(parameters=1))
  rates = report.rates(checked, checked.phases[0])
  assert rates['seconds'] == 2.5 and rates['compute'] == 2.0  # two runs
  # 4 chips could have done 4 * 197e12 in one of the 2.5 seconds.
  assert rates['model-flops use'] == pytest.approx(1 / 2.5)
  assert report.tokens_rate(checked) == pytest.approx(10_000 / 2.5 / 4)
  row, = report.collectives_of(checked.phases[0])
  assert row['place'] == 'decode loop'
  assert (row['times'], row['bytes'], row['seconds']) == (6, 6000, 0.5)
  text = report.text(checked)
  assert 'not measured' in text and '2.50 s per step' in text


def test_json_has_it_all():
  checked = made(phase('sample', parameters=1, decode_cache=2),
                 phase(parameters=np.float64(1)))
  content = json.loads(json.dumps(report.to_json(checked)))
  assert content['peak_bytes'] == 3 * GIB
  assert content['seconds_per_step'] == 5.0
  assert [*content['seconds_per_step_if'].values()] == [
      5.0, 8.0, 12.0, 16.0, 20.0, 24.0]
  assert content['phases']['sample']['bytes']['decode cache'] == 2 * GIB
  assert content['phases']['update']['estimate']['compute'] == 2.0
  assert content['verdict'] == []


@pytest.mark.parametrize('error, want', [
    ('RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory '
     'in memory space hbm. Used 17.23G of 15.75G hbm.', '17.23GiB'),
    ('Ran out of memory on HBM, the total memory required for HLO temporaries '
     '(2.34T) exceeds available HBM (15.75G).', '2.34TiB'),
    ('Ran out of memory in memory space vmem. Scoped allocation with size '
     '17.20M and limit 16.00M exceeded scoped vmem limit by 1.20M.',
     'Ran out of memory in memory space vmem. Scoped allocation with size '
     '17.20M and limit 16.00M exceeded scoped vmem limit by 1.20M.'),
    ('something else\nand more', 'something else')])
def test_what_the_compiler_says_it_needs(error, want):
  assert check._needs(error) == want
  assert (check.bytes_of(check._needs(error)) > 0) == want.endswith('iB')


def test_json_alone_is_what_comes_out(monkeypatch, capsys):
  """Also of a job that does not fit."""
  monkeypatch.setattr(
      check, 'run', lambda *_, **__: made(phase(needs='20.1GiB', parameters=1)))
  assert compile_check.main([
      '--config=configs/countdown.py', '--topology=cpu:1', '--json=-']) == 1
  said = capsys.readouterr()
  assert json.loads(said.out)['phases']['update']['needs'] == '20.1GiB'
  assert json.loads(said.out)['tokens_per_microbatch'] > 0
  assert 'does not fit' in said.err


@pytest.mark.parametrize('carry', [False, True])
def test_both_ways_with_lengths(carry, monkeypatch, capsys):
  asked = []

  def run(config, topology, say, lengths):
    asked.append(config.sampling.carry_over)
    found = made(phase('sample', runs=1 + config.sampling.carry_over))
    return found._replace(
        config=config, wave_steps=9 if carry else 5)

  monkeypatch.setattr(check, 'run', run)
  more = ['--config.sampling.wave_steps=9'] if carry else []
  assert compile_check.main([
      '--config=configs/countdown.py', '--topology=cpu:2', '--json=-',
      f'--config.sampling.carry_over={carry}', '--lengths=lognormal:8,1',
      *more]) == 0
  found = json.loads(capsys.readouterr().out)['lengths']
  assert asked == [carry, not carry]
  assert (found['waiting']['seconds'], found['carried']['seconds']) == (5, 10)
  assert compile_check.main([
      '--config=configs/countdown.py', '--topology=cpu:2',
      f'--config.sampling.carry_over={carry}', '--lengths=lognormal:8,1',
      *more]) == 0
  assert (
      'If responses are as long as lognormal:8,1 says, a step takes 70 decode '
      'steps, 5.00 s, or 6.00 s with decoding as on a GPU. With '
      f'sampling.carry_over and wave_steps={9 if carry else 5}, as many groups '
      'take 70 decode steps, 10.00 s') in capsys.readouterr().out


@pytest.mark.parametrize('arguments, want', [
    (['--lengths=lognormal:8'], 'lengths=lognormal:8 is not lognormal:MEAN,S'),
    (['--lengths=lognormal:8,1', '--config.actor.lag=1'],
     'sampling.carry_over=True does not work with actor.lag=1'),
    (['--lengths=lognormal:8,1', '--config.steps=0'],
     'steps=0 samples no responses: leave --lengths out.')])
def test_lengths_that_cannot_be(arguments, want, capsys):
  with pytest.raises(SystemExit) as stopped:
    compile_check.main(
        ['--config=configs/countdown.py', '--topology=cpu:2', *arguments])
  assert stopped.value.code == 2
  assert capsys.readouterr().err.startswith(want)


def test_a_compiler_that_fails_is_no_verdict(monkeypatch, capsys):
  def fail(*_, **__):
    raise jax.errors.JaxRuntimeError('INTERNAL: a bug')
  monkeypatch.setattr(check, 'run', fail)
  assert compile_check.main([
      '--config=configs/countdown.py', '--topology=cpu:1']) == 3
  assert 'INTERNAL: a bug' in capsys.readouterr().err


def test_json_that_cannot_be_written_is_told_at_once(tmp_path, capsys):
  with pytest.raises(SystemExit) as stop:
    compile_check.main([
        '--config=configs/countdown.py', '--topology=cpu:1',
        f'--json={tmp_path}/no/x.json'])
  assert stop.value.code == 2
  assert 'no/x.json' in capsys.readouterr().err
