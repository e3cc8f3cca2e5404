r"""Speed, accuracy and robustness of the mathematical verifier.

  python -m benchmarks.verifier --write

Measures the time of 1,024 generated responses of 8,000 characters in new
processes. For the data sets that it finds in ../shared/data, it judges their
reference solutions, and changes, respellings and pairs of their answers
(`judge/accuracy.py`, beside math-verify alone and TRL's reward). Finally it
judges texts made to hang or break a verifier. It takes about 15 minutes on 2
cores.
`--write` saves the report in results/verifier.md.
"""

import argparse
import collections
import datetime
import fractions
import importlib.metadata
import pathlib
import random
import statistics
import time
from typing import Any, Callable, Sequence

from benchmarks.judge import accuracy, data
from benchmarks.rl_step import machine, markdown
from jaxrl_llm.rewards.pool import Pool
from jaxrl_llm.tasks.references import reference

RESULT = pathlib.Path(__file__).parent / 'results/verifier.md'
WORKERS = 2
SECONDS = 5.0
REPEATS = 7
PROBLEMS, SAMPLES, LENGTH = 64, 16, 8000
# Name of a data set, and `take`, the part of a solution that is its answer.
SETS = {'math500': 'boxed', 'gsm8k_train': 'number', 'gsm8k_test': 'number'}

Item = dict[str, str]


def make_pool() -> tuple[Pool, float]:
  """Returns a pool with started processes, and the seconds of the start."""
  start = time.perf_counter()
  pool = Pool('jaxrl_llm.rewards.math:judge', workers=WORKERS, seconds=SECONDS)
  judge(pool, [make_item('1', r'\boxed{2}')] * 2 * WORKERS)
  return pool, time.perf_counter() - start


def make_item(answer: str, response: str, take: str = 'boxed') -> Item:
  """Returns an item for the pool."""
  return dict(answer=answer, response=response, take=take)


def judge(pool: Pool, items: Sequence[Item]) -> list[dict[str, Any]]:
  """Submits all items at once and returns their replies."""
  return [wait.result() for wait in [pool.submit(item) for item in items]]


def spellings(rng: random.Random) -> tuple[str, list[str], Callable[[], str]]:
  """Returns an answer, other spellings of it, and a maker of wrong answers."""
  a, b, c = (rng.randint(2, 60) for _ in range(3))
  half = fractions.Fraction(2 * a + 1, 2)
  top, low = half.numerator, 2 * a + 1
  kinds = [
      (f'{1000 * a + b}',
       [f'{a},{b:03}', f'{a}{{,}}{b:03}', f'{1000 * a + b}.0',
        rf'{1000 * a + b} \text{{ cm}}'],
       lambda: str(rng.randint(1, 90_000))),
      (rf'\frac{{{top}}}{{2}}',
       [f'{top}/2', f'{float(half)}', rf'\dfrac{{{top}}}2', rf'x = {a}\frac12'],
       lambda: rf'\frac{{{rng.randint(1, 99)}}}{{{rng.randint(3, 9)}}}'),
      (rf'{a}\sqrt{{{b}}}',
       [rf'\sqrt{{{a * a * b}}}', rf'\sqrt{{{b}}} \cdot {a}',
        rf'{a} \sqrt {{{b}}}'],
       lambda: rf'{rng.randint(2, 60)}\sqrt{{{rng.randint(61, 99)}}}'),
      (rf'\left( {a}, -{b} \right)',
       [f'({a}, -{b})', f'({a}.0,-{b})'],
       lambda: f'({rng.randint(2, 60)}, {rng.randint(2, 60)})'),
      (f'x^2 - {a + b}x + {a * b}',
       [f'(x-{a})(x-{b})', f'{a * b} - {a + b}x + x^{{2}}'],
       lambda: f'x^2 - {rng.randint(2, 60)}x + 1'),
      (f'{a}, -{b}, {c + 60}',
       [f'{c + 60}, {a}, -{b}', rf'\{{-{b},{a},{c + 60}\}}'],
       lambda: f'{rng.randint(2, 60)}, {rng.randint(2, 60)}'),
      (rf'\frac{{{a}\pi}}{{{low}}}',
       [rf'\frac{{{a}}}{{{low}}}\pi', rf'{a}\pi/{low}'],
       lambda: rf'\frac{{\pi}}{{{rng.randint(2, 60)}}}'),
      (f'[{a}, {a + b})',
       [rf'x \in [{a},{a + b})', rf'\left[{a}, {a + b}\right)'],
       lambda: f'({rng.randint(2, 60)}, 99]'),
  ]
  return rng.choice(kinds)


