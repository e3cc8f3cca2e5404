"""Many training runs of a claim: one core each, in parallel, resumable."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import subprocess
import sys
from typing import Any, Callable, Mapping, Sequence

from benchmarks.rl_step import machine

ROOT = pathlib.Path(__file__).parents[2]


def train_all(
    names: Sequence[str], folder: pathlib.Path, module: str) -> None:
  """Does the runs without a result, one on each core.

  Args:
    names: of the runs, in the order in which they begin.
    folder: gets the results `NAME.json`, the outputs and the runs.
    module: program that does a run, with `--folder`, `--one=NAME`, `--core`.

  Raises:
    RuntimeError: a run failed.
  """
  folder.mkdir(parents=True, exist_ok=True)
  cores: queue.SimpleQueue = queue.SimpleQueue()
  for core in os.sched_getaffinity(0):
    cores.put(core)

  def do(name):
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
      raise RuntimeError(f'{name} failed; see its output in {log}.') from None
    finally:
      cores.put(core)
    print(name, flush=True)

  left = [name for name in names if not (folder / f'{name}.json').exists()]
  with concurrent.futures.ThreadPoolExecutor(cores.qsize()) as pool:
    try:
      for future in concurrent.futures.as_completed(
          [pool.submit(do, name) for name in left]):
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
  from jaxrl_llm.host import stages
  from jaxrl_llm.monitoring import metrics
  loaded = config_lib.load(config, {
      'workdir': str(folder / name), 'mesh.cpu_devices': 1,
      'warm_start.cache': str(folder / 'warm_start'), 'log.display': False,
      'log.tensorboard': False, 'checkpoint.every': 0, **fields})
  stages.validate(loaded)
  train.train(loaded, name)
  return metrics.read(folder / name / 'metrics.jsonl')


def save(folder: pathlib.Path, name: str, result: Mapping[str, Any]) -> None:
  """Writes the result of a run, whole or not at all."""
  path = folder / f'{name}.json'
  path.with_suffix('.part').write_text(json.dumps(result))
  path.with_suffix('.part').replace(path)


def read(folder: pathlib.Path, names: Sequence[str]) -> list[dict[str, Any]]:
  """Reads the results that are there."""
  found = [folder / f'{name}.json' for name in names]
  return [json.loads(path.read_text()) for path in found if path.exists()]


def program(
    module: str, doc: str, *, names: Sequence[str],
    train: Callable[[str, pathlib.Path, str], None], report: Any,
    order: Callable[[Mapping[str, Any]], Any] | None = None,
    unwritten: Sequence[str] = ()) -> None:
  """Runs the command line of a claim.

  Args:
    module: name of the program, such as benchmarks.claims.pkpo.
    doc: its docstring.
    names: of the runs, in the order in which they begin.
    train: (name, folder, description of the machine), does a run and saves its
      result.
    report: module with RESULT, report(results, command), draw(results, path).
    order: key that sorts the results; None leaves them in the order of names.
    unwritten: keys of results that `--write` leaves out.
  """
  parser = argparse.ArgumentParser(
      description=doc, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument(
      '--folder', type=pathlib.Path,
      default=ROOT / 'runs/claims' / module.rpartition('.')[2])
  parser.add_argument(
      '--write', action='store_true', help=f'into {report.RESULT}')
  parser.add_argument(
      '--report', action='store_true', help='of the results that are there')
  parser.add_argument('--one', help=argparse.SUPPRESS)
  parser.add_argument('--core', type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  folder = args.folder.absolute()
  if args.one:
    where = machine()
    os.sched_setaffinity(0, {args.core})  # limits XLA's threads to one core
    train(args.one, folder, where)
    return
  if not args.report:
    train_all(names, folder, module)
  results = read(folder, names)
  if order:
    results.sort(key=order)
  text = report.report(results, f'python -m {module}')
  print(text)
  if args.write:
    path = report.RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_suffix('.jsonl').write_text(''.join(
        json.dumps({k: v for k, v in result.items() if k not in unwritten})
        + '\n' for result in results))
    report.draw(results, path.with_suffix('.png'))
