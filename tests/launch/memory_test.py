"""Tests of the memory by part, against sums by hand."""

import types

import jax
import pytest

from jaxrl_llm.launch.aot import check, chips, memory, report
from jaxrl_llm.prepare import arguments
from tests.helpers import devices
from tests.launch.check_test import SMALL


def sums(overrides, only):
  """Checks a job on 8 CPU devices.

  Returns:
    For each phase, its reported total, the sum computed here, and its parts;
    the sentences of the verdict; the report's text.
  """
  topology = chips.topology('cpu:8')
  config = check.load('configs/countdown.py', {**SMALL, **overrides})
  made = check.build(config, topology)
  x, compiled, compile_ = arguments.abstract(made), {}, check._compile
  names = iter(only or arguments.lowered(made))

  def watched(lower):
    out = compile_(lower)
    compiled[next(names)] = out[0].memory_analysis()
    return out

  check._compile = watched
  found = check.run(config, topology, only)
  said = {p.name: p for p in found.phases}
  code = sum(m.generated_code_size_in_bytes for m in compiled.values())
  new = {
      name: m.argument_size_in_bytes + m.output_size_in_bytes
      - m.alias_size_in_bytes + m.temp_size_in_bytes
      for name, m in compiled.items()}
  policy, anchor = x.state['policy'], arguments.size(x.anchors)
  moments, params = map(arguments.size, (policy.opt_state, policy.params))
  shared = 'reshard' in new and not compiled[
      'reshard'].argument_size_in_bytes
  beside = dict(  # what a phase's program does not get, but the run keeps
      reshard=moments + anchor + (params if shared else 0),
      sample=moments + anchor + (0 if shared else params),
      score=moments + anchor + arguments.size((x.scored, x.scored_plan)),
      update=anchor)
  phases = {
      name: [said[name].total, new[name] + beside[name] + code,
             said[name].bytes] for name in new}
  return phases, report.verdict(found), report.text(found)


@pytest.mark.parametrize('fields, only', [
    ({'mesh.data': 8, 'loss.kl_coef': 0.0, 'sampling.share_prompts': True},
     ['reshard', 'sample']),
    ({'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2}, [])])
def test_each_phase_is_what_it_takes_and_what_the_run_keeps(fields, only):
  found, verdict, text = devices.run(sums, fields, only, devices=None)
  assert [*found] == (only or ['reshard', 'sample', 'score', 'update'])
  # Nothing crosses data shards in the decode loop, no weight moves there and
  # no cache is copied.
  assert verdict == []
  assert 'GiB per device' in text
  for name, (said, want, parts) in found.items():
    assert said == pytest.approx(want, rel=0.005), name
    assert min(parts.values()) > 0 and 'parameters' in parts
  # Where type and layout stay, those of training are those of sampling.
  assert ('sampling weights' in found['sample'][2]) == ('mesh.fsdp' in fields)
  assert ('anchor' in found['sample'][2]) == ('mesh.fsdp' in fields)
  # 4 slots of 24 + 32 columns, 3 layers of keys and values of 4 heads of 16.
  heads = 4 // fields.get('mesh.tensor', 1)
  column = 3 * 2 * heads * 16 * 4
  share = 'sampling.share_prompts' in fields
  assert found['sample'][2]['decode cache'] == column * 4 * (
      32 if share else 56)
  # One prompt's prefill, and the seats of the two that a shard may have.
  assert found['sample'][2]['prefix cache'] == column * 24 * (
      3 if share else 1)


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


def on_one_device(**fields):
  config = check.load('configs/countdown.py', {**SMALL, **fields})
  return check.build(config, chips.topology('cpu:1'))


def test_with_lora_nothing_but_adapters_is_made_for_sampling():
  made = on_one_device(**{'lora.rank': 4, 'loss.kl_coef': 0.0})
  adapters = rest = 0
  for keys, x in jax.tree_util.tree_leaves_with_path(
      arguments.abstract(made).weights):
    if '_lora_' in jax.tree_util.keystr(keys):
      adapters += x.size * x.dtype.itemsize
    else:
      rest += x.size * x.dtype.itemsize
  found = memory.held(made, 'sample')
  assert found['sampling weights'] == adapters > 0
  assert found['frozen'] == rest
  assert 'sampling weights' not in memory.held(made, 'update')


def test_what_the_compiler_says_of_a_program_has_its_parts():
  made = on_one_device()
  x = arguments.abstract(made)
  state, kept = arguments.size(x.state), memory.held(made, 'update')
  program = types.SimpleNamespace(
      memory_analysis=lambda: types.SimpleNamespace(
          argument_size_in_bytes=state + 100,
          output_size_in_bytes=state + 20, alias_size_in_bytes=state,
          temp_size_in_bytes=3000))
  found = memory.parts(made, 'update', program, code=500)
  assert found == {
      **{part: n for part, n in kept.items() if n}, 'buffers': 120,
      'activations': 3000, 'program': 500}
