"""Writes reports, pictures and sentences of all claims from committed rows.

  python -m benchmarks.claims
"""

import importlib

from benchmarks.claims import runs

NAMES = ('pkpo', 'pkpo_bonus', 'pkpo_mixed', 'pkpo_arc', 'pkpo_programs',
         'speed', 'speed_rloo', 'speed_real', 'jackpot', 'jackpot_128',
         'jackpot_rates', 'jackpot_actor', 'cbs', 'cbs_64', 'cbs_misled',
         'all_four', 'real', 'turns', 'carry', 'carry_real')


def claims() -> list[runs.Claim]:
  """Returns all claims."""
  return [importlib.import_module(f'benchmarks.claims.{name}').CLAIM
          for name in NAMES]


if __name__ == '__main__':
  for claim in claims():
    if rows := runs.committed(claim):
      runs.write(claim, rows)
