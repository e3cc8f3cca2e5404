"""Checks what the README says of the methods against the claims.

  python -m benchmarks.claims.readme

Each sentence follows from differences in the sentences of a claim, which are
written from its rows after Holm's correction, and each of its numbers stands
there. Also checks that settings are older than the rows of runs that count.
"""

import json
import re
import subprocess
from typing import Mapping, NamedTuple

from benchmarks.claims import __main__ as all_claims
from benchmarks.claims import runs

_NUMBER = r'(?<![@\w.])\d*\.?\d+'  # not that of pass@8
_LINKED = re.compile(r'(?<=\])\(\S*\)')  # addresses of links
_FIGURE = rf'{_NUMBER} ± {_NUMBER}'
_STOP = re.compile(r'\. |pass@\d+: ')  # the end of what `Follows.after` begins
_FOUND = re.compile(
    rf'(?:at least )?([-+]?{_NUMBER}) \[[^]]*\](?: \[[^]]*\])?'
    r'(, not distinguishable)?')


class Follows(NamedTuple):
  """A difference that a sentence follows from.

  Attributes:
    what: regular expression of what stands before the difference, behind a
      mark such as a semicolon.
    verdict: '+' or '-' where it is above or below 0, or a ratio above or below
      1; '=' where it is not distinguishable.
    after: text that it stands behind, within the sentence and before another
      pass@k; '' for anywhere.
  """
  what: str
  verdict: str
  after: str = ''


class Sentence(NamedTuple):
  """A sentence of the README.

  Attributes:
    claim: it is of this claim.
    text: as in the README, line breaks aside.
    follows: the differences that it follows from.
    stated: texts of the claim's report that numbers are from.
  """
  claim: str
  text: str
  follows: tuple[Follows, ...]
  stated: tuple[str, ...] = ()


def _of(arm: str, verdict: str, other: str, after: str = '') -> Follows:
  """Makes what follows from two arms, by their labels."""
  return Follows(
      rf'{re.escape(arm)} {_FIGURE} against {re.escape(other)} {_FIGURE} \(',
      verdict, after)


SENTENCES = (
    Sentence('pkpo_bonus', '''
- [PKPO](docs/pkpo.md#measured): on the default task, k=4 and k=8 raise pass@8
over k=1 and over the best entropy bonus, all tuned;
''', tuple(_of(k, '+', other, 'pass@8:') for k in ('k=4', 'k=8')
           for other in ('k=1', 'k=1, entropy bonus .1'))),
    Sentence('pkpo', '''
k=8 also over k=16.
''', (_of('k=8', '+', 'k=16', 'pass@8:'),)),
    Sentence('pkpo_bonus', '''
k=8 lowers pass@1.
''', (_of('k=8', '-', 'k=1', 'pass@1:'),)),
    Sentence('pkpo_mixed', '''
Where half the problems are hard, k=8 solves more of these than k=1.
''', (_of('k=8', '+', 'k=1', 'hard ones solved so far'),)),
    Sentence('speed_rloo', '''
- [SPEED](docs/speed.md#measured): on problems mixed for it (a third hardly ever
solved), less compute and time to a pass@1 than RLOO, no gain shown over RLOO
that drops prompts.
''', tuple(Follows(name, verdict, base) for base, verdict in (
    ('RLOO needs', '+'), ('RLOO that drops prompts:', '='))
             for name in ('GFLOP ', 'seconds '))),
    Sentence('jackpot_128', '''
- [Jackpot](docs/jackpot.md#measured): on rollouts used for 128 updates, above
clip, slightly above equally capped no-clip TIS;
''', tuple(_of('Jackpot', '+', other)
           for other in ('clip (PPO)', 'no-clip TIS')),
             ('batches of 128 updates',)),
    Sentence('jackpot', '''
no gain shown at 32,
''', tuple(_of('Jackpot', '=', other, 'at 32')
           for other in ('clip (PPO)', 'no-clip TIS')), ('at 32 updates',)),
    Sentence('jackpot_actor', '''
nor over TIS on a smaller model's; less harm than TIS if frozen.
''', (_of('Jackpot', '=', 'TIS'),
      _of('Jackpot, frozen actor', '+', 'TIS, frozen actor'))),
    Sentence('cbs', '''
- [CBS](docs/cbs.md#measured): worse than picking the largest |advantage|,
''', (_of('CBS', '-', 'largest |advantage|'),)),
    Sentence('all_four', '''
- [All four](docs/methods.md#all-four-in-one-run) in one run
([config](configs/all_four.py)): pass@8 above that of runs with none, pass@1
slightly below; SPEED saves compute.
''', (_of('all four', '+', 'none of the four', 'pass@8:'),
      _of('all four', '-', 'none of the four', 'pass@1:'),
      Follows('GFLOP ', '+', 'without SPEED alone'))),
    Sentence('real', '''
On [a real model](benchmarks/results/claims/real.md), three seeds with GRPO's
settings: GRPO raises pass@1 from .049 to .496; no difference of PKPO (k=4),
SPEED or Jackpot from it is shown.
''', (_of('GRPO', '+', 'not trained'), _of('PKPO, k=4', '=', 'GRPO'),
      _of('PKPO, k=4', '=', 'GRPO', 'pass@8:'),
      _of('SPEED, n_init=4', '=', 'GRPO'),
      _of('Jackpot, int8, lag 1', '=', 'GRPO')),
             ('GRPO 0.496', 'not trained 0.049', 'Over 3 seeds')),
)


