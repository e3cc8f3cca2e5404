"""FLOPs and memory traffic of single operations of a compiled program.

Only matrix products count as arithmetic, because the FLOP/s of a chip are
specified for them.
"""

import collections
import math
import re

import numpy as np

# Operations without a cost of their own.
FREE = (
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast',
    'after-all', 'partition-id', 'replica-id', 'copy-done', 'slice-done',
    'opt-barrier', 'add-dependency')


def flops(module, computation, x) -> float:
  """Returns 2 FLOPs per multiply-add of a matrix product or convolution."""
  if x.op == 'fusion':
    inner = module.computations[x.calls['calls']]
    return sum(flops(module, inner, y) for y in inner.instructions.values())
  if x.op == 'dot':
    return _dot_flops(computation, x)
  if x.op == 'convolution':
    return _convolution_flops(computation, x)
  if x.op == 'custom-call':
    return _ragged_flops(computation, x) or _splash_flops(computation, x)
  return 0.0


def traffic(module, computation, x) -> float:
  """Returns the bytes that an operation reads from and writes to HBM."""
  if x.op.endswith('-start'):
    source, target = _ends(x)
    return target.bytes * ((not source.on_chip) + (not target.on_chip))
  if x.op == 'custom-call' and 'tpu_custom_call' not in x.text:
    return 0.0  # an allocation or an annotation for the compiler
  if x.op == 'fusion':
    return _fusion_traffic(module, computation, x)
  return sum(_read(computation, x, i) for i in range(len(x.operands))
             ) + written(module, computation, x)


# Number of matrix products over the attention scores in each splash kernel.
_SPLASH = (
    (r'splash_m[hq]a_fwd', 2),
    (r'splash_m[hq]a_dkv.*use_fused_bwd_kernel\W+true', 5),
    (r'splash_m[hq]a_dkv', 4),
    (r'splash_m[hq]a_dq', 3))


def _splash_flops(computation, x) -> float:
  """Returns the FLOPs of a splash attention kernel, 0 for other calls.

  Counts the blocks of a causal mask. A sliding window has fewer blocks, but the
  text does not tell whether there is one.
  """
  text = f'{x.name} {x.text}'
  products = next((
      n for pattern, n in _SPLASH if re.search(pattern, text, re.DOTALL)), 0)
  if not products:
    return 0.0

  def block(name):
    found = re.search(rf'\W{name}\W+(\d+)', text)
    return int(found[1]) if found else 128

  q = next(a.dims for i in range(len(x.operands))
           for a in computation.operand(x, i).arrays if len(a.dims) > 2
           and a.kind != 's8')
  kind = '_dkv' if products > 3 else '_dq' if products == 3 else ''
  rows, columns = block(f'block_q{kind}'), block(f'block_kv{kind}')
  *heads, length, width = q
  ends = np.minimum(np.arange(rows, length + rows, rows), length)
  pairs = float((np.ceil(ends / columns) * columns * rows).sum())
  return 2.0 * products * math.prod(heads) * pairs * width


def _ragged_flops(computation, x) -> float:
  """Returns the FLOPs of a product of rows sorted by expert, 0 for other calls.

  Its operands are a number, the ends of the experts' rows, two lists of the
  visits, a number, the rows, and a matrix. A visit is of a tile of rows by one
  expert, so that each expert but the first adds one. Without rows it has no
  visit, but the text does not tell how many these are.
  """
  if not re.match(r'ragged-dot-(?!metadata)|tgmm', x.name):
    return 0.0
  _, ends, visits, _, _, rows, _ = (
      computation.operand(x, i).arrays[0] for i in range(len(x.operands)))
  tiles = visits.size - (ends.size - 1) + 1
  return 2.0 * rows.size * x.arrays[0].dims[-1] * visits.size / tiles


def _dot_flops(computation, x) -> float:
  left = computation.operand(x, 0).arrays[0]
  contracted = [
      left.dims[int(d)]
      for d in (x.attribute('lhs_contracting_dims') or '').split(',') if d]
  return 2.0 * x.arrays[0].size * math.prod(contracted)


