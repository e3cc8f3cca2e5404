r"""Accuracy of the judge of mathematics, by kind, beside math-verify and TRL.

  python -m benchmarks.judge.accuracy --details folder

Changes of one place of real references, edits by construction and pairs of
other problems are to be refused; respellings by rule and from real data are to
be accepted. `verifier.py` puts the tables in its report. It takes about 6
minutes on 2 cores; `--peers 0` leaves the peers out (2 minutes). `--details`
names a folder for what is to be read by a person: wrong verdicts, the changes
that were left out, and all that were judged.
"""

import argparse
import collections
import logging
import pathlib
import random
import re
import time

from benchmarks.judge import (
    algebra,
    changes,
    data,
    evaluator,
    real,
    respellings,
)
from benchmarks.rl_step import markdown

CHANGES, RULES, REAL, EDITS, PAIRS = 13_000, 4_000, 1_000, 2_000, 1_000
NUMBERS = 'Changed numbers in words, GSM8K'  # judged with `take=number`
PEERS = 15  # cases of each kind that the peers judge
PEER_SECONDS = 0.1  # a case, on average; what is over is left out
WORKERS, SECONDS = 2, 5.0
MATH, GSM8K = ('math_train', 'math500'), ('gsm8k_train', 'gsm8k_test')


def spread(rng, rows, count, limits=()):
  """Chooses rows evenly over their first entry, the kind."""
  kinds = collections.defaultdict(list)
  for row in sorted(set(rows)):
    kinds[row[0]].append(row)
  for kind, found in kinds.items():
    rng.shuffle(found)
    del found[dict(limits).get(kind, count):]
  chosen = []
  while len(chosen) < count and any(kinds.values()):
    for found in kinds.values():
      if found and len(chosen) < count:
        chosen.append(found.pop())
  return chosen


def by_rule(rng, answers, rules):
  """Returns respellings or edits, one of each rule for each answer."""
  rows = []
  for answer in sorted(set(answers)):
    whole = bool(re.fullmatch(r'-?\d+', answer))
    if whole and rng.random() < 0.7:
      continue
    for rule in rules:
      rows += [(kind, answer, text) for kind, text in rule(answer)
               if ''.join(text.split()) != ''.join(answer.split())]
  return rows


def found_in_data():
  """Returns pairs of spellings in real data, 1,000 in all."""
  from jaxrl_llm.tasks.references import reference
  rows = [*real.solutions(data.problems('math500'), reference),
          *real.prose([row for name in GSM8K for row in data.problems(name)],
                      reference),
          *real.other_rows(data.references())]
  return spread(random.Random(0), rows, REAL, dict(
      prose=220, **{'other rows, unit omitted': 160}).items())


def shuffled(rng, answers):
  """Returns references of different problems, not equal to the evaluator."""
  pairs = []
  while len(pairs) < PAIRS:
    a, b = rng.sample(answers, 2)
    if a != b and evaluator.compare(a, b) == 'differs':
      pairs.append(('pair', a, b))
  return pairs


def cases():
  """Returns (name, rows, right) for each table, and the changes left out."""
  rng = random.Random(0)
  answers = data.references()
  changed, left = changes.chosen(answers, CHANGES)
  math, gsm = data.references(*MATH), data.references(*GSM8K)
  rules = by_rule(rng, math + gsm, (respellings.respell, algebra.respell))
  return [
      ('Changes of one place', changed, False),
      (NUMBERS, in_words(rng, gsm), False),
      ('Edits by construction', spread(
          rng, by_rule(rng, math + gsm, (respellings.edit,)), EDITS), False),
      ('Pairs of other problems, MATH', shuffled(rng, math), False),
      ('Pairs of other problems, GSM8K', shuffled(rng, gsm), False),
      ('Respellings by rule', spread(rng, rules, RULES), True),
      ('Respellings in real data', found_in_data(), True)], left


def in_words(rng, answers):
  """Returns changed integers at the end of a text without a box."""
  rows = [(kind, a, text) for a in sorted(set(answers))
          if re.fullmatch(r'[1-9]\d*', a)
          for kind, text in changes.changes(a, rng)
          if re.fullmatch(r'-?[\d.]+', text)]
  return spread(rng, rows, PAIRS)


def boxed(text):
  """Returns a response with an answer."""
  return rf'The answer is $\boxed{{{text}}}$.'


def item(reference, text, take='boxed'):
  """Returns what the judge receives."""
  response = boxed(text) if take == 'boxed' else (
      f'There are 12 of 5 each. So the answer is {text}.')
  return dict(answer=reference, response=response, take=take)


def ours(rows, take='boxed'):
  """Returns the verdicts of this project's judge."""
  from jaxrl_llm.rewards.pool import Pool
  pool = Pool('jaxrl_llm.rewards.math:judge', workers=WORKERS, seconds=SECONDS)
  try:
    waits = [pool.submit(item(a, b, take)) for _, a, b in rows]
    return [wait.result()['kind'] for wait in waits]
  finally:
    pool.close()


