"""Parser for the text of a compiled XLA program.

It reads only what the cost estimate needs: shapes, operands, attributes, calls
between computations, and the number of iterations of loops.
"""

import collections
import math
import re
from typing import Iterator, NamedTuple

_BYTES = {
    'pred': 1, 's4': .5, 'u4': .5, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2,
    's32': 4, 'u32': 4, 's64': 8, 'u64': 8, 'f16': 2, 'bf16': 2, 'f32': 4,
    'f64': 8, 'c64': 8, 'c128': 16, 'f8e4m3fn': 1, 'f8e5m2': 1}
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\](?:\{([^{}]*)\})?')
_INSTRUCTION = re.compile(r'\s*(ROOT )?%?([\w.\-]+) = (.*)')
_COMPUTATION = re.compile(r'(ENTRY )?%?([\w.\-]+) \(')
_END = re.compile(r'\}(, .*)?\s*$')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALLS = ('calls', 'body', 'condition', 'to_apply', 'true_computation',
          'false_computation')


class Array(NamedTuple):
  """An array in a shape.

  Attributes:
    kind: element type in XLA's notation.
    dims: sizes of the dimensions.
    on_chip: True if it is in on-chip memory (VMEM, SMEM), not in HBM.
  """
  kind: str
  dims: tuple[int, ...]
  on_chip: bool = False

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> int:
    """Bytes of the elements, without padding."""
    return math.ceil(self.size * _BYTES.get(self.kind, 0))


class Instruction(NamedTuple):
  """An instruction, one line of a computation.

  Attributes:
    name: name, unique in its computation.
    arrays: arrays of the result, tuples flattened one level.
    op: opcode, such as 'fusion'.
    operands: names of instructions of the same computation. A parameter has its
      number here, and a constant its value.
    text: rest of the line after the operands: attributes and metadata.
  """
  name: str
  arrays: tuple[Array, ...]
  op: str
  operands: tuple[str, ...]
  text: str

  def attribute(self, name: str) -> str | None:
    """Returns the value of an attribute: a word, or the text in its braces."""
    found = re.search(
        rf'[ ,]{name}=(?:\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}|([^,\s]+))',
        self.text)
    return found and (found[2] if found[1] is None else found[1])

  @property
  def scope(self) -> str:
    """Path of name scopes under which JAX traced the instruction."""
    found = re.search(r'op_name="([^"]*)"', self.text)
    return found[1] if found else ''

  @property
  def calls(self) -> dict[str, str]:
    """Role to name of the called computations."""
    found = {
        role: name for role in _CALLS
        if (name := re.search(rf'[ ,]{role}=%?([\w.\-]+)', self.text))}
    called = {role: match[1] for role, match in found.items()}
    branches = self.attribute('branch_computations')
    for i, name in enumerate(re.findall(r'[\w.\-]+', branches or '')):
      called[f'branch_{i}'] = name
    return called

  @property
  def bytes(self) -> int:
    """Bytes of the result that lie in HBM."""
    return sum(a.bytes for a in self.arrays if not a.on_chip)


class Computation(NamedTuple):
  """A function of the program.

  Attributes:
    name: name, unique in the program.
    instructions: name to instruction, in the order of execution.
    root: name of the instruction that gives the computation's result.
  """
  name: str
  instructions: dict[str, Instruction]
  root: str

  def operand(self, instruction: Instruction, i: int) -> Instruction:
    """Returns the instruction that makes operand i."""
    return self.instructions[instruction.operands[i]]

  def parameters(self) -> dict[int, Instruction]:
    """Returns number to parameter."""
    return {
        int(x.operands[0]): x for x in self.instructions.values()
        if x.op == 'parameter'}


class Module(NamedTuple):
  """A program: its computations by name, and the name of the entry."""
  computations: dict[str, Computation]
  entry: str