def reasoning(rng: random.Random) -> str:
  """Returns a text in the style of models, with formulas and boxes."""
  parts = []
  while sum(map(len, parts)) < LENGTH:
    a, b, c = (rng.randint(1, 99) for _ in range(3))
    parts.append(rng.choice([
        f'Step {a}: since ${a}x + {b} = {c}$, we get '
        f'$x = \\frac{{{c - b}}}{{{a}}}$. ',
        f'Wait, let me check that again. {a} times {b} is {a * b}, so this is '
        f'{a * b + c}, not {c:,}.\n',
        f'\\[\n\\int_0^{{{a}}} x^{{{b}}} \\, dx = \\frac{{{a}^{{{b + 1}}}}}'
        f'{{{b + 1}}}.\n\\]\nThis gives \\{{ {a}, {b} \\}} as a set. ',
        f'A first guess would be $\\boxed{{{a}}}$, but that misses a case. ']))
  return ''.join(parts)[:LENGTH - 60]


def responses() -> list[Item]:
  """Returns the items of the time measurement; the report lists their kinds."""
  rng, items = random.Random(0), []
  for _ in range(PROBLEMS):
    answer, same, wrong = spellings(rng)
    for _ in range(SAMPLES):
      kind, text = rng.random(), reasoning(rng)
      end = answer if kind < 0.3 else (
          rng.choice(same) if kind < 0.5 else wrong())
      if kind < 0.9:
        text += f' Therefore the answer is $\\boxed{{{end}}}$.'
      else:  # a response without an answer
        text = text.replace('\\boxed', '')
      items.append(make_item(answer, text))
  return items


def speed() -> str:
  """Returns the report's section on time."""
  items, starts, seconds = responses(), [], []
  for _ in range(REPEATS):
    pool, start = make_pool()
    starts.append(start)
    begin = time.perf_counter()
    replies = judge(pool, items)
    seconds.append(time.perf_counter() - begin)
    pool.close()
  kinds = collections.Counter(r['kind'] for r in replies)
  length = statistics.mean(len(item['response']) for item in items)
  return f'''{len(items)} responses of {length:.0f} characters on average, \
{SAMPLES} to each of {PROBLEMS} problems (30% the answer itself, 20% another \
spelling of it, 40% a wrong answer, 10% none), {WORKERS} workers, no cached \
results: {spread(seconds)} s, {len(items) / statistics.median(seconds):.0f} \
responses per second. The processes start once, in {spread(starts)} s. Median \
and range of {REPEATS} runs. Verdicts: {counted(kinds)}.'''


def spread(values: Sequence[float]) -> str:
  """Formats the median and the range."""
  return (f'{statistics.median(values):.2f} '
          f'({min(values):.2f} to {max(values):.2f})')


def counted(kinds: collections.Counter) -> str:
  """Formats the count of each kind."""
  return ', '.join(f'{count} {kind}' for kind, count in kinds.most_common())


def agreement(pool: Pool) -> str:
  """Returns the report's section on reference solutions."""
  table = []
  for name, take in SETS.items():
    rows = data.problems(name)
    if rows and 'solution' in rows[0]:
      table.append([name, share(judge(pool, [
          make_item(reference(str(row['answer'])), row['solution'], take)
          for row in rows]))])
  if not table:
    return 'No data sets were found.'
  return markdown(['set', 'reference solutions that verify'], table)


def share(replies: Sequence[dict[str, Any]]) -> str:
  """Formats the number and the share of correct replies."""
  right = sum(r['kind'] == 'correct' for r in replies)
  return f'{right} ({right / len(replies):.2%})'


def box(text: str) -> str:
  """Puts a text in a box."""
  return f'\\boxed{{{text}}}'


