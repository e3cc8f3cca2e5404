r"""Tests of mathematical problems: ids, held-out sets and verdicts.

Some solutions of our own are always judged. The reference solutions of GSM8K
and MATH-500 are judged if they are in ../shared/data.
"""

import dataclasses
import json
import pathlib
import random
import types

import pytest

from jaxrl_llm import answers, config, evaluate, rewards, tasks
from jaxrl_llm.tasks import math, references

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data'
TOKENIZER = types.SimpleNamespace(
    start='', chat=lambda text: f'<user>{text}<model>')

# Problem, answer, solution.
BOXED = [
    ('Solve $2x = 1$.', r'\frac{1}{2}', r'Halve: $x = \boxed{\frac{1}{2}}$.'),
    ('Write one half.', '0.5', r'It is $\boxed{\dfrac12}$.'),
    ('Expand $(x+1)^2$.', 'x^2+2x+1', r'First $\boxed{x}$, then '
     r'$\boxed{1 + 2x + x^2}$ in all.'),
    ('Where do they meet?', r'\left( 3, \frac{\pi}{2} \right)',
     r'At $\boxed{(3,\tfrac{\pi}{2})}$.'),
    ('How many grains?', r'12,\!345', r'$\boxed{12345}$ grains'),
    ('When is $x^2 \\le 4$?', '[-2,2]', r'For $x \in \boxed{[-2, 2]}$.'),
    ('Solve $x^2 = 4$.', '-2, 2', r'The roots are $\boxed{2,-2}$.'),
    ('Who wins?', r'\text{Ann}', r'\boxed{Ann} does.'),
    ('Turn it.', r'\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}',
     r'\[\boxed{\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}}.\]'),
    ('Which angle?', r'60^\circ', r'$\angle A = \boxed{60^\circ}$'),
    ('How likely?', r'25\%', r'It is $\boxed{\frac{1}{4}}$.'),
    ('Diagonal?', r'3\sqrt{2}', r'$\sqrt{18} = \boxed{3 \sqrt 2}$'),
    ('Sum?', '5', r'$2 + \boxed{3}$, no, $\boxed{5}.$ {'),
]
NUMBERS = [
    ('3 apples and 4?', '7', '3 + 4 = <<3+4=7>>7 apples\n#### 7'),
    ('How much?', '1234', 'It is $1,234.\n#### 1,234'),
    ('How cold?', '-3', '2 - 5 = -3\n#### -3'),
    ('Half of 5?', '2.5', '#### 2.50'),
]


