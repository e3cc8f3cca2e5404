r"""Answers in responses: last boxes, last numbers and final expressions."""

import re
from typing import Iterator, Sequence

from jaxrl_llm.answers import evaluate, grammar, tokens

TAKES = ('boxed', 'number', 'either', 'marked')
TAGS = ('think',)  # of blocks of reasoning

_TOKEN = re.compile(
    r'(?P<box>\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<brace>\{)?)|\\.|'
    r'(?P<open>\{)|(?P<close>\})', re.DOTALL)
_BARE = re.compile(r'\s*([^\s${}\\]+)')
_CURRENCY = r'(?:\\?\$|US\$|USD\s?|EUR\s?|Rs\.?\s?|[€£¥₹])'
_INTEGER = (r'(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,|,\\!)[0-9]{3})+(?![0-9])|'
            r'[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9.])|'
            r'[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9.,])|[0-9]+)')
_RATIO = r'\\[dtc]?frac\s*(?:\{-?[0-9]+\}\s*\{[0-9]+\}|[0-9]{2})'
_POWER = r'\^\s*(?:\{\s*-?[0-9]+\s*\}|-?[0-9]+)'
# What may stand behind the digits and change the value.
_REST = (rf'(?:\s[0-9]+/[0-9]+(?![0-9/]))?(?:\s*{_RATIO}|'
         r' ?/ ?[0-9]+(?![0-9/]|\.[0-9])|(?:/[0-9]+){2}(?![0-9/])|'
         r'(?: ?: ?[0-9]+)+|[eE][-+]?[0-9]+(?![A-Za-z0-9_]|\.[0-9])|'
         rf'\s*(?:\\times|\\cdot|\*|x)\s*10\s*{_POWER}|{_POWER}|'
         r'!+(?=\s*(?:\$|\\\)|[-+*/=^]))|'
         r'\*\*[0-9]+(?!\*)|[kKxyzn](?![A-Za-z])|'
         r'\s+(?:hundred|thousand|million|billion|trillion|dozen)(?![a-z])|'
         r'\s*\\?(?:sqrt\s*(?:\{[^{}]*\}|\([^()]*\)|[0-9])|'
         r'pi(?![a-zA-Z])))*(?:\s?\\?%)?')
# A minus directly after a letter, a digit or a bracket is a subtraction, as is
# a digit directly after a letter, ^, _ or a brace of them a part of a name or
# power, and no number. Between a minus and a currency there may be a space.
_NUMBER = re.compile(
    r'(?<![A-Za-z0-9_^\\])(?<![0-9][./])(?<![_^]\{)(?<![_^]\{-)(?<![\^_]-)'
    r'(?P<sign>(?<![A-Za-z0-9_)\]}])[-+]'
    rf'(?:(?=\s*{_CURRENCY}\s?[0-9.])\s*)?)?'
    r'(?P<word>(?<![0-9)] )(?:[Mm]inus|[Nn]egative)\s+)?'
    rf'(?P<money>{_CURRENCY}\s?)?(?P<value>(?>{_INTEGER}(?:\.[0-9]+)?|\.[0-9]+)'
    r'(?!\.[0-9])'
    rf'{_REST}|{_RATIO}|\\?sqrt\s*(?:\{{[^{{}}]*\}}|\([^()]*\)|[0-9]))')
# The mark of a list's next item at the end, or of a footnote.
_NOTE = re.compile(r'(?<=[\w.,!?)%])\s?\[[0-9]+\](?!\()|\n[ \t]*[0-9]+[.)]\s*$')
_SAYS = re.compile(
    r'answer(?:\s+is|\s*:|\s*=)(?:\s*:)?[\s*]*', re.IGNORECASE)
_FORMULA = re.compile(
    r'\$\$(?P<a>[^$]+)\$\$|'
    r'(?<![\\$])\$(?P<b>(?!\s)[^$\n]+?)(?<![\\\s])\$(?![0-9$])|'
    # An opening sign ends the search for its end, so that it takes linear time.
    r'\\\((?P<c>(?:(?!\\\()[^\n])+?)\\\)|'
    r'\\\[(?P<d>(?:(?!\\\[).)+?)\\\]', re.DOTALL)
_MEMBERS = re.compile(
    r'=|\\(?:approx|to|rightarrow|Rightarrow|implies|simeq)(?![a-zA-Z])|≈|→|⇒')
_TAIL = 1000  # characters at the end of a response that may hold its answer
_LONGEST = 300  # characters of a formula that is read
# The mark of GSM8K before the answer; a heading of Markdown is none.
_MARK = re.compile(
    rf'####[ \t]*+(?P<answer>(?:[-+−–]\s?)?{_CURRENCY}?[ \t]*+(?:[-+−–])?'
    r'[0-9.][^\n]*|\\boxed[^\n]*|\$[^$\n]+\$)')
