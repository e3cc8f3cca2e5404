"""A claim: training runs with frozen settings, and their report.

Settings are chosen on TUNING_SEEDS, or on seeds of the arm: arms with a
learning rate of their own try RATES times that of their config, and two more
beyond an end that is the best; the others inherit one. What was chosen is
written to results/claims/NAME.settings.json with `--settings`, to be committed
before the first run that counts, and never again; runs that count have seeds of
FIRST and above. Runs take one core each, in parallel, and are not repeated:
after an interrupt, the same command resumes, and on another machine it goes on
from the rows that are committed. There is no report before the last run. A
claim that changes begins anew without its files in results/claims.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import queue
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
import threading
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from benchmarks.claims import tables
from benchmarks.rl_step import machine, markdown

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / 'benchmarks/results/claims'

TUNING_SEEDS = 0, 1
FIRST = 10
# Seeds whose runs alternate: runs side by side make a warm start each.
TOGETHER = 2
RATES = 1 / 3, 1, 3
FURTHER = (1 / 9, 1 / 27), (9, 27)  # below and above RATES
RATE = 'optimizer.learning_rate'


class Arm(NamedTuple):
  """An arm of a claim.

  Attributes:
    fields: what differs from the config.
    config: path of the config; '' for the claim's.
    rate: arm whose chosen learning rate it has, itself for one that is tuned;
      '' for the rate of its config.
    seeds: that count, if not all of the claim.
    tuning: seeds on which its learning rate is chosen.
  """
  fields: Mapping[str, Any] = {}
  config: str = ''
  rate: str = ''
  seeds: Sequence[int] | None = None
  tuning: Sequence[int] = TUNING_SEEDS


class Claim(NamedTuple):
  """A claim.

  Attributes:
    name: of its module, and of its files in results/claims.
    doc: what its program does.
    title: of the report.
    config: path of the config.
    keys: names of the parts of an arm's name, separated by commas.
    arms: name to Arm, in the order in which the runs begin.
    seeds: that count.
    measure: (config, run, folder, fields) -> numbers; trains and evaluates the
      run in folder / run.
    figure: what is tuned for; larger is better.
    about: (results) -> the paragraph on the setting.
    summary: (results) -> the sentences that a page of docs/ has too.
    sections: (results) -> the tables.
    draw: (results, path).
    older: what is said of settings that are not of this protocol.
    chosen_by: the name of `figure`.
  """
  name: str
  doc: str
  title: str
  config: str
  keys: tuple[str, ...]
  arms: Mapping[str, Arm]
  seeds: Sequence[int]
  measure: Callable[[str, str, pathlib.Path, dict[str, Any]], dict[str, Any]]
  figure: tables.Figure
  about: Callable[[Sequence[tables.Result]], str]
  summary: Callable[[Sequence[tables.Result]], str]
  sections: Callable[[Sequence[tables.Result]], str]
  draw: Callable[[Sequence[tables.Result], pathlib.Path], None]
  older: str = ''
  chosen_by: str = 'the figure at the end on the same held-out problems'

  def config_of(self, arm: str) -> str:
    """Returns the path of an arm's config."""
    return self.arms[arm].config or self.config

  def seeds_of(self, arm: str) -> list[int]:
    """Returns the seeds of an arm that count."""
    own = self.arms[arm].seeds
    return list(self.seeds if own is None else own)

  def row_of(self, arm: str, seed: int) -> dict[str, Any]:
    """Returns the names of a run, for its row."""
    parts = [int(part) if key == 'stale' else part for key, part in zip(
        self.keys, arm.split(','))]
    return {**dict(zip(self.keys, parts)), 'seed': seed}


class Run(NamedTuple):
  """A run of an arm; `factor` is of the learning rate, None where it counts."""
  arm: str
  seed: int
  factor: float | None = None

  @property
  def name(self) -> str:
    """Name of the run, its folder and its result."""
    tuned = '' if self.factor is None else f',x{self.factor:.3g}'
    return f'{self.arm},{self.seed}{tuned}'


def tuning_runs(claim: Claim) -> list[Run]:
  """Returns the runs on which learning rates are chosen."""
  return _in_turn({
      arm: (made.tuning, RATES) for arm, made in claim.arms.items()
      if made.rate == arm})