def write(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def numbered(count):
  return [{'problem': f'What is {i} + 1?', 'answer': i + 1}
          for i in range(count)]


def make(*paths, tokenizer=TOKENIZER, **options):
  return tasks.get('math', tokenizer, path=paths, **options)


def prompts(problems):
  return [p.prompt for p in problems]


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  """A task with workers, shared by the tests that judge."""
  path = write(tmp_path_factory.mktemp('task') / 'a.jsonl', numbered(3))
  task = make(path, heldout_count=1, workers=2)
  yield task
  task.close()


def judged(task, answers, responses, take='boxed'):
  """Returns the kinds of the task's verdicts."""
  task.options = dataclasses.replace(task.options, take=take)
  problems = [tasks.Problem(0, '', '', info=references.reference(a))
              for a in answers]
  verdicts = rewards.verify_all(
      task, problems, responses, [False] * len(problems))
  for v in verdicts:
    assert v.valid and v.reward == (v.kind == 'correct')
  return [v.kind for v in verdicts]


def data(name):
  """Reads (problem, answer, solution) of a data set, [] if there is no file."""
  rows = math.problem_files.rows(str(DATA / f'{name}.jsonl.gz'))
  return [(r['problem'], str(r['answer']), r.get('solution', ''))
          for _, r in rows] if DATA.is_dir() else []


@pytest.mark.long
@pytest.mark.parametrize('take, share, own, sets', [
    ('boxed', 0.99, BOXED, ['math500']),
    ('number', 1.0, NUMBERS, ['gsm8k_train', 'gsm8k_test'])])
def test_reference_solutions_verify(task, take, share, own, sets):
  for rows in (own, *map(data, sets)):
    _, answers, solutions = zip(*rows) if rows else ((), (), ())
    kinds = judged(task, answers, solutions, take)
    least = len(rows) if rows is own else share * len(rows)
    assert kinds.count('correct') >= least, [
        r for r, kind in zip(rows, kinds) if kind != 'correct']
    texts = [rf'It is $\boxed{{{a}}}$.' for a in answers]
    assert set(judged(task, answers, texts)) <= {'correct'}
    # A solution stands for its answer.
    assert set(judged(task, solutions[:500], texts[:500])) <= {'correct'}


@pytest.mark.long
def test_answers_of_other_problems_do_not_verify(task):
  """Of those that are not the same by the letter, less than 2 percent do."""
  rng = random.Random(0)
  for rows, count in ((BOXED, 150), (data('math500'), 1000)):
    forms = [answers.normal(a) for _, a, _ in rows]
    pairs = [rng.sample(forms, 2) for _ in range(count)] if rows else []
    pairs = [(a, b) for a, b in pairs if a != b]
    kinds = judged(task, [a for a, _ in pairs],
                   [rf'\boxed{{{b}}}' for _, b in pairs])
    wrong = [p for p, kind in zip(pairs, kinds) if kind == 'correct']
    # 1/2 is written twice among our own.
    wrong = [p for p in wrong if rows is not BOXED or not (
        {*p} <= {r'\frac{1}{2}', '1/2'})]
    assert len(wrong) <= 0.02 * len(pairs) and (rows is not BOXED or not wrong)


def test_verdicts(task):
  problem = tasks.Problem(0, '', '', info='2')
  task.options = dataclasses.replace(task.options, take='boxed')
  for text, want in {
      r'\boxed{2.0}': rewards.Verdict(1.0, 'correct', True, '2.0', '2'),
      r'\boxed{3}': rewards.Verdict(0.0, 'wrong', True, '3', '3'),
      '2': rewards.Verdict(0.0, 'no_answer', True, '', '')}.items():
    assert task.verify(problem, text, False) == want
    assert task.verify(problem, text, True) == want


@pytest.mark.parametrize('kind, valid', [('timeout', True), ('error', False)])
def test_a_slow_answer_is_wrong_and_a_failure_is_missing(
    task, monkeypatch, kind, valid):
  reply = types.SimpleNamespace(
      result=lambda: {'kind': kind, 'detail': 'so it is', 'trace': 'line 3'})
  monkeypatch.setattr(
      task, '_pool', types.SimpleNamespace(submit=lambda item: reply))
  verdict = task.verify(task.train[0], '', False)
  assert verdict == rewards.Verdict(
      0.0, kind, valid, 'so it is', '', 'line 3')


def test_the_options_reach_the_pool(tmp_path, monkeypatch):
  made, asked = [], []

  def pool(*args, **kwargs):
    made.append([args, kwargs])
    return types.SimpleNamespace(submit=asked.append)

  monkeypatch.setattr(math, 'Pool', pool)
  path = write(tmp_path / 'a.jsonl', numbered(2))
  task = make(path, heldout_count=1, workers=3, timeout=1.5, take='either',
              tolerance=0.01, any_order=True)
  task.submit(task.train[0], 'text', False)
  assert made == [[('jaxrl_llm.rewards.math:judge',),
                   dict(seconds=1.5, workers=3)]]
  assert asked == [dict(
      answer=task.train[0].info, response='text', take='either',
      tags=('think',), tolerance=0.01, any_order=True)]
  task = make(path, heldout_count=1)
  assert len(made) == 1  # none before there is something to judge
  for _ in range(2):
    task.submit(task.train[0], 'text', False)
  assert len(made) == 2
  assert 1 <= made[1][1]['workers'] <= 8 and made[1][1]['seconds'] == 5.0


@pytest.mark.parametrize('text, want', [
    ('5', '5'), (' x = 5 ', 'x = 5'), (r'So \boxed{ 5 }.', '5'),
    ('3 + 4 = 7\n#### 7', '7'), ('#### 1,234', '1234'), ('####-3', '-3'),
    ('#### 1 #### 2', '2'), (r'\boxed{5} #### 6', '5'), ('#### no', 'no'),
    (r'#### \frac{1}{2}', r'\frac{1}{2}'), ('#### x+1', 'x+1'),
    ('#### 10^6', '10^6'), ('#### 1 1/2', '1 1/2'), ('#### (1, 2)', '(1, 2)'),
    ('#### 5:30', '5:30'), ('#### 2x', '2x'), ('#### $1,234.50.', '1234.50'),
    ('#### 12 apples', '12'), ('#### 50%', '50'), ('#### −3', '-3')])
def test_references(text, want):
  assert references.reference(text) == want


def test_fields_and_kinds(tmp_path):
  path = write(tmp_path / 'grade.train.jsonl', [
      {'q': ' What? ', 'a': 'It is\n#### 5', 'type': 'easy', 'n': 3},
      {'q': 'How?', 'a': 0.5, 'type': 'hard', 'n': 4}])
  options = dict(heldout_count=0, problem='q', answer='a', template='none')
  assert [(p.prompt, p.info, p.kind) for p in make(path, **options).train] == [
      ('What?', '5', 'grade'), ('How?', '0.5', 'grade')]
  assert [p.kind for p in make(path, kind='type', **options).train] == [
      'easy', 'hard']
  assert [p.kind for p in make(path, kind='n', **options).train] == ['3', '4']
  chat = make(path, **{**options, 'template': 'chat'}).load(path)
  assert chat[0].prompt.startswith('<user>What?\nPlease reason')
  assert chat[0].shown == 'What?'


def test_ids_name_the_problem_alone(tmp_path):
  rows = numbered(300)
  a = make(write(tmp_path / 'a.jsonl', rows), heldout_count=0)
  (tmp_path / 'b.json').write_text(json.dumps(
      [{'q': r['problem'] + ' ', 'answer': 0} for r in rows[::-1]]))
  b = make(str(tmp_path / 'b.json'), heldout_count=0, problem='q',
           template='none')
  ids = [p.id for p in a.train]
  assert ids == [p.id for p in b.train][::-1] and len(set(ids)) == 300
  assert all(type(i) is int and 0 <= i < 2**31 for i in ids)
  # CRC-32 of the text, without its lowest bit.
  found, = a.load(write(tmp_path / 'c.jsonl', [
      {'problem': '123456789', 'answer': 1}]))
  assert found.id == 0xCBF43926 >> 1


def test_held_out_problems_are_never_trained_on(tmp_path):
  path = write(tmp_path / 'a.jsonl', numbered(200))
  task = make(path, heldout_count=40)
  train, heldout = prompts(task.train), prompts(task.heldout)
  assert (len(train), len(heldout)) == (160, 40)
  assert sorted(train + heldout) == sorted(prompts(task.load(path)))
  assert train == [p for p in prompts(task.load(path)) if p not in heldout]


def test_held_out_problems_know_their_file_among_several(tmp_path):
  rows = numbered(9)
  (tmp_path / 'x').mkdir()
  train, a, b, same = (write(tmp_path / name, part) for name, part in (
      ('train.jsonl', rows[:3]), ('a.jsonl', rows[3:5]),
      ('b.v2.jsonl', rows[5:7]), ('x/a.jsonl', rows[7:])))
  names = lambda *files: [p.source for p in make(train, heldout=files).heldout]
  assert names(a) == names(a, a) == ['', '']
  assert names(a, b) == ['a', 'a', 'b', 'b']
  assert names(a, b, same) == [a, a, 'b', 'b', same, same]
  task = make(train, a, heldout_count=4)  # of files to train on
  assert {p.source for p in task.train + task.heldout} == {''}
  # A problem of two files is the first one's, whatever the template.
  both = write(tmp_path / 'both.jsonl', rows[4:6])
  assert names(a, both) == ['a', 'a', 'both']


def test_the_held_out_choice_is_stable(tmp_path):
  rows = numbered(200)
  path = write(tmp_path / 'a.jsonl', rows)
  chosen = prompts(make(path, heldout_count=40).heldout)
  assert chosen == prompts(make(path, heldout_count=40).heldout)
  assert chosen == prompts(make(
      write(tmp_path / 'b.jsonl', rows[::-1]), heldout_count=40).heldout)
  assert chosen[:10] == prompts(make(path, heldout_count=10).heldout)
  other = prompts(make(path, heldout_count=40, seed=1).heldout)
  assert len({*chosen} & {*other}) < 20  # 8 by luck
  # A tenth more problems push a few out, and move none into training else.
  more = make(write(tmp_path / 'c.jsonl', numbered(220)), heldout_count=40)
  assert len({*chosen} & {*prompts(more.heldout)}) > 30


def test_held_out_files(tmp_path):
  rows = numbered(30)
  train = write(tmp_path / 'a.jsonl', rows)
  new = {'problem': 'New?', 'answer': '1'}
  heldout = [write(tmp_path / 'b.jsonl', rows[20:25] + [new]),
             write(tmp_path / 'c.jsonl', rows[:2])]
  task = make(train, heldout=heldout, heldout_count=7)
  assert len(task.heldout) == 8 and len(task.train) == 23
  assert not {*prompts(task.train)} & {*prompts(task.heldout)}
  only = make(heldout=heldout)
  assert not only.train and prompts(only.heldout) == prompts(task.heldout)


def test_a_problem_that_comes_again_counts_once(tmp_path):
  rows = numbered(10)
  again = [{'problem': f' {r["problem"]}\n', 'answer': f'{r["answer"]}.0'}
           for r in rows]
  a = write(tmp_path / 'a.jsonl', rows + rows[::-1] + again)
  b = write(tmp_path / 'b.jsonl', again)
  task = make(a, b, heldout_count=4)
  assert len({*prompts(task.train + task.heldout)}) == 10
  assert (len(task.train), len(task.heldout)) == (6, 4)
  assert all('.' not in p.info for p in task.train + task.heldout)
  # A file that is evaluated stays what it is.
  assert len(task.load(a)) == 30
  c = write(tmp_path / 'c.jsonl', again[:3] * 2)
  twice = make(a, heldout=(c, c))
  assert (len(twice.train), len(twice.heldout)) == (7, 3)


def test_one_problem_with_two_answers_is_refused(tmp_path):
  same = [{'problem': 'x?', 'answer': a} for a in ('x+1', '1+x', '$x + 1$')]
  a = write(tmp_path / 'a.jsonl', same + numbered(3))
  assert len(make(a, heldout_count=0).train) == 4
  b = write(tmp_path / 'b.jsonl', [{'problem': 'x?', 'answer': 'x+2'}])
  with pytest.raises(ValueError) as error:
    make(a, b, heldout_count=0)
  assert str(error.value) == (
      f"{b}, line 1: the answer 'x+2' differs from 'x+1' in {a}, line 1, which "
      'has the same problem: remove one of them.')


@pytest.mark.parametrize('answer', [
    r'\boxed{}', r'\boxed{ }', r'It is \boxed{5', r'\boxed{5} \boxed{',
    r'\boxed{\text{}}', '$$', 'So it is\n#### ', '.'])
def test_a_missing_reference_is_an_error(tmp_path, answer):
  path = write(
      tmp_path / 'a.jsonl', numbered(1) + [{'problem': 'x', 'answer': answer}])
  if answer == r'\boxed{5} \boxed{':  # the last complete box counts
    assert make(path, heldout_count=0).train[1].info == '5'
    return
  with pytest.raises(ValueError, match='line 2: the answer .* is empty'):
    make(path)


def test_references_that_cannot_be_read_are_a_warning(tmp_path, caplog):
  good = [r'\frac{1}{2}', '1.5e3', r'\text{Bob, Alice}', '10:30', '[1,2)',
          r'\log_2 5', r'\begin{pmatrix}1\\2\end{pmatrix}', '2x+3y=5']
  bad = [r'\frac{1}{', r'x+\frac{1}{0}', r'6,\ldots,-2', r'\ge 5',
         'any number that is larger than the sum of both',
         'no real solutions exist here', r'3,\text{one that is not so small}',
         '10^{10^{10}}']

  def make_file(answers):
    rows = [{'problem': f'p {i}', 'answer': a} for i, a in enumerate(answers)]
    return write(tmp_path / 'a.jsonl', rows)

  make(make_file(good), heldout_count=0)
  assert not caplog.records
  path = make_file(good + bad)
  make(path, heldout_count=0)
  told, = [r.getMessage() for r in caplog.records]
  assert f'8 of 16 ({path}, line 9: ' in told and 'line 10' in told
  assert told.count(path) == 3 and '\n' not in told


def test_unreadable_references_are_told_once_wherever_they_are(
    tmp_path, caplog):
  bad = {'problem': 'x?', 'answer': r'\frac{1}{'}
  rows = numbered(3) + [bad, bad]  # one that is repeated is told, too
  train = write(tmp_path / 'a.jsonl', rows)
  held = write(tmp_path / 'b.jsonl', [bad])
  task = make(train, heldout=(held,))
  told, = [r.getMessage() for r in caplog.records
           if r.getMessage().startswith('Answers that cannot be read')]
  assert f'3 of 6 ({train}, line 4' in told and held in told
  caplog.clear()
  task.load(held)
  assert '1 of 1' in caplog.text


def test_problems_of_one_hash_have_two_ids(tmp_path):
  """And the other problems have the ids that they have without the two."""
  pair = [{'problem': text, 'answer': 1} for text in (
      'Add 19845014 and 2506.', 'What is 910270 squared?')]
  path = write(tmp_path / 'a.jsonl', pair + numbered(20))
  task = make(path, heldout_count=0)
  assert len({p.id for p in task.train}) == 22
  alone = make(write(tmp_path / 'b.jsonl', numbered(20)), heldout_count=0)
  assert task.train[2:] == [dataclasses.replace(p, kind='a')
                            for p in alone.train]
  back = make(write(tmp_path / 'a.jsonl', pair[::-1] + numbered(20)),
              heldout_count=0)
  assert {p.text: p.id for p in back.train} == {
      p.text: p.id for p in task.train}
  for count in range(1, 21):
    task = make(path, heldout_count=count)
    assert (len(task.heldout), len(task.train)) == (count, 22 - count)
  # A held-out problem keeps the id that it has without those to train on.
  files = [write(tmp_path / f'{i}.jsonl', pair[i:i + 1]) for i in range(2)]
  task = make(files[0], heldout=files[1:])
  assert task.heldout[0].id == make(heldout=files[1:]).heldout[0].id
  assert task.train[0].id != task.heldout[0].id


def test_rows_of_one_prompt_are_problems_of_a_reward_function(
    tmp_path, caplog):
  """Whatever column differs; and rows that are equal count once."""
  (tmp_path / 'r.py').write_text(
      'def r(completions, secret, **_):\n'
      '  return [float(str(s) in c) for s, c in zip(secret, completions)]\n')
  reward = (f'{tmp_path}/r.py:r',)
  rows = [{'prompt': 'Guess.', 'secret': s, 'of': {'b': 1, 'a': s}}
          for s in (1, 2, '2', 2.0, None)]
  again = {'of': {'a': 2, 'b': 1}, 'secret': 2, 'prompt': 'Guess.'}
  path = write(tmp_path / 'a.jsonl', [*rows, again])
  task = make(path, heldout_count=0, reward=reward)
  assert [p.info.columns['secret'] for p in task.train] == [
      1, 2, '2', 2.0, None]
  assert len({p.id for p in task.train}) == 5
  assert '1 of 6 problems, which are repeated' in caplog.text
  chosen = make(path, heldout_count=2, reward=reward)
  assert len(chosen.train) == 3 and {p.id for p in task.train} == {
      p.id for p in (*chosen.train, *chosen.heldout)}
  # Only the rows of the held-out file leave the training set.
  held = write(tmp_path / 'b.jsonl', [*rows[:1], {**again, 'secret': 9}])
  task = make(path, heldout=(held,), reward=reward)
  assert (len(task.train), len(task.heldout)) == (4, 2)
  task.tokenizer = types.SimpleNamespace(**vars(TOKENIZER), encode=list)
  parts = types.SimpleNamespace(task=task, config=types.SimpleNamespace(
      max_prompt=100, task=types.SimpleNamespace(name='math')))
  sets, _ = evaluate.problem_sets(parts, [path])
  assert len({p.id for p in sets[path]}) == 5


def test_prompts_in_both_sets_are_told(tmp_path, caplog):
  (tmp_path / 'r.py').write_text('def r(completions, **_):\n  return [1.0]\n')
  rows = [{'prompt': f'{i}?', 'n': 1} for i in range(4)]
  a = write(tmp_path / 'a.jsonl', rows)
  b = write(tmp_path / 'b.jsonl', [{**row, 'n': 2} for row in rows[:3]])
  task = make(a, heldout=(b,), reward=(f'{tmp_path}/r.py:r',))
  assert len(task.train) == 4
  assert '3 of the 4 training problems' in caplog.text


@pytest.mark.parametrize('row, match', [
    ({'problm': 'x', 'answer': 1}, "no field 'problem'. Did you mean 'problm'"),
    ({'problem': 'x'}, "no field 'answer'.*Known: problem. Set config.task"),
    ({'problem': '', 'answer': 1}, "'problem' is empty"),
    ({'problem': ' \n', 'answer': 1}, "'problem' is empty"),
    ({'problem': 'x', 'answer': None}, "'answer' is empty"),
    ({'problem': 'x', 'answer': float('nan')}, "'answer' is empty"),
    ({'problem': 'x', 'answer': ['1']}, r"'answer' is \['1'\], not a text"),
    ({'problem': 'x', 'answer': True}, "'answer' is True, not a text"),
    ({'problem': {'a': 1}, 'answer': 1}, "'problem' is {'a': 1}, not a text"),
    ({'problem': 'x\ud800', 'answer': 1}, "'problem' is not valid text"),
])
def test_a_bad_row_is_named(tmp_path, row, match):
  path = write(tmp_path / 'a.jsonl', numbered(2) + [row])
  with pytest.raises(ValueError, match=match) as error:
    make(path)
  said = str(error.value)
  assert said.startswith(f'{path}, line 3: ') and '\n' not in said


def test_a_kind_that_is_missing_is_named(tmp_path):
  path = write(tmp_path / 'a.jsonl', numbered(1))
  with pytest.raises(ValueError, match="line 1: there is no field 'level'"):
    make(path, kind='level')


@pytest.mark.parametrize('options, match', [
    (dict(template='chatt'), "task.template='chatt'.*Did you mean 'chat'"),
    (dict(heldout_count=3), 'held out: lower task.heldout_count=3'),
    (dict(pth=()), "no option 'pth'. Did you mean 'path'"),
    (dict(tokenizer=None), 'set config.model.hf'),
])
def test_bad_options(tmp_path, options, match):
  given = dict(tokenizer=TOKENIZER, path=(
      write(tmp_path / 'a.jsonl', numbered(3)),))
  with pytest.raises(ValueError, match=match):
    tasks.get('math', **{**given, **options})


@pytest.mark.parametrize('field, value, match', [
    ('take', 'box', "task.take=box is not known.*Known: boxed, number"),
    ('tolerance', -0.1, r'task.tolerance=-0.1 must lie in \[0, 1\)'),
    ('tolerance', 1, r'task.tolerance=1.0 must lie in'),
    ('tolerance', float('nan'), r'task.tolerance=nan must be a number'),
    ('timeout', 0.0, r'task.timeout=0.0 must lie in \(0, 86400\]'),
    ('workers', -1, 'task.workers=-1 must lie in'),
    ('heldout_count', -1, 'task.heldout_count=-1 must lie in'),
])
def test_options_out_of_range(field, value, match):
  with pytest.raises(ValueError, match=match) as error:
    config.complete(
        config.base(), {'task': 'math', f'task.{field}': value}, 'name')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('field, value', [
    ('tolerance', 0.1), ('any_order', True),
    ('reward', ('tests.tasks.bad_rows_test:give_zeros',))])
def test_options_without_a_meaning_to_math_verify(field, value):
  with pytest.raises(ValueError, match=f'task.{field}=.*means nothing to '
                     'task.judge=math_verify: leave'):
    make('none.jsonl', judge='math_verify', **{field: value})


def test_an_empty_file(tmp_path):
  with pytest.raises(ValueError, match='a.jsonl has no problems'):
    make(write(tmp_path / 'a.jsonl', []))


@pytest.mark.parametrize('prompt, text, want', [
    ('Add.', r'<think>\boxed{2}', 'no_answer'),
    ('Add.', r'<think>\boxed{3}</think>\boxed{2}', 'correct'),
    ('Add.\n<think>\n', r'\boxed{2}', 'no_answer'),
    ('Add.\n<think>\n', r'\boxed{3}</think>\boxed{2}', 'correct'),
    ('Add.\n<think>\n', r'\boxed{2}</think>\boxed{3}', 'wrong'),
    ('Add.', r'\boxed{2}', 'correct')])
def test_reasoning_is_not_judged_whoever_opens_it(
    task, monkeypatch, prompt, text, want):
  monkeypatch.setattr(task, '_pool', types.SimpleNamespace(
      submit=lambda item: types.SimpleNamespace(
          result=lambda: answers.judge(item))))
  problem = tasks.Problem(0, prompt, '', info='2')
  task.options = dataclasses.replace(task.options, take='boxed')
  assert task.verify(problem, text, False).kind == want
