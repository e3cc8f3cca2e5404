"""Fuzz test: whatever is wrong with a command, it ends in a few lines.

Every command runs in this process, up to the first compile. `FUZZ_SEED=1`
before the tests makes other commands; 0 is the default.
"""

import gzip
import json
import logging
import os
import random
import shutil
import sys
import warnings

import huggingface_hub
import pytest

from jaxrl_llm import config as config_lib
from jaxrl_llm import evaluate, export, train
from jaxrl_llm.base import tokenizer
from jaxrl_llm.config import table as table_lib
from jaxrl_llm.jobs import evaluate as evaluate_job
from jaxrl_llm.jobs import train as loop
from jaxrl_llm.launch import run
from jaxrl_llm.prepare import build
from tests.helpers import tiny_hf

SEED = 100 * int(os.environ.get('FUZZ_SEED', '0'))
TEXTS = (
    '', ' ', 'none', 'None', 'nan', 'inf', '-inf', '-1', '0', '1', '2', '7',
    '.5', '1e300', '-1e300', '1e-300', '1e-40', '9' * 12, '9' * 30, '9' * 5000,
    '-' + '9' * 30, 'true', 'x', 'é', '\udcff', 'a\0b', 'a\nb', '\n\n\n\n',
    '[]', '()', '1,1', ',', '1,,2', '1;2', '{}', '{"a": 1}', '~nouser/x',
    '/dev/null/x', '.', '..', 'x' * 10_000, '%s%d{}', '1_000', '0x10', '１２',
    '0:8,5:1', '0:8,x', '=', '--', 'no.such.module', 'none.py', 'none.py:f',
    'a.json', '((((', '*', 'true,false', '2147483647', '1073741824')
NUMBERS = (
    '0', '1', '2', '3', '5', '8', '40', '1000', '100000', '2147483647', '-1',
    '1e-30', '1e30', '.5', '.999999999999')
OBJECTS = (
    'None', 'object()', 'object', 'lambda: 0', '{1: 2}', '{}', '[]', '[[1]]',
    '1j', 'b"x"', 'float("nan")', 'float("inf")', '-1', '0', '10**30',
    '10**5000', '10**400 * 1.0', '...', '"\\ud800"', 'config', 'c', '{1, 2}',
    'True', '"x" * 10**5', 'exit()', 'undefined', 'get_config()', '1 / 0',
    '__import__("no_such")', '(_ for _ in [1])', 'c.nothing', '""')
ARGUMENTS = (
    '', '-', '--', 'x', '--config', '--config=', '--config.=1', '--config.x',
    '--config.loss=1', '--config.a.b.c=1', '--steps=1', '--config.steps.x=1',
    '--config.steps=1', '--config.steps=x', '--config.modle.width=3',
    '--config.loss.steps=3', '--config.task=', '--config.task.name=3.5',
    '--config.é=1', '--config. steps=1', '--config.STEPS=1', '--help=1',
    '--config=configs', '--config=/dev/null', '--config=no.json',
    '--config=x\ny.py', '--config=a\0b.py', '--config=' + 'x' * 5000 + '.py')
CODE = '''
from jaxrl_llm import config

def get_config(arg=None):
  c = config.base()
  c.update(steps=2, prompts_per_step=4, samples_per_prompt=4)
  c.max_prompt = 9
  c.max_response = 10
  c.loss.clip_high = 0.28
  c.task.name = 'countdown'
  c.task.update(kinds=('two',), train=(40,), heldout=(6,), solved=(1.0,))
  c.eval.k = (1, 4)
  return c

def get_hyper(hyper):
  return hyper.product([
      hyper.sweep('seed', range(2)), hyper.sweep('steps', [1, 2])])

def reward(prompts, completions, answer, **columns):
  return [float(a in c) for a, c in zip(answer, completions)]
'''
MATH = (
    '--config.task=math', '--config.model.hf=model', '--config.max_prompt=300',
    '--config.task.path=rows.jsonl', '--config.task.heldout_count=2')
REWARDS = (
    'c.py:reward', 'c.py:none', 'c.py', 'none.py:f', 'c.py:config', ':', '',
    'json:loads', 'builtins:exit', 'c.py:reward:x')