# What else the README has there; the second line is from a proof.
BETWEEN = '''
Measured on small models, with fresh seeds:
[by which alone](docs/cbs.md#what-the-scores-can-order-by), to first order, its
scores can order.
'''
# Claims whose settings were never committed: they are older than this rule.
OLDER = 'pkpo', 'speed', 'jackpot', 'jackpot_actor', 'cbs', 'real', 'carry'


def words(text: str) -> str:
  """Returns a text with single spaces."""
  return ' '.join(text.split())


def verdict(said: str, follows: Follows) -> str:
  """Returns the verdict of a difference, '' where the text has none."""
  start, end = said.find(follows.after), len(said)
  if start < 0:
    return ''
  start += len(follows.after)
  if follows.after and (stop := _STOP.search(said, start)):
    end = stop.start()
  what = re.compile(f'(?<=[:;,] ){follows.what}').search(said, start - 2, end)
  found = _FOUND.match(said, what.end()) if what else None
  if not found:
    return ''
  value, same = found.groups()
  if same:
    return '='
  # A difference has a sign, a ratio has none.
  return value[0] if value[0] in '+-' else '+' if float(value) > 1 else '-'


def wrong(sentence: Sentence, said: str) -> list[str]:
  """Returns what of a sentence does not follow from a claim's sentences."""
  faults = [f'{follows} is {found or "not there"}' for follows in
            sentence.follows if (found := verdict(said, follows)) != (
                follows.verdict)]
  faults += [f'{text} is not said' for text in sentence.stated
             if text not in said]
  text = _LINKED.sub('', sentence.text)
  names = ' '.join((*(f'{f.what} {f.after}' for f in sentence.follows),
                    *sentence.stated))
  known = {float(number) for number in re.findall(
      _NUMBER, names.replace('\\', ''))}
  faults += [f'{number} is from nowhere' for number in re.findall(
      _NUMBER, text) if float(number) not in known]
  return faults


def measured_part(readme: str) -> str:
  """Returns the words of the README on what was measured of the methods."""
  return words(re.search(
      r'Measured on small models.*?(?=\n\[The loop and)', readme,
      re.DOTALL)[0])


def check(readme: str, said: Mapping[str, str]) -> list[str]:
  """Returns what is wrong with the README's sentences; [] if they follow.

  Args:
    readme: the README.
    said: the sentences of each claim all of whose runs have rows.
  """
  faults, rest = [], measured_part(readme)
  for sentence in SENTENCES:
    text = words(sentence.text)
    faults += [f'"{text}": {fault}' for fault in wrong(
        sentence, said.get(sentence.claim, ''))]
    if text not in rest:
      faults.append(f'The README lacks: {text}')
    rest = rest.replace(text, '', 1)
  if words(rest) != words(BETWEEN):
    faults.append(f'Words of the README in no sentence: {words(rest)}')
  return faults


def settings_order(claim: runs.Claim) -> str:
  """Says whether a claim's settings were committed before its rows.

  The last commit of the settings counts: what was frozen does not change.
  """
  def git(*args):
    return subprocess.run(
        ['git', *args], cwd=runs.ROOT, capture_output=True, text=True,
        check=True).stdout

  def commits(path):
    return git('log', '--reverse', '--format=%H', '--', path).split()

  name = str((runs.RESULTS / claim.name).relative_to(runs.ROOT))

  def counted(commit):
    if not git('ls-tree', commit, f'{name}.jsonl'):
      return False
    return any('factor' not in json.loads(row) for row in git(
        'show', f'{commit}:{name}.jsonl').splitlines())

  if claim.name in OLDER:
    return 'older than the rule'
  if claim.older:
    return 'not by the rule, which the report says'
  rows = ''  # the commit of the first ones, since they were last taken away
  for commit in commits(f'{name}.jsonl'):
    rows = (rows or commit) if counted(commit) else ''
  if not rows:
    return 'no rows that count'
  settings = commits(f'{name}.settings.json')
  older = git('log', '--format=%H', f'{rows}^').split()
  return 'settings before rows' if settings and settings[-1] in older else (
      'SETTINGS NOT BEFORE ROWS')


def main() -> None:
  """Prints what was checked; exits with 1 where something is wrong."""
  claims = all_claims.claims()
  said = {claim.name: runs.said(claim, rows) for claim in claims
          if (rows := runs.measured(claim))}
  faults = check((runs.ROOT / 'README.md').read_text(), said)
  orders = {claim.name: settings_order(claim) for claim in claims}
  for name, order in orders.items():
    print(f'{name}: {order}')
  print('\n'.join(faults) or f'{len(SENTENCES)} sentences follow.')
  if faults or any(order.isupper() for order in orders.values()):
    raise SystemExit(1)


if __name__ == '__main__':
  main()
