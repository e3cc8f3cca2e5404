"""Tests of ARC's tasks: files, prompts, splits, versions and verdicts.

All 800 public tasks are read if they are in ../shared/data; the other tests use
tasks of our own.
"""

import collections
import gzip
import json
import pathlib
import types
import zlib

import pytest

from jaxrl_llm import evaluate, tasks
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.examples import arc_mini
from jaxrl_llm.rewards import grids, verify_all
from jaxrl_llm.tasks import arc, sets

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data'
TOKENIZER = types.SimpleNamespace(
    start='', special=(), chat=lambda text: f'<user>{text}<model>')


def puzzle(name, *, tests=1, examples=2, kind='flip', grid=None):
  """Returns a row: a rule of ARC-mini on grids that depend on the name."""
  rule, = arc_mini._rules(3)[kind]
  base = zlib.crc32(name.encode())
  made = [grid or [[(base >> (i + 3 * y + x)) % 10 for x in range(3 + i)]
                   for y in range(2)] for i in range(examples + tests)]
  pairs = [{'input': g, 'output': rule(g)} for g in made]
  return {'id': name, 'train': pairs[:examples], 'test': pairs[examples:]}


def write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def make(*paths, **options):
  return tasks.get('arc', TOKENIZER, path=paths, **options)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """Returns a file of 20 tasks, of which two have two test grids."""
  return write(tmp_path_factory.mktemp('arc') / 'own.jsonl', [
      puzzle(f'own{i:02}', tests=1 + (i in (3, 7))) for i in range(20)])


def test_the_prompt_shows_examples_and_the_test_input(tmp_path):
  row = puzzle('a')
  row['train'] = [{'input': [[0, 1]], 'output': [[1, 0]]}] * 2
  row['test'] = [{'input': [[2, 3], [4, 5]], 'output': [[3, 2], [5, 4]]}]
  path = write(tmp_path / 'a.jsonl', [row])
  shown = ('Example 1\nInput:\n01\nOutput:\n10\n\nExample 2\nInput:\n01\n'
           'Output:\n10\n\nTest input:\n23\n45')
  problem, = make(path, heldout_share=0.0).train
  assert problem.prompt == f'<user>{arc.INSTRUCTION}\n\n{shown}<model>'
  assert (problem.text, problem.answer) == (shown, '32\n54')
  plain, = make(path, heldout_share=0.0, template='none').train
  assert plain.prompt == f'{shown}\n\nTest output:\n' and plain.id == problem.id
  own, = make(path, heldout_share=0.0, template='Q{problem}A').train
  assert own.prompt == f'Q{shown}A'
  spaced, = make(path, heldout_share=0.0, digits='spaced').train
  assert 'Test input:\n2 3\n4 5' in spaced.text and spaced.id == problem.id
  assert spaced.answer == '3 2\n5 4'


def grids_of(text):
  """Reads back the pairs and the test inputs of a prompt's text."""
  parts = [part.split('\n', 1) for part in text.split('\n\n')]
  pairs = []
  for head, *body in parts:
    if head.startswith('Example'):
      before, _, after = body[0].removeprefix('Input:\n').partition(
          '\nOutput:\n')
      pairs.append((read_one(before), read_one(after)))
  return pairs, [read_one(body[0]) for head, *body in parts
                 if head.startswith('Test input')]


def read_one(text):
  """Returns the grid of a text."""
  block, = grids.blocks(text)
  return [[int(cell) for cell in row] for row in block]


def check_round_trip(source, **options):
  """Compares the text of every task with the task, and judges its answer."""
  task = make(source, heldout_share=0.0, **options)
  problems = iter(task.train)
  for read in arc.read(source):
    parts = [read.test] if options.get('tests') == 'together' else [
        [pair] for pair in read.test]
    for pairs in parts:
      problem = next(problems)
      assert grids_of(problem.text) == (
          [tuple(pair) for pair in read.train], [p.input for p in pairs])
      assert task.verify(problem, problem.answer, False).reward == 1
      assert task.verify(problem, problem.text, False).kind != 'correct'
  assert next(problems, None) is None
  return len(task.train)


@pytest.mark.parametrize('digits', ['joined', 'spaced'])
@pytest.mark.parametrize('tests', ['separate', 'together'])
def test_text_and_back(source, digits, tests):
  assert check_round_trip(source, digits=digits, tests=tests) == (
      22 if tests == 'separate' else 20)