VALUES = (
    None, True, 0, -1, 1.5, 10 ** 30, float('nan'), float('inf'), '', ' ', 'x',
    '\ud800', '\0', 'é' * 5000, [], [[]], [1, 'x'], {}, {'a': {'b': 1}},
    'a\nb', '1' * 5000)


def value(rng, field):
  """Returns a text for a field, in most cases one of its type."""
  default = config_lib.to_text(field.default)
  return rng.choice((
      rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(NUMBERS),
      rng.choice(field.choices or TEXTS), f'{default},{default}',
      f'{rng.choice(NUMBERS)},{rng.choice(NUMBERS)}'))


def garbled(rng, data):
  """Returns bytes with one accident: cut, changed, doubled or mixed up."""
  a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
  lines = data.split(b'\n')
  at = rng.randrange(len(lines))
  return rng.choice((
      lambda: data[:a], lambda: data[:a] + data[b:],
      lambda: data[:a] + rng.randbytes(3) + data[a:],
      lambda: data[:a] + rng.choice((
          b'\0', b'\xff\xfe', b'\xef\xbb\xbf', b'(', b'"""', b'\t', b'\r',
          b'{', b'[' * 5000)) + data[a:],
      lambda: b'\n'.join(lines[:at] + lines[at + 1:]),
      lambda: b'\n'.join(lines[:at] + [b'   ' + lines[at]] + lines[at + 1:]),
      lambda: rng.randbytes(200), lambda: b'', lambda: gzip.compress(data),
  ))()


class Done(Exception):
  """The end of a program before its first compile."""


@pytest.fixture(name='command', scope='module')
def _command(tmp_path_factory):
  """Function that runs a program, and says how it ended if not well."""
  folder = tmp_path_factory.mktemp('fuzz')
  rows = tiny_hf.word_problems(12)
  model = tiny_hf.make(folder / 'model', rows)
  known = tokenizer.ModelTokenizer(model)
  (folder / 'c.py').write_text(CODE)
  tiny_hf.write(folder / 'rows.jsonl', rows)

  class Lines(logging.Handler):
    def emit(self, record):
      sys.stderr.write(f'{record.getMessage()}\n')

  def offline(*_, **__):
    raise OSError('there is no network')

  def before_sampling(config, which, files, greedy, player):
    config = config_lib.of_player(config, player)
    evaluate.problem_sets(build.parts(config, training=False), files)
    raise Done

  def ends(capsys, main, *argv):
    capsys.readouterr()
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('always', SyntaxWarning)
        sys.argv[1:] = argv
        code = main() or 0
    except Done:
      code = 0
    except SystemExit as end:
      code = end.code
      if not code:
        return argv, 'a silent end'
    except Exception as error:
      return argv, repr(error)[:300]
    said = capsys.readouterr().err
    if isinstance(code, str):  # which the interpreter would print
      said, code = f'{said}{code}\n', 1
    lines = said.splitlines()
    if code not in (0, 1, 2) or len(lines) > 3 or 'Traceback' in said or (
        code and not said.strip()):
      return argv, code, said
    return None

  handler = Lines()
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    patch.setattr(sys, 'argv', ['program'])
    patch.setattr(sys, 'path', [*sys.path])
    patch.setattr(huggingface_hub, 'snapshot_download', offline)
    patch.setattr(build, 'ModelTokenizer', lambda _: known)
    patch.setattr(loop, '_run', lambda config, *_: build.parts(config))
    patch.setattr(evaluate_job, 'evaluate', before_sampling)
    logging.getLogger('absl').addHandler(handler)
    yield folder, ends
  logging.getLogger('absl').removeHandler(handler)


def test_fields_and_arguments(command, capsys):
  folder, ends = command
  rng = random.Random(SEED + 1)
  bad = []
  for i in range(110):
    task = rng.choice(('countdown', 'countdown', 'math'))
    table = table_lib.table({'task.name': task})
    argv = ['--config=c.py', '--config.log.display=false', *(
        MATH if task == 'math' else ()), *(
        f'--config.{name}={value(rng, table[name])}'
        for name in rng.sample([*table], rng.choice((1, 1, 1, 3))))]
    if i % 5 == 0:
      argv.insert(rng.randrange(len(argv) + 1), rng.choice(ARGUMENTS))
    main = (train, evaluate)[i % 3 == 0].main
    bad.append(ends(capsys, main, *argv))
  assert not [x for x in bad if x]