def _in_turn(
    made: Mapping[str, tuple[Sequence[int], Sequence[float | None]]],
) -> list[Run]:
  """Returns the runs of arms with their seeds and factors, in their order."""
  seeds = sorted({seed for own, _ in made.values() for seed in own})
  return [Run(arm, seed, factor) for i in range(0, len(seeds), TOGETHER)
          for arm, (own, factors) in made.items() for factor in factors
          for seed in seeds[i:i + TOGETHER] if seed in own]


def further_runs(
    claim: Claim, tried: Sequence[tuple[Run, tables.Result]]) -> list[Run]:
  """Returns the tuning runs beyond an end of RATES that is the best."""
  beyond = dict(zip((RATES[0], RATES[-1]), FURTHER))
  best = choose(claim, [pair for pair in tried if pair[0].factor in RATES])
  return _in_turn({arm: (claim.arms[arm].tuning, beyond.get(factor, ()))
                   for arm, factor in best.items()})


def counted_runs(claim: Claim) -> list[Run]:
  """Returns the runs that count."""
  return _in_turn({arm: (claim.seeds_of(arm), (None,)) for arm in claim.arms})


def choose(
    claim: Claim, tried: Sequence[tuple[Run, tables.Result]],
) -> dict[str, float]:
  """Returns the factor of each tuned arm with the best mean over the seeds.

  Of equal factors it is the one that was tried first.
  """
  found: dict[str, dict[float, list[float]]] = {}
  for run, result in tried:
    found.setdefault(run.arm, {}).setdefault(run.factor, []).append(
        claim.figure(result))
  return {arm: max(by, key=lambda factor: statistics.fmean(by[factor]))
          for arm, by in found.items()}


def results_of(
    made: Sequence[Run], folder: pathlib.Path,
) -> list[tuple[Run, dict[str, Any]]]:
  """Returns the runs that have a result, with it."""
  return [(run, json.loads(path.read_text())) for run in made
          if (path := folder / f'{run.name}.json').exists()]


def run_of(claim: Claim, row: tables.Result) -> Run:
  """Returns the run of a row."""
  return Run(','.join(str(row[key]) for key in claim.keys), row['seed'],
             row.get('factor'))


def restore(claim: Claim, folder: pathlib.Path) -> None:
  """Saves the committed rows as results in a folder that lacks them."""
  folder.mkdir(parents=True, exist_ok=True)
  for row in committed(claim):
    name = run_of(claim, row).name
    if not (folder / f'{name}.json').exists():
      save(folder, name, row)


def settings_path(claim: Claim) -> pathlib.Path:
  """Returns the path of a claim's frozen settings."""
  return RESULTS / f'{claim.name}.settings.json'


def _settings_of(claim: Claim) -> dict[str, Any]:
  """Returns the settings of all arms, as JSON reads them."""
  return json.loads(json.dumps({
      arm: {'config': claim.config_of(arm), 'fields': dict(made.fields),
            'rate': made.rate, 'seeds': claim.seeds_of(arm)}
      for arm, made in claim.arms.items()}))


def check_new(claim: Claim) -> None:
  """Checks that settings can be chosen.

  Raises:
    ValueError: they were, or there are rows of runs that count.
  """
  path = settings_path(claim)
  if path.exists() or any('factor' not in row for row in committed(claim)):
    raise ValueError(
        f'{claim.name} has settings or rows of runs that count in '
        f'{path.parent}: settings are chosen once. Make another claim, or '
        'remove them, which a commit should explain.')


def freeze(claim: Claim, tried: Sequence[tuple[Run, tables.Result]]) -> None:
  """Writes the settings of a claim; `tried` are all its tuning runs."""
  check_new(claim)
  RESULTS.mkdir(parents=True, exist_ok=True)
  settings = {'arms': _settings_of(claim), 'factors': choose(claim, tried)}
  settings_path(claim).write_text(json.dumps(settings, indent=1) + '\n')


def frozen(claim: Claim) -> dict[str, float]:
  """Reads the settings that `freeze` has written.

  Returns:
    Factors of the learning rates, see `choose`.

  Raises:
    ValueError: there are none, or an arm differs from them.
  """
  path, made = settings_path(claim), _settings_of(claim)
  if not path.exists():
    raise ValueError(
        f'{claim.name} has no frozen settings in {path}: run it with '
        '--settings, and commit that file before the runs that count.')
  found = json.loads(path.read_text())
  for arm in {**made, **found['arms']}:
    if found['arms'].get(arm) != made.get(arm):
      raise ValueError(
          f'{claim.name}: arm {arm} is not as in {path}, which was frozen '
          'before the runs that count: set it back, or make another claim.')
  return found['factors']