@pytest.mark.parametrize('name,count', [('training', 416), ('evaluation', 419)])
def test_all_public_tasks_go_to_text_and_back(name, count):
  path = DATA / f'arc1_{name}.jsonl.gz'
  if not path.exists():
    pytest.skip(f'there is no {path}')
  assert len(arc.read(str(path))) == 400
  assert check_round_trip(str(path)) == count


def test_the_public_training_set_splits_80_to_20():
  path = DATA / 'arc1_training.jsonl.gz'
  if not path.exists():
    pytest.skip(f'there is no {path}')
  found = arc.read(str(path))
  train, heldout = arc.split(found, 0.2, 0)
  assert (len(train), len(heldout)) == (320, 80)
  assert {t.name for t in heldout} != {
      t.name for t in arc.split(found, 0.2, 1)[1]}


def test_every_verdict(source):
  task = make(source, heldout_share=0.0, reward='exact')
  problem = task.train[0]
  right = problem.answer
  wrong = right.translate(str.maketrans('0123456789', '1234567890'))
  said = {
      'correct': right, 'wrong': wrong, 'wrong_shape': right + '\n' + right[:5],
      'ragged': right + '\n1', 'wrong_colour': right + '\n1 2 3 4 12',
      'no_grid': 'I do not know.'}
  assert said.keys() == {*grids.KINDS}
  for kind, text in said.items():
    for response in (text, f'```\n{text}\n```',
                     f'<think>\n{right}\n</think>\n{text}'):
      verdict = task.verify(problem, response, False)
      assert (verdict.kind, verdict.reward) == (kind, float(kind == 'correct'))
  assert task.verify(problem, f'<think>\n{right}', True).kind == 'no_grid'
  assert task.verify(problem, right, True).kind == 'correct'
  found = verify_all(task, [problem] * 6, list(said.values()), [False] * 6)
  assert [verdict.kind for verdict in found] == list(said)


def test_an_open_reasoning_block_of_the_prompt(source):
  task = make(source, template='{problem}<think>\n', heldout_share=0.0)
  problem = task.train[0]
  assert task.verify(problem, problem.answer, False).kind == 'no_grid'
  assert task.verify(
      problem, f'Hm.</think>{problem.answer}', False).kind == 'correct'


def test_rewards(source):
  cells, exact = (make(source, reward=reward) for reward in ('cells', 'exact'))
  problem = cells.train[0]
  last = '1' if problem.answer[-1] == '0' else '0'
  response = problem.answer[:-1] + last
  size = len(problem.answer.replace('\n', ''))
  assert cells.verify(problem, response, False).reward == pytest.approx(
      1 - 1 / size)
  assert exact.verify(problem, response, False).reward == 0


def test_test_grids_together(source):
  task = make(source, tests='together', heldout_share=0.0)
  problem = next(p for p in task.train if len(p.info) == 2)
  assert 'Test input 1:' in problem.text and 'Test input 2:' in problem.text
  first, second = problem.answer.split('\n\n')
  assert task.verify(problem, f'{first}\n\n{second}', False).kind == 'correct'
  verdict = task.verify(problem, f'{first}\n\n{first}', False)
  assert verdict.kind == 'wrong_shape' and verdict.reward == .5
  assert task.verify(problem, second, False).kind == 'no_grid'


def test_the_split_is_of_tasks_and_depends_on_their_ids(source):
  task = make(source, heldout_share=0.25)
  shown = lambda problems: {p.text.rpartition('Test')[0] for p in problems}
  assert not shown(task.train) & shown(task.heldout)
  names = lambda found: {t.name for t in found}
  found = arc.read(source)
  train, heldout = arc.split(found, 0.25, 0)
  assert (len(train), len(heldout)) == (15, 5)
  again = arc.split(found[::-1], 0.25, 0)
  assert [*map(names, again)] == [names(train), names(heldout)]
  fewer = arc.split([t for t in found if t.name != train[0].name], 0.25, 0)
  assert names(fewer[1]) == names(heldout)


def test_heldout_files(source, tmp_path):
  rows = [puzzle(f'own{i:02}', tests=1 + (i in (3, 7))) for i in range(4)]
  held = write(tmp_path / 'held.jsonl', rows)
  task = make(source, heldout=(held,))
  assert (len(task.train), len(task.heldout)) == (17, 5)
  assert not {p.id for p in task.train} & {p.id for p in task.heldout}
  assert {p.id for p in task.load(held)} == {p.id for p in task.heldout}
  assert {p.kind for p in task.load(held)} == {'held'}
  assert {p.source for p in task.train + task.heldout} == {''}
  other = write(tmp_path / 'other.jsonl', [rows[0], puzzle('new')])
  both = make(source, heldout=(held, other)).heldout
  assert [p.source for p in both] == ['held'] * 5 + ['other']


