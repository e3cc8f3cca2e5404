"""Numbers, tables and plots of SPEED's claims."""

import statistics
from typing import Any, Mapping, Sequence

Row = Mapping[str, Any]
WARM = 3  # first steps, which compile; each counts as the median step


def numbers_of(rows: Sequence[Row]) -> dict[str, Any]:
  """Returns the saved part of a run's metrics.

  Args:
    rows: rows of metrics.jsonl.

  Returns:
    Dictionary with 'curve': for each evaluation the sums up to it, and its
    pass@1 and pass@8; 'signal': sum of |advantage| of the complete groups;
    'informative': complete groups with signal; 'phases': for each phase, the
    seconds and tokens of each step that follows the first ones; 'grad_norm' and
    'staleness': means over the steps with an update.
  """
  steps = rows[1:]
  usual = statistics.median(row['seconds/step'] for row in steps[WARM:])
  sums = dict.fromkeys(
      ('samples', 'updates', 'gflops', 'seconds', 'generated', 'trained'), 0.0)
  curve, signal, informative = [], 0.0, 0.0
  phases: dict[str, list[tuple[float, float]]] = {
      'sample': [], 'update': [], 'score': [], 'other': []}
  for number, row in enumerate(rows):
    if number:
      generated = row['response/count'] * (row['response/length'] or 0)
      trained = row.get('update/tokens') or 0
      sums['samples'] += row['response/count']
      sums['updates'] += row['batch/rounds']
      sums['gflops'] += row['speed/flops'] / 1e9
      sums['seconds'] += row['seconds/step'] if number > WARM else usual
      sums['generated'] += generated
      sums['trained'] += trained
      groups = row.get('screening/continued', row['response/count'] / 16)
      signal += row['reward/signal']
      informative += groups * (1 - (row['reward/no_signal'] or 0))
      if number > WARM:
        phase = {name: row[f'seconds/{name}']
                 for name in ('sample', 'update', 'score')}
        phases['sample'].append((phase['sample'], generated))
        phases['update'].append((phase['update'], trained))
        phases['score'].append((phase['score'], trained))
        phases['other'].append(
            (row['seconds/step'] - sum(phase.values()), 1.0))
    if 'eval/pass@1' in row:
      curve.append({
          **{name: round(value, 3) for name, value in sums.items()},
          'pass@1': row['eval/pass@1'], 'pass@8': row.get('eval/pass@8')})
  updated = [row for row in steps if row['batch/rounds']]
  return {
      'curve': curve, 'signal': signal, 'informative': informative,
      'samples': sums['samples'], 'phases': phases,
      'grad_norm': statistics.mean(
          row['update/grad_norm'] for row in updated),
      'staleness': statistics.mean(
          row['batch/staleness'] for row in updated)}