def fields_of(
    claim: Claim, run: Run, factors: Mapping[str, float]) -> dict[str, Any]:
  """Returns the fields of a run, with its seed and its learning rate."""
  from jaxrl_llm import config as config_lib
  made = claim.arms[run.arm]
  fields = {'seed': run.seed, **made.fields}
  if made.rate:
    config = config_lib.load(claim.config_of(run.arm), fields)
    fields[RATE] = config.optimizer.learning_rate * (
        factors[made.rate] if run.factor is None else run.factor)
  return fields


def do(claim: Claim, run: Run, folder: pathlib.Path, where: str) -> None:
  """Does a run, and saves its row.

  Args:
    claim: it says how.
    run: which run.
    folder: parent folder of the runs and results.
    where: description of the machine.
  """
  counts = run.factor is None
  fields = fields_of(claim, run, frozen(claim) if counts else {})
  numbers = claim.measure(
      claim.config_of(run.arm), run.name, folder, fields)
  save(folder, run.name, {
      **claim.row_of(run.arm, run.seed), **numbers,
      **({} if counts else {'factor': run.factor}),
      'rate': fields.get(RATE), 'machine': where,
      'date': str(datetime.date.today())})


def train_all(
    runs: Sequence[Run], folder: pathlib.Path, module: str) -> None:
  """Does the runs without a result, one on each core.

  Args:
    runs: in the order in which they begin.
    folder: gets the results `NAME.json`, the outputs and the runs.
    module: program that does a run, with `--folder`, `--one=NAME`, `--core`.

  Raises:
    RuntimeError: a run failed.
  """
  folder.mkdir(parents=True, exist_ok=True)
  cores: queue.SimpleQueue = queue.SimpleQueue()
  failed = threading.Event()  # then no other run begins
  for core in os.sched_getaffinity(0):
    cores.put(core)

  def work(name):
    if failed.is_set():
      return
    core = cores.get()
    log = folder / f'{name}.log'
    try:
      with log.open('w') as file:
        subprocess.run(
            [sys.executable, '-m', module, f'--folder={folder}',
             f'--one={name}', f'--core={core}'],
            cwd=ROOT, check=True, stdout=file, stderr=subprocess.STDOUT,
            # Schedules, seeds and steps are traced, so the cache serves most
            # programs of all runs.
            env={**os.environ,
                 'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled')})
    except subprocess.CalledProcessError:
      failed.set()
      raise RuntimeError(f'{name} failed; see its output in {log}.') from None
    finally:
      cores.put(core)
    print(name, flush=True)

  left = [run.name for run in runs
          if not (folder / f'{run.name}.json').exists()]
  with concurrent.futures.ThreadPoolExecutor(cores.qsize()) as pool:
    try:
      for future in concurrent.futures.as_completed(
          [pool.submit(work, name) for name in left]):
        future.result()
    except BaseException:  # also after an interrupt, starts no more runs
      pool.shutdown(wait=False, cancel_futures=True)
      raise


def train_arm(
    config: str, name: str, folder: pathlib.Path, fields: Mapping[str, Any],
) -> list[dict[str, Any]]:
  """Trains a config with other fields.

  Args:
    config: path of the config.
    name: of the run.
    folder: parent folder of the runs, with their warm starts.
    fields: dotted names with values, such as the run's seed and those of its
      arm.

  Returns:
    The rows of metrics.jsonl.
  """
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import train
  from jaxrl_llm.monitoring import metrics
  from jaxrl_llm.prepare import stages
  loaded = config_lib.load(config, {
      'workdir': str(folder / name), 'mesh.cpu_devices': 1,
      'sft.cache': str(folder / 'warm_start'), 'log.display': False,
      'log.tensorboard': False, 'checkpoint.every': 0, **fields})
  stages.validate(loaded)
  if not loaded.checkpoint.every:
    # A run that was stopped left a checkpoint, but what a claim collects beside
    # the run's state is gone.
    shutil.rmtree(folder / name, ignore_errors=True)
  train.train(loaded, name)
  return metrics.read(folder / name / 'metrics.jsonl')