_PARTS = r'(?:steps?|parts?|cases?|stages?|methods?)\b'  # of a solution
_HEADING = re.compile(
    r'\$[^$0-9]*[$=]|[0-9]+(?:\.[0-9]+)*'  # 1.5 and 3:4 are answers
    r'(?:[.):](?:\s+\S|[^\s0-9])|[A-Z]\b|-[a-z]|(?:st|nd|rd|th)\b|'
    rf'\s+{_PARTS} *\w)')
# An answer that is called so.
_SAID = re.compile(
    rf'{_SAYS.pattern}(?:[-(\\$0-9.]|[a-z](?![a-z \t]))|'
    r'####[^\w\n]{0,9}[0-9][0-9.,/]*[^\w\n]{0,9}$', re.I | re.M)
# A number behind such words, or at the end of a line. 'In 2 steps', '1. Read'
# and 'Step 1' are none.
_CONCLUDED = re.compile(
    rf'{_SAID.pattern}|(?:answer|####|[=≈]|\b(?:so|thus|hence|therefore|total)\b)'
    rf'[^\n]{{0,200}}?[0-9](?![0-9.,]*\s+{_PARTS})|'
    r'(?<!(?:step|part|case|tage|thod|mple|blem|tion|cise)[ \t])(?<![0-9.,/])'
    rf'[0-9]+(?:[.,/][0-9]+)*(?:[ \t]+(?!{_PARTS})[a-z]+)?[^\w\n]*$',
    re.I | re.M)
# A box that is not as in 'put it into \\boxed{answer}'.
_FILLED = re.compile(r'\b(?!answer|your|text|[lc]?dots)\w', re.IGNORECASE)
_NEXT = re.compile(
    r'(?:\n|<\|\w+\|>)[ \t]*(?:\*\*|#+[ \t]*)?(?:Question|Problem|Q|Exercise|'
    r'Human|User|Next question|问题)(?:\s*[0-9]+)?\s*(?:\*\*)?\s*[:：]|'
    r'\n#+[ \t]*(?:Question|Problem|Exercise)[ \t]*[0-9]+[ \t]*\n',
    re.IGNORECASE)


def with_opened(prompt: str, text: str, tags: Sequence[str] = TAGS) -> str:
  """Returns a response with the start tag of the block that its prompt opens.

  Args:
    prompt: may end with a start tag, such as <think>.
    text: the response.
    tags: names of the tags of reasoning.
  """
  return next((f'<{tag}>{text}' for tag in tags
               if prompt.rstrip().endswith(f'<{tag}>')), text)


def final_part(text: str, tags: Sequence[str] = TAGS) -> str:
  """Returns the text after the last end of a reasoning block.

  Args:
    text: the response, with the tag that its prompt ended with, if any.
    tags: names of the tags of such blocks.

  Returns:
    The text behind the last end tag; '' if a block has no end. A start tag
    within a line, or in code, is only named.
  """
  for tag in tags:
    name = re.escape(tag)
    if ends := [*re.finditer(
        rf'</{name}\s*>(?:(?<!`</{name}>)|(?<=``</{name}>)|(?!`))', text)]:
      text = text[ends[-1].end():]
    plain = f'<{tag}' in text and re.sub(r'(?s)```.*?```|`[^`\n]*`', '', text)
    if plain and re.search(rf'(?m)^[ \t]*<{name}\s*>', plain):
      return ''
  return text


def _marks(text: str) -> Iterator[re.Match[str]]:
  """Yields the lines of '####' with an answer."""
  return (mark for mark in _MARK.finditer(text)
          if not _HEADING.match(mark['answer']))


def first_part(text: str, take: str) -> str:
  """Returns a response up to the next problem that it goes on with.

  It is cut before a line 'Question:', or behind the line of a '####', if an
  answer of the taken kind stands before: a complete box, or a number or
  expression that is said to be the answer.

  Args:
    text: the response, without its reasoning.
    take: one of `TAKES`.
  """
  if not _NEXT.search(text) and '####' not in text:
    return text
  ends = [end for box, end in _boxes(text)
          if take != 'number' and _FILLED.search(box)][:1]
  # A box counts even behind a number, but for one that is called the answer.
  said = take != 'boxed' and (_SAID if ends else _CONCLUDED).search(text)
  ends += [said.end()] if said else []
  if ends and (found := _NEXT.search(text, min(ends))):
    text = text[:found.start()]
  return next((text[:mark.end()] for mark in _marks(text)
               if ends and mark.end() >= ends[0]), text)


def boxed(text: str) -> str | None:
  r"""Returns the content of the last complete \boxed{...}, or None.

  If boxes are nested, the inner one counts. `\boxed 5`, without braces, gives
  '5'.
  """
  found = [box for box, _ in _boxes(text)]
  return found and found[-1].strip() or None