def peers():
  """Returns math-verify by its defaults and TRL's accuracy_reward."""
  import math_verify
  logging.getLogger('math_verify').setLevel(logging.ERROR)
  logging.getLogger('latex2sympy2_extended').setLevel(logging.ERROR)

  def alone(reference, found):
    return math_verify.verify(
        math_verify.parse(f'${reference}$'), math_verify.parse(found))

  def reward(reference, found):
    from trl.rewards import accuracy_reward
    return accuracy_reward(
        [[{'content': found}]], [f'${reference}$'])[0] == 1
  return {'math-verify': alone, 'TRL': reward}


def sample(rows, limit):
  """Returns the first `limit` rows of each kind."""
  seen = collections.Counter()
  for row in rows:
    seen[row[0]] += 1
    if seen[row[0]] <= limit:
      yield row


def ask(peer, rows, seconds):
  """Returns the accepted and judged by kind, until the time is over."""
  accepted, judged = collections.Counter(), collections.Counter()
  end = time.perf_counter() + seconds
  for kind, reference, text in rows:
    if time.perf_counter() > end:
      break
    judged[kind] += 1
    try:
      accepted[kind] += bool(peer(reference, boxed(text)))
    except Exception:  # of a peer: it accepts nothing then
      continue
  return accepted, judged


def table(name, rows, right, limit, take='boxed'):
  """Returns the table of one part, and its wrong verdicts."""
  start = time.perf_counter()
  verdicts = ours(rows, take)
  seconds = time.perf_counter() - start
  wrong = [(verdict, *row) for verdict, row in zip(verdicts, rows)
           if (verdict == 'correct') != right]
  total = collections.Counter(row[0] for row in rows)
  good = collections.Counter(
      row[0] for verdict, row in zip(verdicts, rows) if verdict == 'correct')
  few = list(sample(shuffle(rows), limit))
  others = {who: ask(peer, few, PEER_SECONDS * len(few) + 5)
            for who, peer in peers().items()} if limit else {}

  def share(accepted, judged):
    return f'{accepted} of {judged}' if judged else '-'

  lines = [[f'**{name}**', share(sum(good.values()), len(rows)), *(
      share(sum(a.values()), sum(j.values())) for a, j in others.values())]]
  for kind, count in sorted(total.items()):
    lines.append([kind, share(good[kind], count), *(
        share(a[kind], j[kind]) for a, j in others.values())])
  late = sum(v == 'timeout' for v in verdicts)
  return f'''{markdown(['accepted', 'this judge', *others], lines)}

{'To accept' if right else 'To refuse'}; {len(wrong)} wrong, {late} timeouts, \
{len(rows) / seconds:.0f} a second in {WORKERS} processes.''', wrong


def shuffle(rows):
  """Returns rows in a seeded order."""
  return random.Random(0).sample(rows, len(rows))


def matches():
  """Returns the table of references that match themselves in a box."""
  from jaxrl_llm.tasks.references import checked
  lines, wrong = [], []
  for name in data.SETS:
    rows = [('itself', found, found) for row in data.problems(name)
            for found in [checked(str(row['answer']))]]
    if rows:
      verdicts = ours(rows)
      bad = [(v, name, *row[1:]) for v, row in zip(verdicts, rows)
             if v != 'correct']
      wrong += bad
      lines.append([name, f'{len(rows) - len(bad)} of {len(rows)}'])
  return markdown(['set', 'references that match themselves'], lines), wrong


def omitted(left, count):
  """Returns the sentence on changes that were left out."""
  kinds = collections.Counter(verdict for verdict, *_ in left)
  listed = ', '.join(f'{n} {kind}' for kind, n in kinds.most_common())
  return (f'Of {count + len(left)} changes, {len(left)} '
          f'({len(left) / (count + len(left)):.1%}) were left out by the '
          f'evaluator, which shares nothing with the judge: {listed}.')


def report(limit=PEERS, details=None):
  """Returns the tables as Markdown."""
  if not data.problems('math500'):
    return 'No data sets were found.'
  parts, left = cases()
  texts, notes = [], []
  for name, rows, right in parts:
    take = 'number' if name == NUMBERS else 'boxed'
    text, wrong = table(name, rows, right, limit * (take == 'boxed'), take)
    texts.append(text)
    notes += [(name, *one) for one in wrong]
    if rows is parts[0][1]:
      texts.append(omitted(left, len(rows)))
    if details:
      write(details / f'{name.lower().replace(" ", "_")}.txt', rows)
  text, wrong = matches()
  notes += [('References that match themselves', *one) for one in wrong]
  if details:
    write(details / 'wrong.txt', sorted(notes))
    write(details / 'left_out.txt', sorted(left))
  shown = [f'- {name}, {kind}, {verdict}: `{a}` and `{b}`'
           for name, verdict, kind, a, b in notes[:60]]
  return '\n\n'.join([*texts, text, 'Wrong verdicts:', '\n'.join(shown)])


def write(path, rows):
  """Writes rows of texts, a line each."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(''.join(' | '.join(map(str, row)) + '\n' for row in rows))


def main():
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--peers', type=int, default=PEERS,
                      help='cases of each kind that the peers judge')
  parser.add_argument('--details', type=pathlib.Path)
  args = parser.parse_args()
  print(report(args.peers, args.details))


if __name__ == '__main__':
  main()