def _convolution_flops(computation, x) -> float:
  """Returns 2 FLOPs per multiply-add, without padding and dilation gaps."""
  labels = x.attribute('dim_labels')
  left, rest = labels.split('_')
  right, out = rest.split('->')
  image = computation.operand(x, 0).arrays[0].dims
  kernel = computation.operand(x, 1).arrays[0].dims
  result = x.arrays[0].dims
  window = dict(
      part.split('=') for part in (x.attribute('window') or '').split())
  spatial = [c for c in out if c.isdigit()]

  def numbers(name, default):
    text = window.get(name)
    return text.split('x') if text else [default] * len(spatial)

  pairs = 1
  sizes = zip(numbers('stride', '1'), numbers('pad', '0_0'),
              numbers('lhs_dilate', '1'), numbers('rhs_dilate', '1'))
  for c, (stride, pad, spread, gap) in zip(sorted(spatial), sizes):
    spread = int(spread)
    at = (np.arange(result[out.index(c)])[:, None] * int(stride)
          - int(pad.split('_')[0])
          + np.arange(kernel[right.index(c)])[None] * int(gap))
    inside = (at >= 0) & (at <= (image[left.index(c)] - 1) * spread)
    pairs *= int((inside & (at % spread == 0)).sum())
  batch, features = result[out.index('b')], result[out.index('f')]
  return 2.0 * batch * features * kernel[right.index('i')] * pairs


def _read(computation, x, i: int) -> float:
  """Returns the bytes of operand i that an unfused operation reads."""
  source = computation.operand(x, i)
  if x.op in ('dynamic-slice', 'slice', 'gather') and i == 0:
    return 0.0 if source.arrays[0].on_chip else x.arrays[0].bytes
  if x.op in ('dynamic-update-slice', 'scatter') and i == 0:
    return 0.0
  return source.bytes


def written(module, computation, x) -> float:
  """Returns the bytes that an operation writes to HBM.

  For an update in place, this is the updated part.
  """
  if x.op in FREE or x.op in ('while', 'conditional', 'call'):
    return 0.0
  if x.op == 'fusion':
    return _written_by_fusion(x, module.computations[x.calls['calls']])
  if x.op.endswith('-start'):
    target = _ends(x)[1]
    return 0.0 if target.on_chip else target.bytes
  if x.op in ('dynamic-update-slice', 'scatter'):
    part = computation.operand(x, 1 if x.op[0] == 'd' else 2)
    return 0.0 if x.arrays[0].on_chip else sum(a.bytes for a in part.arrays)
  return x.bytes


def _ends(x):
  """Returns source and target of an asynchronous operation.

  The result of copy-start is (target, source, context); the result of the
  others is (source, target, context).
  """
  first, second = x.arrays[:2]
  return (second, first) if x.op == 'copy-start' else (first, second)


def _fusion_traffic(module, computation, x) -> float:
  """Returns the bytes that a fusion reads and writes.

  For a sliced operand this is the slice, for an update in place the part.
  """
  inner = module.computations[x.calls['calls']]
  total = 0.0
  for number in range(len(x.operands)):
    source = computation.operand(x, number).arrays
    if source and not source[0].on_chip:
      total += _needed(module, inner, number, source[0].bytes)
  return total + _written_by_fusion(x, inner)


def _written_by_fusion(x, inner) -> float:
  """Returns the bytes that a fusion writes; in place, only the updated part."""
  def written(y, array) -> float:
    while y.op == 'bitcast':
      y = inner.operand(y, 0)
    if array.on_chip:
      return 0.0
    if y.op == 'dynamic-update-slice':
      return inner.operand(y, 1).arrays[0].bytes
    return array.bytes

  root = inner.instructions[inner.root]
  parts = ([inner.operand(root, i) for i in range(len(root.operands))]
           if root.op == 'tuple' else [root])
  return sum(written(y, a) for y, a in zip(parts, x.arrays))


def _changes_only_tiles(module, x) -> bool:
  """Returns whether a fusion is its operand in other tiles, without a copy.

  8-bit weights are stored in tiles of 32 rows, and products take them in tiles
  of 8. Both have the same order in memory, so the compiler marks the result as
  an alias of the operand.
  """
  if x.op != 'fusion' or (
      'output_to_operand_aliasing={{}: (0, {})}' not in x.text):
    return False
  called = module.computations[x.calls['calls']]
  return called.instructions[called.root].op == 'copy'


def _needed(module, inner, number: int, whole: int) -> float:
  """Returns the bytes of parameter `number` that a fusion reads."""
  users = collections.defaultdict(list)
  for y in inner.instructions.values():
    if y.op not in ('parameter', 'constant'):
      for position, name in enumerate(y.operands):
        users[name].append((y, position))

  def of(name: str) -> float:
    total = float(whole) if name == inner.root else 0.0
    for y, position in users[name]:
      if y.op in ('dynamic-slice', 'slice', 'gather') and position == 0:
        total += y.arrays[0].bytes
      elif y.op == 'bitcast' or _changes_only_tiles(module, y):
        total += of(y.name)
      elif y.op == 'fusion':
        called = module.computations[y.calls['calls']]
        total += _needed(module, called, position, whole)
      elif y.op != 'dynamic-update-slice' or position:
        return float(whole)
    return min(total, float(whole))

  return of(inner.parameters()[number].name)