def evaluated(
    config: str, name: str, folder: pathlib.Path, fields: Mapping[str, Any],
    checkpoint: str = 'last') -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Evaluates a run of `train_arm`; returns figures and responses."""
  from jaxrl_llm import config as config_lib
  from jaxrl_llm import evaluate
  found = evaluate.evaluate(config_lib.load(config, {
      'workdir': str(folder / name), 'log.display': False,
      'mesh.cpu_devices': 1, 'sft.cache': str(folder / 'warm_start'),
      **fields}), checkpoint)
  return found, [json.loads(line) for line in pathlib.Path(
      found['responses']).read_text().splitlines()]


def save(folder: pathlib.Path, name: str, result: Mapping[str, Any]) -> None:
  """Writes the result of a run, whole or not at all."""
  path = folder / f'{name}.json'
  part = folder / f'{name}.{os.getpid()}.part'
  part.write_text(json.dumps(result))
  part.replace(path)


def committed(claim: Claim) -> list[dict[str, Any]]:
  """Reads the rows in results/claims; none if there are none."""
  path = RESULTS / f'{claim.name}.jsonl'
  return [*map(json.loads, path.read_text().splitlines())] if (
      path.exists()) else []


def whole(claim: Claim, rows: Sequence[tables.Result]) -> bool:
  """Says whether each run that counts has a row."""
  return {*counted_runs(claim)} <= {run_of(claim, row) for row in rows}


def measured(claim: Claim) -> list[dict[str, Any]]:
  """Reads the rows in results/claims; none before each run that counts has one.
  """
  rows = committed(claim)
  return rows if whole(claim, rows) else []


def _tuned(claim: Claim, rows: Sequence[tables.Result]) -> str:
  """Says how the settings were chosen."""
  tried = [(run_of(claim, row), row) for row in rows if 'factor' in row]
  seeds = sorted({row['seed'] for row in rows if 'factor' not in row})
  if claim.older:
    return f'{claim.older}\n'
  known = 'frozen' if settings_path(claim).exists() else 'chosen'
  text = (f'Settings were {known} before the runs that count, of {len(seeds)} '
          f'seeds, {seeds[0]} to {seeds[-1]}.')
  if not tried:
    return f'{text} None was chosen for this claim.\n'
  rates, lines, ends = sorted({run.factor for run, _ in tried}), [], []
  for arm, best in choose(claim, tried).items():
    by = {rate: [claim.figure(row) for run, row in tried
                 if (run.arm, run.factor) == (arm, rate)] for rate in rates}
    cells = {rate: tables.mean_and_error(by[rate]) for rate in rates}
    cells[best] = f'**{cells[best]}**'
    lines.append([arm, *cells.values(), '; '.join(
        other for other, made in claim.arms.items()
        if made.rate == arm and other != arm)])
    own = [rate for rate in rates if by[rate]]
    if best in (own[0], own[-1]):
      tried_more = max(0, len(own) - len(RATES))
      more = ('', ', with one more', ', with two more')[tried_more]
      ends.append(
          f'{arm} ({"lowest" if best == own[0] else "highest"}{more})')
  edge = f' At the edge of what was tried: {", ".join(ends)}.' if ends else ''
  last = max(row['date'] for row in rows if 'factor' not in row)
  if late := sum(row['date'] > last for _, row in tried):
    edge += f' {late} of these runs were made after those that count.'
  head = [f'{factor:.3g} times the rate' for factor in rates]
  return (f'{text} Learning rates, in bold, were chosen on seeds '
          f'{_seeds(claim, tried)}, by {claim.chosen_by}; some arms inherit '
          f'one.{edge}\n\n'
          + markdown(['', *head, 'inherited by'], lines) + '\n')


def _seeds(
    claim: Claim, tried: Sequence[tuple[Run, tables.Result]]) -> str:
  """Says the seeds on which learning rates were chosen."""
  by = {tuple(claim.arms[run.arm].tuning) for run, _ in tried}
  said = [' and '.join(map(str, seeds)) if len(seeds) < 3 else
          f'{seeds[0]} to {seeds[-1]}' for seeds in sorted(by)]
  return ', or '.join(said)


def said(claim: Claim, rows: Sequence[tables.Result]) -> str:
  """Returns the sentences on a claim that a page of docs/ has word for word."""
  results = [row for row in rows if 'factor' not in row]
  seeds = {row['seed'] for row in results}
  return f'Over {len(seeds)} seeds: ' + tables.judged(
      claim.summary(results), together=True)


def _spent(rows: Sequence[tables.Result]) -> str:
  """Says how long the steps of all runs took; nothing in older rows."""
  hours = sum(
      row['minutes'] / 60 if 'minutes' in row else row['elapsed'][-1] / 3600
      for row in rows if 'minutes' in row or 'elapsed' in row)
  return f' The steps of all {len(rows)} runs took {hours:.1f} hours.' * (
      hours > 0)


def report(claim: Claim, rows: Sequence[tables.Result]) -> str:
  """Returns the report of a claim's rows as Markdown."""
  results = [row for row in rows if 'factor' not in row]
  every = lambda key: sorted({row[key] for row in rows})
  dates = ' to '.join(dict.fromkeys((every('date')[0], every('date')[-1])))
  return f'''# {claim.title}

`python -m benchmarks.claims.{claim.name}`, {dates}, \
{' and '.join(every('machine'))}; one core for each run.{_spent(rows)}

{claim.about(results)} Mean ± standard error over seeds. Differences are \
paired by seed, with 95% intervals (Student's t); "not distinguishable" is one \
whose interval has 0. In the next paragraph the interval in per cent of the \
second figure follows, and "after Holm" is said of a difference whose p-value \
is above 0.05 when those of the paragraph are corrected for their number. The \
intervals and the tables are not corrected.

{said(claim, rows)}

{_tuned(claim, rows)}
![the claim's curves]({claim.name}.png)

{tables.judged(claim.sections(results))}
'''