def test_large_tasks_are_left_out_of_training(source, tmp_path, caplog):
  large = puzzle('large', grid=[[1, 2, 3, 4, 5, 6, 7, 8, 9]])
  path = write(tmp_path / 'more.jsonl', [large])
  task = make(source, path, largest=6, heldout_share=0.0)
  assert len(task.train) == 22
  assert 'Left out of the training tasks: 1 of 21' in caplog.text
  assert len(task.load(path)) == 1


@pytest.mark.parametrize('options', [
    {}, {'recolour': 'none'}, {'turns': False}, {'recolour': 'all'},
    {'recolour': 'none', 'versions': 50}])
def test_versions_change_all_grids_alike(source, options):
  options = {'versions': 7, **options}
  task, plain = make(source, **options), make(source)
  assert [p.id for p in task.heldout] == [p.id for p in plain.heldout]
  assert {p.kind for p in task.heldout} == {'heldout'}
  ids = [p.id for p in task.train + task.heldout]
  assert len({*ids}) == len(ids)
  assert task.train[:len(plain.train)] == plain.train
  assert [p.id for p in make(source, **options).train] == [
      p.id for p in task.train]
  chosen = arc.Options(path=(source,), **options)
  for found in arc.split(arc.read(source), 0.2, 0)[0]:
    made = arc.versions(found, chosen)
    assert len(made) <= 7 and found not in made
    assert len({str(other) for other in made}) == len(made)
    for other in made:
      check_version(found, other, chosen)
  sizes = collections.Counter(p.kind for p in task.train)
  assert sizes['version'] > 4 * sizes['train']


def check_version(found, other, options):
  """Tries every turn, and reads the colours off the cells: one map for all."""
  before = [g for p in (*found.train, *found.test) for g in p]
  after = [g for p in (*other.train, *other.test) for g in p]
  for turn in range(8) if options.turns else [0]:
    turned = [grids.turned(grid, turn) for grid in before]
    if any((len(a), len(a[0])) != (len(b), len(b[0]))
           for a, b in zip(turned, after)):
      continue
    pairs = {(x, y) for a, b in zip(turned, after)
             for row, new in zip(a, b) for x, y in zip(row, new)}
    bijection = len(pairs) == len({x for x, _ in pairs}) == len(
        {y for _, y in pairs})
    if options.recolour == 'none':
      bijection = bijection and all(x == y for x, y in pairs)
    if options.recolour == 'nonzero':
      bijection = bijection and all((x == 0) == (y == 0) for x, y in pairs)
    if bijection:
      return
  raise AssertionError(f'{other} is no version of {found}')


def test_a_version_follows_the_changed_rule(tmp_path):
  """A flip stays a flip or becomes a flop, whatever the turn and colours."""
  path = write(tmp_path / 'a.jsonl', [puzzle('a'), puzzle('b', kind='flop')])
  task = make(path, versions=20, heldout_share=0.0)
  assert len(task.train) > 30
  for problem in task.train:
    pairs, (test,) = grids_of(problem.text)
    pairs.append((test, problem.info[0]))
    assert all([row[::-1] for row in a] == b for a, b in pairs) or all(
        a[::-1] == b for a, b in pairs)


def test_folders_and_lists_have_the_same_tasks(source, tmp_path):
  found = arc.read(source)
  rows = [json.loads(line) for line in open(source)]
  folder = tmp_path / 'training'
  folder.mkdir()
  for row in rows:
    name = row.pop('id')
    (folder / f'{name}.json').write_text(json.dumps(row))
    row['id'] = name
  assert arc.read(str(folder)) == found
  (tmp_path / 'all.json').write_text(json.dumps(rows))
  assert arc.read(str(tmp_path / 'all.json')) == found
  with gzip.open(tmp_path / 'all.jsonl.gz', 'wt') as file:
    file.writelines(json.dumps(row) + '\n' for row in rows)
  assert arc.read(str(tmp_path / 'all.jsonl.gz')) == found