def test_config_files(command, capsys):
  folder, ends = command
  rng = random.Random(SEED + 2)
  saved = config_lib.to_json(config_lib.load('c.py'))
  lines = [i for i, line in enumerate(CODE.split('\n')) if ' = ' in line]
  bad = []
  for i in range(110):
    code, name = CODE.encode(), f'c{i}.py'
    if i % 3 == 0:
      found = CODE.split('\n')
      at = rng.choice(lines)
      found[at] = f'{found[at].partition(" = ")[0]} = {rng.choice(OBJECTS)}'
      code = '\n'.join(found).encode()
    elif i % 3 == 1:
      code = garbled(rng, code)
    else:
      given, name = json.loads(saved), f'c{i}.json'
      given[rng.choice([*given])] = rng.choice(VALUES)
      code = json.dumps(given).encode()
      code = garbled(rng, code) if i % 2 else code
    (folder / name).write_bytes(code)
    if i % 4 == 0 and name.endswith('.py'):
      bad.append(ends(
          capsys, run.main, f'--config={name}', '--sweep', '--dry_run'))
    bad.append(ends(capsys, train.main, f'--config={name}'))
  assert not [x for x in bad if x]


def test_problem_files(command, capsys):
  folder, ends = command
  rng = random.Random(SEED + 3)
  rows = [json.loads(x) for x in open(folder / 'rows.jsonl')]
  bad = []
  for i in range(80):
    found = [dict(row) for row in rows]
    for row in rng.sample(found, rng.choice((1, len(found)))):
      name = rng.choice(('problem', 'answer'))
      row[rng.choice((name, name, 'other'))] = rng.choice(VALUES)
      if rng.random() < .2:
        del row[name]
    text = ''.join(json.dumps(row) + '\n' for row in found).encode()
    ending = rng.choice(('jsonl', 'jsonl', 'jsonl.gz', 'json', 'parquet'))
    if ending == 'json':
      text = json.dumps(found).encode()
    if ending == 'jsonl.gz':
      text = gzip.compress(text)
    path = folder / f'{i}.{ending}'
    path.write_bytes(garbled(rng, text) if i % 2 else text)
    source = rng.choice((f'{i}.{ending}',) * 8 + (
        '.', '/dev/null', '~nouser/x.jsonl', 'none.jsonl', f'{i}.{ending}x'))
    more = [f'--config.task.reward={rng.choice(REWARDS)}'] if i % 4 == 0 else []
    if i % 5 == 0:
      bad.append(ends(
          capsys, evaluate.main, '--config=c.py', *MATH, f'--files={source}',
          '--checkpoint=start', *more))
    else:
      bad.append(ends(
          capsys, train.main, '--config=c.py', *MATH,
          f'--config.task.path={source}', *more))
  assert not [x for x in bad if x]


def test_model_folders(command, capsys, monkeypatch):
  folder, ends = command
  monkeypatch.setattr(build, 'ModelTokenizer', tokenizer.ModelTokenizer)
  rng = random.Random(SEED + 5)
  bad, small = [], sorted(
      p.name for p in (folder / 'model').iterdir()
      if p.suffix != '.safetensors')
  for i in range(12):
    shutil.copytree(folder / 'model', folder / f'm{i}')
    path = folder / f'm{i}' / rng.choice(small)
    data = path.read_bytes()
    given = json.loads(data) if path.suffix == '.json' else {}
    if i % 2 and given:
      given[rng.choice([*given])] = rng.choice(VALUES)
      data = json.dumps(given).encode()
    elif rng.random() < .2:
      path.unlink()
    if path.exists():
      path.write_bytes(data if i % 2 and given else garbled(rng, data))
    bad.append(ends(capsys, train.main, '--config=c.py', *MATH,
                    f'--config.model.hf=m{i}'))
  assert not [x for x in bad if x]


def test_exports(command, capsys):
  _, ends = command
  rng = random.Random(SEED + 4)
  flags = 'workdir', 'out', 'checkpoint', 'dtype', 'x'
  # argparse prints what it is given, on as many lines.
  texts = [text for text in TEXTS if '\n' not in text]
  bad = [ends(capsys, export.main, *(
      f'--{rng.choice(flags)}={rng.choice(texts)}' for _ in range(3)))
         for _ in range(10)]
  assert not [x for x in bad if x]