def _boxes(text: str) -> Iterator[tuple[str, int]]:
  """Yields the contents of complete boxes, and where they end."""
  start, stack = -1, []
  first = len(text[:text.find('box')].rstrip('\\f'))  # the rest takes time
  for token in _TOKEN.finditer(text, first):
    if token['box'] and not token['brace']:
      if bare := _BARE.match(text, token.end()):
        start = token.end()
        yield bare[1].rstrip('.,;'), bare.end()
    elif token['box'] or token['open']:
      stack.append(token.end() if token['box'] else -1)
    elif token['close'] and stack and (begin := stack.pop()) > start:
      start = begin
      yield text[begin:token.start()], token.end()


def has_box(text: str) -> bool:
  r"""Returns whether a text has a \boxed or \fbox, complete or not."""
  return any(token['box'] for token in _TOKEN.finditer(text))


def last_number(text: str) -> str | None:
  """Returns the last number with what belongs to it, without its commas.

  This is an integer, decimal, fraction, mixed number, time, number with a power
  of ten, or an expression in a formula that has a value, such as 2^{10} or
  sqrt(3). Exponents, indices, and digits of names and units are no numbers.
  """
  # Minus signs and dashes that can be signs.
  text = re.sub(r'[−–](?=\s*[0-9$€£¥₹\\.])', '-', text).replace('—', ' ; ')
  text = tokens.plain_signs(_NOTE.sub(' ', text))
  for found in reversed([*_candidates(text)]):
    if found.re is _NUMBER:
      return _written(found)
    if value := _value(_inside(found)):
      return value
  return None


def _candidates(text: str) -> Iterator[re.Match[str]]:
  """Yields numbers in text and formulas, in their order."""
  at = 0
  for formula in _FORMULA.finditer(text):
    if re.search('[0-9]', formula[0]):
      yield from _NUMBER.finditer(text, at, formula.start())
      yield formula
      at = formula.end()
  yield from _NUMBER.finditer(text, at)


def _written(number: re.Match) -> str:
  """Returns a number as it is read, with its sign and without commas."""
  sign = '-' if number['word'] else (number['sign'] or '').strip()
  value = re.sub(r'\{,\}|\\,|,\\!|,|(?<=[0-9]) (?=[0-9]{3}(?![0-9/]))', '',
                 number['value'])
  if re.fullmatch(r'[0-9]{1,3}(?:\.[0-9]{3}){2,}', value):
    value = value.replace('.', '')
  return sign + value


def _value(formula: str) -> str | None:
  """Returns the last member of a formula if it has a value, or its last number.
  """
  member = _MEMBERS.split(formula)[-1].strip(' .,;')
  if len(member) > _LONGEST:
    return None
  try:
    node = grammar.read(member)
  except (tokens.Unread, RecursionError):
    numbers = [*_NUMBER.finditer(member)]
    return _written(numbers[-1]) if numbers else None
  if node.op == 'list':
    node, member = node.args[-1], re.split('[,;]', member)[-1]
  has_value = re.search('[0-9]', member) and not evaluate.letters(node)
  return member.strip() if has_value else None


def answer(
    text: str, take: str, tags: Sequence[str] = TAGS) -> str | None:
  """Extracts the answer of a response: its box, last expression or number.

  Args:
    text: the response.
    take: one of `TAKES`; 'either' takes what the response ends with only if
      there is no box: see `final`. 'marked' takes the number on the line of the
      first '####' with an answer, the form of GSM8K.
    tags: see `final_part`.

  Returns:
    The answer, or None.
  """
  text = final_part(text, tags)
  if take == 'marked':
    mark = next(_marks(text), None)
    return mark and last_number(mark['answer'])
  text = first_part(text, take)
  found = None if take == 'number' else boxed(text)
  if take == 'either':
    found = found or final(text)
  return found if take == 'boxed' else found or last_number(text)


def final(text: str) -> str | None:
  """Returns the expression that a response without a box ends with, or None.

  This is a fraction, a root, a tuple, a letter or another expression behind
  'answer is' or 'answer:', the last of these; else a formula at the end. A
  plain number, or a number behind it, is left to `last_number`.
  """
  text, found, end = text[-_TAIL:], None, 0
  if said := [*_SAYS.finditer(text)]:
    end = said[-1].end()
    if formula := _FORMULA.match(text, end):
      found, end = _inside(formula), formula.end()
    else:
      found = re.split(r'[.!?;](?:\s|$)|\n', text[end:])[0].strip(' *')
      end += len(found)
  else:
    for formula in _FORMULA.finditer(text):
      if re.fullmatch(r'[\s.*]*', text[formula.end():]):
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
  if re.search(r'[a-zA-Z]{2,}', bare) or not re.search(r'\w', text) or (
      _NUMBER.fullmatch(text.strip('$ '))):
    return False
  return bool(re.search(r'\\[a-zA-Z{]|[√π^]|[a-zA-Z]', text) or re.fullmatch(
      r'[(\[].*,.*[)\]]', text))