BAD = {
    'no train': ({'id': 'x', 'test': []},
                 "field 'train' is not a list of pairs of grids."),
    'empty test': ({**puzzle('x'), 'test': []},
                   "field 'test' is not a list of pairs of grids."),
    'no id': ({k: v for k, v in puzzle('x').items() if k != 'id'},
              "the id '' is not a text."),
    'a number as id': ({**puzzle('x'), 'id': 5}, 'the id 5 is not a text.'),
    'a hidden output': ({**puzzle('x'), 'test': [{'input': [[1]]}]},
                        "pair 1 of 'test' has no output."),
    'a pair that is none': ({**puzzle('x'), 'train': [[1]]},
                            "pair 1 of 'train' has no input."),
    'ragged': ({**puzzle('x'), 'train': [{'input': [[1], [1, 2]],
                                          'output': [[1]]}]},
               "the input of pair 1 of 'train' has rows of different lengths."),
    'a colour': ({**puzzle('x'), 'test': [{'input': [[1]], 'output': [[10]]}]},
                 "the output of pair 1 of 'test' has the colour 10, not a "
                 'whole number from 0 to 9.'),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_rows_get_one_sentence(tmp_path, name):
  row, said = BAD[name]
  path = write(tmp_path / 'a.jsonl', [puzzle('good'), row])
  with pytest.raises(ValueError) as error:
    make(path)
  assert str(error.value) == f'{path}, line 2: {said}'


def test_all_bad_rows_are_told_at_once(tmp_path):
  rows = [row for row, _ in BAD.values()]
  path = write(tmp_path / 'a.jsonl', [puzzle('x'), *rows, puzzle('x')])
  with pytest.raises(ValueError, match=(
      f'^{path} has 9 bad rows: line 2: .*; and 4 more.$')):
    make(path)
  again = write(tmp_path / 'b.jsonl', [puzzle('x'), puzzle('x')])
  with pytest.raises(ValueError) as error:
    make(again)
  assert str(error.value) == (
      f"{again}, line 2: the id 'x' is there already.")


def test_bad_folders_and_files(source, tmp_path):
  with pytest.raises(ValueError, match=r'has no file \*.json, one for each'):
    make(str(tmp_path))
  (tmp_path / 'x.json').write_text('{')
  (tmp_path / 'y.json').write_text('[]')
  with pytest.raises(ValueError) as error:
    make(str(tmp_path))
  assert 'not valid JSON' in str(error.value)
  assert '[] is not an object with train and test' in str(error.value)
  with pytest.raises(ValueError, match='There is no file /.*/none.jsonl'):
    make('none.jsonl')
  other = write(tmp_path / 'other.jsonl', [puzzle('own01', kind='flop')])
  with pytest.raises(ValueError, match='the task own01 differs'):
    make(source, other)


def test_bad_options(source):
  with pytest.raises(ValueError, match='task.template=.* is not a known'):
    make(source, template='chatt')
  with pytest.raises(ValueError, match='needs a way to make them'):
    make(source, versions=2, turns=False, recolour='none')
  with pytest.raises(ValueError, match='needs the tokeniser of a model'):
    tasks.get('arc', path=(source,))
  with pytest.raises(ValueError, match='is left to train on'):
    make(source, largest=1)


def test_long_prompts_are_counted_and_left_out(source, caplog):
  """By the machinery of all tasks, in an evaluation."""
  letters = dict.fromkeys(''.join(p.text for p in make(source).train))
  tokenizer = CharTokenizer(''.join({**letters, **dict.fromkeys(
      '0123456789Test outpus:Write the 2 in this order, with an empty line '
      'between them.')}))
  task = tasks.get('arc', tokenizer, path=(source,), template='none',
                   tests='together')
  lengths = sorted(len(p.prompt) for p in task.load(source))
  assert lengths[-3] < lengths[-2]
  config = types.SimpleNamespace(
      max_prompt=lengths[-3], task=types.SimpleNamespace(name='arc'))
  parts = types.SimpleNamespace(task=task, config=config)
  sets, left_out = evaluate.problem_sets(parts, [source])
  assert left_out == 2 and len(*sets.values()) == 18
  assert '2 of 20 problems, whose prompts have more than max_prompt=' in (
      caplog.text)


def test_ids_stay_distinct_where_hashes_meet(source, monkeypatch):
  real = sets.zlib.crc32
  monkeypatch.setattr(sets.zlib, 'crc32', lambda data: real(data) % 64)
  ids = [p.id for p in make(source).train]
  assert len(ids) > 15 and len({*ids}) == len(ids)