def marked(name: str) -> re.Pattern[str]:
  """Returns the pattern of what a page has between the marks of a claim."""
  return re.compile(
      rf'(?<=<!-- claim {name} -->\n).*?(?=<!-- end -->)', re.DOTALL)


def write_rows(claim: Claim, rows: Sequence[tables.Result]) -> None:
  """Writes rows into results/claims."""
  RESULTS.mkdir(parents=True, exist_ok=True)
  (RESULTS / f'{claim.name}.jsonl').write_text(
      ''.join(json.dumps(row) + '\n' for row in rows))


def write(claim: Claim, rows: Sequence[tables.Result]) -> None:
  """Writes rows, and, if all are there, report, picture and docs' sentences."""
  write_rows(claim, rows)
  path = RESULTS / f'{claim.name}.md'
  if not whole(claim, rows):
    return
  path.write_text(report(claim, rows))
  claim.draw([row for row in rows if 'factor' not in row],
             path.with_suffix('.png'))
  lines = textwrap.fill(
      said(claim, rows), 88, break_long_words=False, break_on_hyphens=False)
  for page in (ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')):
    text = page.read_text()
    new = marked(claim.name).sub(lambda _: f'\n{lines}\n\n', text)
    if new != text:
      page.write_text(new)


def program(claim: Claim) -> None:
  """Runs the command line of a claim."""
  parser = argparse.ArgumentParser(
      description=claim.doc, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--folder', type=pathlib.Path,
                      default=ROOT / 'runs/claims' / claim.name)
  parser.add_argument(
      '--settings', action='store_true',
      help=f'choose them, and write them to {settings_path(claim)}')
  parser.add_argument(
      '--write', action='store_true', help=f'into {RESULTS}/{claim.name}.*')
  parser.add_argument(
      '--report', action='store_true', help='of the results that are there')
  parser.add_argument('--one', help=argparse.SUPPRESS)
  parser.add_argument('--core', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  folder = args.folder.absolute()
  module = f'benchmarks.claims.{claim.name}'
  try:
    if args.settings:
      check_new(claim)
    elif not args.report and not args.one:
      frozen(claim)
  except ValueError as error:
    parser.error(str(error))
  restore(claim, folder)
  tuning, counted = tuning_runs(claim), counted_runs(claim)
  if args.settings:
    train_all(tuning, folder, module)
  tuning += further_runs(claim, results_of(tuning, folder))
  if args.one:
    where = machine()
    os.sched_setaffinity(0, {args.core})  # limits XLA's threads to one core
    run, = (run for run in tuning + counted if run.name == args.one)
    do(claim, run, folder, where)
    return
  if args.settings:
    train_all(tuning, folder, module)
    freeze(claim, results_of(tuning, folder))
    if rows := results_of(tuning + counted, folder):
      write(claim, [row for _, row in rows])
    return
  there = lambda: [row for _, row in results_of(tuning + counted, folder)]
  if not args.report:
    try:
      train_all(counted, folder, module)
    finally:
      if args.write and there():
        write_rows(claim, there())
  rows = there()
  if all('factor' in row for row in rows):
    parser.error(f'{folder} has no run that counts: leave out --report, or '
                 'give the --folder of the runs.')
  print(report(claim, rows))
  if args.write:
    write(claim, rows)
