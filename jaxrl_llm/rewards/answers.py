r"""Answers in responses: last boxes, last numbers and final expressions."""

import re

TAKES = ('boxed', 'number', 'either')

_TOKEN = re.compile(
    r'(?P<box>\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<brace>\{)?)|\\.|'
    r'(?P<open>\{)|(?P<close>\})', re.DOTALL)
_BARE = re.compile(r'\s*([^\s${}\\]+)')
# A minus directly after a letter, a digit or a bracket is a subtraction.
_NUMBER = re.compile(
    r'(?:(?<![\w)\]}])[-+−])?(?:'
    r'(?:(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+(?![0-9])|[0-9]+)'
    r'(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+|[eE][-+]?[0-9]+(?!\w|\.[0-9]))?|\\[dt]?frac\{-?[0-9]+\}\{[0-9]+\}|\\[dt]?frac[0-9]{2})')
_SAYS = re.compile(
    r'answer(?:\s+is|\s*:|\s*=)(?:\s*:)?[\s*]*(?=(?P<rest>[^\n]*))',
    re.IGNORECASE)
_FORMULA = re.compile(
    r'\$\$(?P<a>[^$]+)\$\$|(?<!\\)\$(?P<b>[^$\n]+?)(?<!\\)\$|'
    r'\\\((?P<c>[^\n]+?)\\\)|\\\[(?P<d>.+?)\\\]', re.DOTALL)
_TAIL = 1000  # characters at the end of a response that may hold its answer
# Markup, a full stop or white space after the answer.
_AFTER = re.compile(r'[\s.*]*')


def boxed(text: str) -> str | None:
  r"""Returns the content of the last complete \boxed{...}, or None.

  If boxes are nested, the inner one counts. `\boxed 5`, without braces, gives
  '5'.
  """
  found, start, stack = None, -1, []
  for token in _TOKEN.finditer(text):
    if token['box'] and not token['brace']:
      if bare := _BARE.match(text, token.end()):
        found, start = bare[1].rstrip('.,;'), token.end()
    elif token['box'] or token['open']:
      stack.append(token.end() if token['box'] else -1)
    elif token['close'] and stack and (begin := stack.pop()) > start:
      found, start = text[begin:token.start()], begin
  return found and found.strip() or None


def has_box(text: str) -> bool:
  r"""Returns whether a text has a \boxed or \fbox, complete or not."""
  return any(token['box'] for token in _TOKEN.finditer(text))


def last_number(text: str) -> str | None:
  """Returns the last number, such as -1,234.5 or 3/4, without its commas."""
  found = None
  for match in _NUMBER.finditer(text):
    found = match[0]
  return found and re.sub(r'\{,\}|\\,|,', '', found).replace('−', '-')


def answer(text: str, take: str) -> str | None:
  """Extracts the answer of a response: its box, last expression or number.

  Args:
    text: the response.
    take: one of `TAKES`; 'either' takes what the response ends with only if
      there is no box: see `final`.

  Returns:
    The answer, or None.
  """
  found = boxed(text) if take != 'number' else None
  if found is None and take == 'either':
    found = final(text)
  if found is None and take != 'boxed':
    found = last_number(text)
  return found


def final(text: str) -> str | None:
  """Returns the expression that a response without a box ends with, or None.

  This is a fraction, a root, a tuple, a letter or another expression behind
  'answer is' or 'answer:', the last of these; else a formula at the end. A
  plain number, or a number behind it, is left to `last_number`.
  """
  text, found, end = text[-_TAIL:], None, 0
  if said := [*_SAYS.finditer(text)]:
    said = said[-1]
    formula = _FORMULA.match(text, said.start('rest'))
    found = _inside(formula) if formula else re.split(
        r'[.!?;](?:\s|$)', said['rest'])[0].strip(' *')
    end = formula.end() if formula else said.start('rest') + len(found)
  else:
    for formula in _FORMULA.finditer(text):
      if _AFTER.fullmatch(text, formula.end()):
        found, end = _inside(formula).rpartition('=')[2].strip(), len(text)
  # A number behind the expression is the last word.
  if found and _expression(found) and not _NUMBER.search(text, end):
    return found
  return None


def _inside(formula: re.Match[str]) -> str:
  return next(filter(None, formula.groups())).strip()


def _expression(text: str) -> bool:
  """Tells whether a text is an expression, and neither prose nor a number."""
  bare = re.sub(r'\\text\s*\{[^{}]*\}|\\[a-zA-Z]+', ' ', text)
  if re.search(r'[a-zA-Z]{2,}', bare) or not re.search(r'\w', text):
    return False
  if _NUMBER.fullmatch(text.strip('$ ')):
    return False
  return bool(re.search(r'\\[a-zA-Z{]|[√π^]|[a-zA-Z]', text) or re.fullmatch(
      r'[(\[].*,.*[)\]]', text))
