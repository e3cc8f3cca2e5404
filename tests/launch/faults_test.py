"""Tests of the faults found in artificial decode loops."""

from jaxrl_llm.launch.aot import check, chips, faults
from tests.helpers import devices
from tests.launch.check_test import SMALL

LOOP = '''
%inner (i: bf16[2,8]) -> bf16[2,8] {{
  %i = bf16[2,8] parameter(0)
  ROOT %a = bf16[2,8] all-reduce(%i), replica_groups=[4,2]<=[2,2,2]T(2,1,0)
}}
%branch (b: f32[2048]) -> f32[2048] {{
  %b = f32[2048] parameter(0)
  ROOT %t = f32[2048] all-to-all(%b), replica_groups=[4,2]<=[8]
}}
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


def planted(lines, fields, small=0):
  """Returns the faults of decode loops with each line, on a (2, 2, 2) mesh."""
  config = check.load('configs/countdown.py', {
      **SMALL, 'model.mlp_width': 1024, 'mesh.data': 2, 'mesh.fsdp': 2,
      'mesh.tensor': 2, **fields})
  made = check.build(config, chips.topology('cpu:8'))
  faults.SMALL = small
  return [faults.find(LOOP.format(line=line, scope=scope), made)
          for line, scope in lines]


def test_faults_are_found():
  # A weight's part is 64 * 4 * 16 / 2 numbers of 4 bytes, and half a shard's
  # cache 3 layers * 2 heads * 16 * 4 slots * (24 + 32) columns.
  lines = [
      'all-reduce(%c), replica_groups=[4,2]<=[2,2,2]T(2,1,0)',  # data
      'all-reduce(%c), replica_groups=[4,2]<=[2,2,2]T(2,0,1)',  # fsdp
      'all-reduce(%c), replica_groups=[4,2]<=[8]',  # tensor
      'all-gather(%c), replica_groups=[4,2]<=[8]',
      'copy(%c)', 'copy(%c)', 'copy(%c)',  # the last: of a layer's weight
      'fusion(%c), kind=kCustom, calls=%inner',
      'send(%c), frontend_attributes={{'  # to another slice
      '_xla_megascale_transfer_type="ALL_REDUCE"}}']
  shapes = ['bf16[2,8]'] * 3 + [
      'f32[2048]', 'f32[21504]', 'f32[21503]', 'f32[64,512]',
      'bf16[2,8]', 'bf16[2,8]']
  found = devices.run(planted, [
      [f'%y = {shape} {line}', 'decode'] for shape, line in zip(
          shapes, lines)] + [[f'%y = bf16[2,8] {lines[0]}', 'other']],
                      {}, devices=None)
  assert [len(f) for f in found] == [1, 1, 0, 1, 1, 0, 0, 1, 1, 1]
  assert 'over data' in found[0][0] and 'over fsdp' in found[1][0]
  assert 'as much as a weight' in found[3][0]
  assert 'a whole cache' in found[4][0]
  assert 'over data' in found[7][0]
  assert 'all-reduce between slices' in found[8][0]
  assert 'no decode loop' in found[9][0]


def test_hidden_states_of_many_slots_are_no_weight():
  """2048 numbers are the part of a weight, and 32 slots' 64."""
  line = '%y = f32[2048] all-reduce(%c), replica_groups=[4,2]<=[8]'
  few, many = (devices.run(planted, [[line, 'decode']], fields, devices=None)
               for fields in ({}, {'sampling.slots': 32,
                                   'samples_per_prompt': 32}))
  assert len(few[0]) == 1 and many == [[]]


def test_a_copy_of_a_small_cache_is_none():
  line = '%y = f32[21504] copy(%c)'
  assert devices.run(
      planted, [[line, 'decode']], {}, faults.SMALL, devices=None) == [[]]


def test_a_copy_of_shared_prefixes():
  """Three seats of 24 columns of 2 heads of 16, of 3 layers; of one layer."""
  lines = [[f'%y = f32[{shape}] copy(%c)', 'decode'] for shape in (
      '3,3,2,16,24', '3,3,2,24,16', '3,2,24,16')]
  *found, layer = devices.run(
      planted, lines, {'sampling.share_prompts': True}, devices=None)
  assert layer == []
  assert all('the prefixes of all slots' in fault for fault, in found)


def test_the_sort_of_truncation_may_move_logits():
  """The partitioner's collectives in its branch have no scope of their own."""
  line = ('%y = f32[2048] conditional(%c), branch_computations={{%branch}}, '
          'metadata={{op_name="decode/while/body/SCOPE/cond"}}')
  some, other = devices.run(
      planted, [[line.replace('SCOPE', scope), 'decode']
                for scope in ('truncation', 'sampling')], {}, devices=None)
  assert some == [] and 'as much as a weight' in other[0]