def _closing(text: str, start: int) -> int:
  """Returns the index that closes the parenthesis opened at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += {'(': 1, ')': -1}.get(text[i], 0)
    if not depth:
      return i
  raise ValueError(f'Parentheses are not balanced in {text[:80]!r}.')


def _arrays(text: str) -> tuple[Array, ...]:
  """Parses the arrays of a shape."""
  return tuple(
      Array(kind, tuple(int(d) for d in dims.split(',') if d),
            bool(re.search(r'S\([1-9]\d*\)', layout)))
      for kind, dims, layout in _ARRAY.findall(text))


def _instruction(line: str) -> tuple[bool, Instruction] | None:
  """Parses a line into (is it the root, instruction); None for other lines."""
  match = _INSTRUCTION.match(line)
  if not match:
    return None
  root, name, rest = match.groups()
  end = _closing(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  shape, rest = rest[:end], rest[end:].lstrip()
  opening = rest.index('(')
  closing = _closing(rest, opening)
  inside = rest[opening + 1:closing]
  op = rest[:opening]
  if op in ('parameter', 'constant'):
    operands = (inside,)
  else:
    operands = tuple(re.findall(r'%([\w.\-]+)', inside))
  return bool(root), Instruction(
      name, _arrays(shape), op, operands, rest[closing + 1:])


def _open(line: str) -> int:
  """Counts opening minus closing braces of a line, outside of strings."""
  bare = _STRING.sub('', line)
  return bare.count('{') - bare.count('}')


def parse(text: str) -> Module:
  """Parses `compiled.as_text()`.

  Args:
    text: text of one module.

  Returns:
    The parsed module.

  Raises:
    ValueError: the text has no entry computation, or a computation has no end.
  """
  computations, entry = {}, None
  name, instructions, root, depth = None, {}, None, 0
  for line in text.splitlines():
    if name is None:
      match = _COMPUTATION.match(line)
      if match and line.rstrip().endswith('{'):
        name, instructions, root, depth = match[2], {}, None, 0
        if match[1]:
          entry = name
    elif depth <= 0 and _END.match(line):
      computations[name] = Computation(name, instructions, root)
      name = None
    else:
      is_root, x = depth <= 0 and _instruction(line) or (False, None)
      depth = _open(line) + (depth if x is None else 0)
      if x is None:  # continues the text of an attribute
        last = next(reversed(instructions))
        x = instructions[last]._replace(
            text=f'{instructions[last].text}\n{line}')
      instructions[x.name] = x
      root = x.name if is_root else root
  if name is not None:
    raise ValueError(
        f'The program text has no end of the computation {name}.')
  if entry is None:
    raise ValueError('This is not the text of a compiled program: no ENTRY.')
  return Module(computations, entry)


class Loops:
  """Numbers of iterations of a program's loops, if its text tells them."""

  def __init__(self, module: Module):
    self._module = module
    self._callers = collections.defaultdict(list)
    for computation in module.computations.values():
      for x in computation.instructions.values():
        for role, name in x.calls.items():
          self._callers[name].append((computation, x, role))

  def turns(self, computation: Computation, loop: Instruction) -> int | None:
    """Returns the iterations of a while loop; None if they depend on data.

    Takes the compiler's annotation if there is one. Otherwise recognises a
    counting loop: the condition compares an element of the carry with a limit,
    and the body adds a constant to this element.
    """
    noted = re.search(r'"known_trip_count":\{"n":"?(\d+)"?\}', loop.text)
    if noted:
      return int(noted[1])
    module, called = self._module, loop.calls
    condition = module.computations[called['condition']]
    body = module.computations[called['body']]
    test = condition.instructions[condition.root]
    test, sides = self._operands(condition, test)
    if test.op != 'compare' or test.attribute('direction') != 'LT':
      return None
    counter, limit = sides
    index = self._element(*counter)
    if index is None:
      return None
    high = self._constant(*limit)
    low = self._carried(computation, loop, index)
    step = self._step(body, index)
    if None in (high, low, step) or step < 1:
      return None
    return max(0, -(-(high - low) // step))

  def _operands(self, computation, x):
    """Resolves an instruction (or a fusion's root) and its operands.

    Returns:
      The instruction; and for each operand, its computation and the instruction
      that makes it. A parameter of a fusion resolves to the fusion's operand.
    """
    given = lambda x: 0 if x.op in ('parameter', 'constant') else len(
        x.operands)
    if x.op != 'fusion':
      return x, [(computation, computation.operand(x, i))
                 for i in range(given(x))]
    inner = self._module.computations[x.calls['calls']]
    root = inner.instructions[inner.root]
    found = []
    for i in range(given(root)):
      y = inner.operand(root, i)
      while y.op in ('copy', 'bitcast', 'convert'):
        y = inner.operand(y, 0)
      found.append(
          (computation, computation.operand(x, int(y.operands[0])))
          if y.op == 'parameter' else (inner, y))
    return root, found

  def _element(self, computation, x) -> int | None:
    """Returns the index of the parameter's element that an instruction gets."""
    if (x.op != 'get-tuple-element'
        or computation.operand(x, 0).op != 'parameter'):
      return None
    return int(x.attribute('index'))

  def _carried(self, computation, loop, index) -> int | None:
    """Returns the initial value of element `index` of a loop's carry."""
    state = computation.operand(loop, 0)
    if state.op != 'tuple':
      return None
    return self._constant(computation, computation.operand(state, index))

  def _constant(self, computation, x) -> int | None:
    """Returns an integer constant, traced through copies and loops, or None."""
    while x.op in ('copy', 'bitcast', 'convert', 'copy-start', 'copy-done'):
      x = computation.operand(x, 0)
    if x.op == 'constant':
      return int(x.operands[0]) if re.fullmatch(
          r'-?\d+', x.operands[0]) else None
    index = self._element(computation, x)
    if index is None:
      return None
    for caller, loop, role in self._callers[computation.name]:
      if loop.op == 'while' and role in ('body', 'condition'):
        body = self._module.computations[loop.calls['body']]
        if self._unchanged(body, index):
          return self._carried(caller, loop, index)
    return None

  def _unchanged(self, body, index) -> bool:
    """Returns whether a loop's body passes on an element without change."""
    root = body.instructions[body.root]
    if root.op != 'tuple':
      return False
    x = body.operand(root, index)
    while x.op in ('copy', 'bitcast'):
      x = body.operand(x, 0)
    return self._element(body, x) == index

  def _step(self, body, index) -> int | None:
    """Returns the constant that a loop's body adds to an element, or None."""
    root = body.instructions[body.root]
    if root.op != 'tuple':
      return None
    x = body.operand(root, index)
    while x.op in ('copy', 'bitcast'):
      x = body.operand(x, 0)
    x, sides = self._operands(body, x)
    if x.op != 'add':
      return None
    for i, (computation, y) in enumerate(sides):
      while y.op in ('copy', 'bitcast'):
        y = computation.operand(y, 0)
      if self._element(computation, y) == index:
        return self._constant(*sides[1 - i])
    return None


def walk(module: Module) -> Iterator[tuple[Computation, Instruction]]:
  """Yields every instruction with its computation."""
  for computation in module.computations.values():
    for x in computation.instructions.values():
      yield computation, x
