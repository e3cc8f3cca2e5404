# what: compiles an expression nested 100,000 deep at import
# want: fail
# unsafe: stopped
import ast
import sys

sys.setrecursionlimit(10**7)
depth = 100_000
tree = ast.Constant(value=1)
for _ in range(depth):
  tree = ast.UnaryOp(op=ast.USub(), operand=tree)
whole = ast.fix_missing_locations(ast.Expression(body=tree))
compile(whole, 'deep', 'eval')


def add(a, b):
  return None
