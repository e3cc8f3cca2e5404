"""Memory by part, against sums of what the run holds, by hand."""

import pytest

from launch.aot import check, chips, memory
from tests import devices
from tests.launch.check_test import SMALL


def sums(overrides):
  """Total of each phase as said and as added up here; what is held, by part."""
  from jaxrl_llm import programs
  topology = chips.topology('cpu:8')
  config = check.load('configs/countdown.py', {**SMALL, **overrides})
  made = check.build(config, topology)
  x, compiled, compile_ = programs.shapes(made), {}, check._compile
  names = iter(programs.lowered(made))

  def watched(lower):
    out = compile_(lower)
    compiled[next(names)] = out[0].memory_analysis()
    return out

  check._compile = watched
  said = {p.name: p for p in check.run(config, topology).phases}
  code = sum(m.generated_code_size_in_bytes for m in compiled.values())
  new = {
      name: m.argument_size_in_bytes + m.output_size_in_bytes
      - m.alias_size_in_bytes + m.temp_size_in_bytes
      for name, m in compiled.items()}
  moments, anchor = memory.size(x.state.opt_state), memory.size(x.anchor)
  params = memory.size(x.state.params)
  shared = 'relayout' in new and not compiled[
      'relayout'].argument_size_in_bytes
  beside = dict(  # what a phase's program does not get, but the run keeps
      relayout=moments + anchor + (params if shared else 0),
      sample=moments + anchor + (0 if shared else params),
      score=moments + anchor + memory.size(x.scored), update=anchor)
  return {
      name: [said[name].total, new[name] + beside[name] + code,
             said[name].bytes] for name in new}


@pytest.mark.parametrize('fields', [
    {'mesh.data': 8, 'loss.kl_coef': 0.0},
    {'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2}])
def test_each_phase_is_what_it_takes_and_what_the_run_keeps(fields):
  found = devices.run(sums, fields, devices=None)
  assert found.keys() == {'relayout', 'sample', 'score', 'update'}
  for name, (said, want, parts) in found.items():
    assert said == pytest.approx(want, rel=0.005), name
    assert min(parts.values()) > 0 and 'parameters' in parts
  # Where type and layout stay, those of training are those of sampling.
  assert ('sampling weights' in found['sample'][2]) == ('mesh.fsdp' in fields)
  assert ('anchor' in found['update'][2]) == ('mesh.fsdp' in fields)
  # 4 slots of 24 + 32 columns, 3 layers of keys and values of 4 heads of 16.
  heads = 4 // fields.get('mesh.tensor', 1)
  assert found['sample'][2]['decode cache'] == (
      4 * 56 * 3 * 2 * heads * 16 * 4)


def test_what_is_lacking_is_told_by_part():
  config = check.load('configs/countdown.py', SMALL)
  made = check.build(config, chips.topology('cpu:1'))
  parts = memory.lacking(made, 'update', 10**9)
  state = parts['parameters'] + parts['optimiser']
  assert parts['activations'] == 10**9 - state
  assert parts['anchor'] == parts['parameters']
  # The moments and the anchor are no arguments of sampling.
  parts = memory.lacking(made, 'sample', 10**9)
  known = parts['prefix cache'] + parts['decode cache']
  assert parts['activations'] == 10**9 - known