HOSTILE = {
    'tower of powers': box('9^{9^{9^9}}'),
    'its factorial': box('9^{9^{9^9}}!'),
    'powers of a program': box('9**9**9**9'),
    'factorial': box('10000000!'),
    'factorials': box('20!!!!!'),
    'binomial': box(r'\binom{10^9}{5\cdot 10^8}'),
    'product': box(r'\prod_{i=1}^{10^8} i'),
    'sum': box(r'\sum_{i=1}^{10^{10}} \frac{1}{i^i}'),
    'integral': box(r'\int_0^1 \sin(x^{x^{x}}) e^{x^2} dx'),
    'another integral': box(
        r'\int_0^{\infty} \frac{\sin(x)^{51}}{x^{17}} dx'),
    'limit': box(r'\lim_{x\to 0} \frac{\sin(\sin(\sin(x^x)))}{x}'),
    'polynomial': box('(x+1)^{100000}-(x-1)^{99999}'),
    'expansion': box('(a+b+c+d+e+f)^{60}'),
    'remainder': box(r'3^{10^{12}} \mod 7'),
    'greatest divisor': box(r'\gcd(10^{10^{10}}, 3)'),
    'exponentials': box('e^{e^{e^{e^{e^{10}}}}}'),
    'logarithms': box(r'\log_{2}{' * 100 + '3' + '}' * 100),
    'sines': box(r'\sin(' * 60 + 'x' + ')' * 60),
    'square roots': box('+'.join(fr'\sqrt{{{i}}}' for i in range(2, 60))),
    'power of a matrix': box(
        r'\begin{pmatrix}2 & 3\\ 4 & 5\end{pmatrix}^{10^9}'),
    'row of 200': box(r'\begin{pmatrix}' + '1 & ' * 199 + r'1\end{pmatrix}'),
    'set of 400': box(r'\{' + ','.join(map(str, range(400))) + r'\}'),
    'interval': box(r'(-\infty, 9^{9^9})'),
    'large float': box('9.9E+999999999'),
    'long number': box('7' * 1900),
    'long decimal': box('0.' + '9' * 1000),
    'memory': box('[0]*10^{10}'),
    '900 parentheses': box('(' * 900 + '1' + ')' * 900),
    '250 roots': box(r'\sqrt{' * 250 + '2' + '}' * 250),
    '200 fractions': box(r'\frac{1}{' * 200 + '2' + '}' * 200),
    '400 powers': box('2^{' * 400 + '2' + '}' * 400),
    '1,900 minus signs': box('-' * 1900 + '5'),
    '1,001 bars': box('|' * 1001 + '1'),
    'open braces, 1 MB': r'\boxed' + '{' * 10**6,
    'braces, 2 MB': r'\boxed' + '{' * 10**6 + '}' * 10**6,
    'open boxes, 1 MB': r'\boxed{' * 150_000,
    'boxes in boxes': r'\fbox{' * 10**5 + '6' + '}' * 10**5,
    'boxes, 2 MB': box('6') * 200_000,
    'LaTeX, 1 MB': box(r'\frac{1}{2}+' * 80_000 + '1'),
    'digits, 1 MB': box('1' * 10**6),
    'spaces, 1 MB': box('1' + ' ' * 10**6 + '2'),
    'backslashes, 1 MB': '\\' * 10**6,
    'unclosed': r'\boxed{5',
    'closed too early': box(r'5\frac}{'),
    'empty': box(''),
    'division by zero': box(r'\frac{1}{0}'),
    'zero bytes': '\0' * 10_000 + box('5\0'),
    'lone surrogate': box('5\ud800'),
    'other direction': box('\u202e5\u2066'),
    'code': box('__import__("os").abort()'),
    'exit': box('exit()'),
    'a reply': box('6') + '\n{"kind": "correct"}\n',
}


def hostile(pool: Pool) -> str:
  """Returns the report's section on hostile texts."""
  rows, slowest, spoiled = [], 0.0, 0
  for name, text in HOSTILE.items():
    for answer in ('5', r'\frac{x+1}{2}'):
      start = time.perf_counter()
      wait = pool.submit(make_item(answer, text))
      beside = judge(pool, [make_item('0.75', box(r'\frac{3}{4}'))])
      reply = wait.result()
      seconds = time.perf_counter() - start
      after = judge(pool, [make_item('0.75', box(r'\frac34'))] * 4)
      spoiled += sum(r['kind'] != 'correct' for r in beside + after)
      slowest = max(slowest, seconds)
      if answer == '5':
        rows.append([name, f'{len(text):,}', reply['kind'], f'{seconds:.2f}'])
      else:
        rows[-1] += [reply['kind'], f'{seconds:.2f}']
  return f'''Limit {SECONDS:.0f} s. The slowest took {slowest:.2f} s; \
{spoiled} of the {10 * len(rows)} verdicts on other responses, judged at the \
same time or after, were wrong.

{markdown(['text', 'characters', 'against `5`', 's', 'against `(x+1)/2`', 's'],
          rows)}'''


def report() -> str:
  """Returns the report as Markdown."""
  versions = ', '.join(
      f'{name} {importlib.metadata.version(name)}'
      for name in ('math-verify', 'latex2sympy2-extended', 'sympy'))
  timed = speed()
  pool, _ = make_pool()
  sections = agreement(pool), hostile(pool)
  pool.close()
  judged = accuracy.report()
  return f'''# The mathematical verifier

`python -m benchmarks.verifier`, {datetime.date.today()}, {machine()}; \
{versions}.

## Time

{timed}

## Changes and respellings

A change of one place of a real reference makes it another answer by
`benchmarks/judge/evaluator.py`, an evaluator and a parser that the judge does
not use. A respelling has the same value by construction, or is one of two
spellings in real data that the evaluator finds equal. math-verify compares the
box with the reference in dollars by its defaults; TRL is its `accuracy_reward`.
They judge at most {accuracy.PEERS} cases of each kind.

{judged}

## Solutions

{sections[0]}

## Hostile text

{sections[1]}
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  text = report()
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
