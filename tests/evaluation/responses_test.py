"""Tests of responses on disk, which are the same after interruptions."""

import dataclasses
import itertools
import json
import resource
import shutil
import types

import numpy as np
import pytest

from jaxrl_llm.evaluation import heldout, responses
from jaxrl_llm.loop import rollout
from jaxrl_llm.monitoring import exits, progress
from jaxrl_llm.prepare import build
from jaxrl_llm.rewards import Verdict
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import Requests
from tests.helpers import tiny

SAMPLES = 5
PROMPTS = ['1,2>3:', '4,5>9:', '7,2>5:', '1,1>2:', '3,9>6:', '2,2>4:']
FILES = {'a': PROMPTS[:5], 'b': PROMPTS[3:]}  # two are in both


def load(name):
  return [Problem(100 + PROMPTS.index(prompt), prompt, name, info=len(prompt))
          for prompt in FILES[name]]


def verify(problem, text, truncated):
  """Verifier with the first character as the answer; it sometimes fails."""
  if len(text) % 7 == 3:
    raise RuntimeError('no sandbox')
  return Verdict(float(len(text) % 2), 'odd' if len(text) % 2 else 'even',
                 answer=text[:1], detail=f'{problem.kind} {truncated}')


def collect(
    watched, path, sets=None, samples=SAMPLES, display=None, **changes):
  """Collects responses; also returns those that were sampled, by problem id."""
  watched.rollouts.clear()
  parts = tiny.changed(watched.parts, **changes)
  _, _, weights = tiny.begin(parts)
  got = responses.collect(
      path, parts, responses.ResponseSource(
          weights, parts.sampling(), heldout.NOISE),
      sets or {name: load(name) for name in FILES}, samples=samples,
      display=display or progress.Display('', show=False))
  sampled = [pair for r in watched.rollouts
             for pair in zip(r.problem_id.tolist(), r.sample.tolist())]
  return got, sampled


def lines(path):
  return sorted(path.read_bytes().splitlines(keepends=True))


@pytest.fixture(scope='module')
def watched(parts):
  return tiny.watch(parts, verify)


@pytest.fixture(scope='module')
def whole(watched, tmp_path_factory):
  """Responses collected without an interruption, and their file."""
  path = tmp_path_factory.mktemp('whole') / 'responses.jsonl'
  got, sampled = collect(watched, path)
  # 40 responses, no more than 16 and 4 problems at a time.
  assert [len(r.length) for r in watched.rollouts] == [16, 16, 8]
  assert len(sampled) == 40
  return got, path


def test_each_response_is_what_it_is_by_itself(watched, whole):
  """Against one call of the sampler for each, and the verifier by hand."""
  got, path = whole
  parts = watched.parts
  _, _, weights = tiny.begin(parts)
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  expected = [(name, prompt, n) for name, prompts in FILES.items()
              for prompt in prompts for n in range(SAMPLES)]
  assert [(r['file'], r['prompt'], r['sample']) for r in rows] == expected
  kept = [r for found in got.values() for row in found for r in row]
  for row, kept_row in zip(rows, kept, strict=True):
    name = row['file']
    problem = next(p for p in load(name) if p.prompt == row['prompt'])
    one, _ = parts.sample(
        weights, rollout.encode([problem], parts.task.tokenizer, 9),
        Requests(*(np.array([x], np.int32) for x in (0, row['sample'], 10))),
        parts.step_key(np.uint32(heldout.NOISE)), parts.sampling(),
        policy_step=0)
    text, = rollout.decode(one, parts.task.tokenizer)
    assert row['response'] == text
    assert (row['tokens'], row['truncated']) == (one.length, one.truncated)
    assert (row['problem_id'], row['kind']) == (problem.id, name)
    if len(text) % 7 == 3:
      assert (row['verdict'], row['valid']) == ('error', False)
      assert 'no sandbox' in row['detail']
    else:
      assert row['valid'] and row['answer'] == text[:1]
      assert row['reward'] == len(text) % 2
      assert row['verdict'] == ('odd' if len(text) % 2 else 'even')
      assert row['detail'] == f'{name} {one.truncated[0]}'
    assert kept_row == responses.ResponseRecord(
        *(row[name] for name in responses.ResponseRecord._fields[:-1]))
  assert {r['valid'] for r in rows} == {r['truncated'] for r in rows} == {
      True, False}


def places(data):
  """Returns places to cut off a file: at the ends of lines and within them."""
  ends = [i + 1 for i, byte in enumerate(data) if byte == ord('\n')]
  return [0, 1, ends[0] - 1, ends[0], ends[0] + 1, ends[11] + 40, ends[15],
          ends[20] - 1, ends[-2] + 30, len(data) - 1, len(data)]


def test_a_cut_off_file_is_completed_to_the_bit(watched, whole, tmp_path):
  got, path = whole
  data = path.read_bytes()
  for end in places(data):
    torn = tmp_path / f'{end}.jsonl'
    torn.write_bytes(data[:end])
    there = data[:end].count(b'\n')
    again, sampled = collect(watched, torn)
    assert again == got
    assert lines(torn) == lines(path)
    assert len(sampled) == 40 - there


def test_each_call_is_on_disk_before_the_next_but_one(
    watched, whole, tmp_path):
  """A process that is killed loses two calls at most; here, the third one
  fails, of calls too small to fill a buffer."""
  got, path = whole
  part, calls = tmp_path / 'responses.jsonl', []
  small = watched.parts.programs.sampler._replace(
      max_prompts=1, max_requests=4)

  def sample(*args, **kwargs):
    calls.append(part.read_bytes())
    if len(calls) == 3:
      raise KeyboardInterrupt
    return watched.parts.sample(*args, **kwargs)

  with pytest.raises(KeyboardInterrupt):
    collect(watched, part, sample_policy=sample, sampler=small)
  assert [data.count(b'\n') for data in calls] == [0, 0, 4]
  again, sampled = collect(watched, part)
  assert len(sampled) == 36
  assert again == got and lines(part) == lines(path)


def test_a_line_that_was_deleted_is_made_again(watched, whole, tmp_path):
  got, path = whole
  part = tmp_path / 'responses.jsonl'
  data = path.read_bytes().splitlines(keepends=True)
  part.write_bytes(b''.join(data[:6] + data[7:]))
  again, sampled = collect(watched, part)
  assert sampled == [(101, 1)]
  assert again == got and lines(part) == lines(path)


def test_what_is_there_serves_other_numbers_and_files(
    watched, whole, tmp_path):
  got, path = whole
  grown = tmp_path / 'responses.jsonl'
  # One file and three samples, both files and two, then all.
  _, sampled = collect(watched, grown, {'b': load('b')}, samples=3)
  assert sampled == [(103 + p, n) for p in range(3) for n in range(3)]
  found, sampled = collect(watched, grown, samples=2)
  assert sampled == [(100 + p, n) for p in range(5) for n in range(2)]
  assert found == {name: [row[:2] for row in rows]
                   for name, rows in got.items()}
  _, sampled = collect(watched, grown)
  assert sampled == [(100 + p, n) for p in range(5) for n in (2, 3, 4)] + [
      (103 + p, n) for p in range(3) for n in (3, 4)]
  assert lines(grown) == lines(path)
  before = grown.read_bytes()
  found, sampled = collect(watched, grown, {'a': load('a')}, samples=4)
  assert found == {'a': [row[:4] for row in got['a']]} and not sampled
  assert grown.read_bytes() == before


@pytest.mark.parametrize('change', [
    dict(prompt='1,2>4:'), dict(kind='c'), dict(answer='7'), dict(info='7')])
def test_a_problem_that_was_changed_is_done_again(
    watched, whole, tmp_path, change):
  path = tmp_path / 'responses.jsonl'
  path.write_bytes(whole[1].read_bytes())
  problems = load('a')
  problems[1] = Problem(**{**vars(problems[1]), **change})
  got, sampled = collect(watched, path, {'a': problems})
  assert sampled == [(101, n) for n in range(SAMPLES)]
  assert got['a'][0] == whole[0]['a'][0]


@pytest.mark.parametrize('line', [
    b'{"file": "a", "problem_id": 100}\n', b'nothing\n', b'[]\n', b'\0\0\n',
    b'{"file": []}\n', b'[' * 100_000 + b'\n', dict(reward='x'),
    dict(reward=float('nan')), dict(reward=None), dict(tokens=1.5),
    dict(valid=1), dict(answer=None), dict(problem_id=[1])])
def test_a_line_that_is_no_response_is_named(watched, whole, tmp_path, line):
  path = tmp_path / 'responses.jsonl'
  first, *rest = whole[1].read_bytes().splitlines(keepends=True)
  if isinstance(line, dict):
    line = json.dumps(json.loads(first) | line).encode() + b'\n'
  data = first + line + b''.join(rest)
  path.write_bytes(data)
  with pytest.raises(ValueError, match='jsonl, line 2 is not a response'):
    collect(watched, path)
  assert path.read_bytes() == data


def test_judging_overlaps_with_sampling(watched, whole, tmp_path):
  """A call is handed to the judges at once, and awaited after the next."""
  events = []

  def submit(problem, text, truncated):
    events.append('submit')
    return lambda: events.append('wait') or verify(problem, text, truncated)

  def sample(*args, **kwargs):
    events.append('sample')
    return watched.parts.sample(*args, **kwargs)

  task = types.SimpleNamespace(**vars(watched.parts.task), submit=submit)
  got, _ = collect(
      watched, tmp_path / 'responses.jsonl', sample_policy=sample,
      task=task)
  assert got == whole[0]
  assert events == [
      'sample', *['submit'] * 16,
      'sample', *['submit'] * 16, *['wait'] * 16,
      'sample', *['submit'] * 8, *['wait'] * 16, *['wait'] * 8]


def test_progress_is_shown(watched, whole, tmp_path, monkeypatch):
  path = tmp_path / 'responses.jsonl'
  path.write_bytes(b''.join(whole[1].read_bytes().splitlines(True)[:10]))
  told = []

  class Display(progress.Display):

    def update(self, *args):
      told.append(args)
      super().update(*args)

  sets = {name: [
      dataclasses.replace(p, text=f'Reach {p.prompt}') for p in load(name)]
          for name in FILES}
  counts = tiny.counts(monkeypatch)
  collect(watched, path, sets, display=Display('', show=False))
  assert [row for row in counts if row[0] == 'evaluation'] == [
      ('evaluation', done, 40) for done in (26, 40)]
  # The second of two calls is sampled before the first is judged.
  assert [done for done, *_ in told] == [40, 40]
  rows = [json.loads(x) for x in path.read_text().splitlines()][26:]
  _, numbers, line = told[1]
  assert numbers['reward/mean'] == pytest.approx(
      np.mean([r['reward'] for r in rows if r['valid']]))
  assert numbers['response/length'] == np.mean([r['tokens'] for r in rows])
  assert numbers['speed/tokens_per_second'] > 0
  assert line.startswith(f'Reach {rows[0]["prompt"]}\n')
  assert line.endswith(f'{rows[0]["response"]}  [{rows[0]["verdict"]}]')


def test_an_evaluation_counts_responses_once_they_are_sampled(
    parts, monkeypatch):
  """4 responses to each of 6 problems and a greedy one, in calls for 4."""
  _, _, weights = tiny.begin(parts)
  counts = tiny.counts(monkeypatch)
  heldout.evaluate(parts, weights)
  assert [row for row in counts if row[0] == 'evaluation'] == [
      ('evaluation', done, 30) for done in (16, 24, 28, 30)]
  # The second call is sampled before the first is judged.
  names = [name for name, *_ in counts]
  assert names[:3] == ['evaluation', 'evaluation', 'verification']


def test_calls_cover_everything_once_within_what_fits():
  rng = np.random.default_rng(0)
  for _ in range(300):
    problems, samples, prompts, group = rng.integers(1, 13, 4)
    seen = []
    calls = list(responses.calls(
        [range(samples)] * problems, max_prompts=prompts,
        max_requests=prompts * group))
    for problem, sample in calls:
      assert len(problem) == len(sample) <= prompts * group
      assert len(set(problem.tolist())) <= prompts
      seen += zip(problem.tolist(), sample.tolist())
    assert seen == list(itertools.product(range(problems), range(samples)))
    # No more calls than a full sampler needs, but for one at the end.
    full = max(samples / (prompts * group), 1 / prompts) * problems
    assert len(calls) <= 2 * full + 1


def test_calls_hold_problems_that_want_equally_many():
  """Else a sampler on several shards has no room for so many prompts."""
  wanted = [[4], [3], [0, 2, 5], [1, 2, 4], [], [0, 2, 5]]
  got = [list(zip(p.tolist(), n.tolist())) for p, n in responses.calls(
      wanted, max_prompts=4, max_requests=4)]
  assert got == [
      [(0, 4), (1, 3)],
      [(2, 0), (2, 2), (2, 5), (3, 1)], [(3, 2), (3, 4)],
      [(5, 0), (5, 2), (5, 5)]]


def test_responses_by_a_real_pool_of_judges(parts, tmp_path):
  """The task of mathematics on a file of one's own."""
  from jaxrl_llm.tasks import math
  path = tmp_path / 'sums.jsonl'
  path.write_text(''.join(
      json.dumps({'problem': f'{n}+{n}=', 'answer': str(n)}) + '\n'
      for n in range(3)))
  task = math.create(
      parts.task.tokenizer,
      math.Options(template='none', take='number', workers=1))
  try:
    watched = tiny.Watched(parts._replace(task=task), [], [])
    sums, lengths = build.drop_long_prompts(
        task.load(str(path)), task.tokenizer, parts.config, 'sums')
    assert lengths == [len('0+0=')] * 3
    got, _ = collect(
        watched, tmp_path / 'responses.jsonl', {'sums': sums}, samples=16)
  finally:
    task.close()
  rows = [json.loads(line) for line in
          (tmp_path / 'responses.jsonl').read_text().splitlines()]
  assert len(rows) == 48 and len(got['sums']) == 3
  for row in rows:
    digits = any(c.isdigit() for c in row['response'])
    assert row['valid'] and row['kind'] == 'sums'
    assert (row['verdict'] == 'no_answer') == (not digits)
    # The last number's, which is the first one's that the prompt adds.
    right = row['answer'] == row['prompt'].partition('+')[0]
    assert (row['verdict'] == 'correct') == right == (row['reward'] == 1)
  assert {'no_answer', 'correct', 'wrong'} == {r['verdict'] for r in rows}


def test_names_and_texts_that_are_not_unicode(watched, tmp_path):
  """A file's name and a verdict's texts; what is there is found again."""
  path = tmp_path / 'responses.jsonl'
  odd = tiny.watch(watched.parts, lambda *_: Verdict(
      1.0, '\ud800', answer='\udfff', detail=object()))
  sets = {'a\udc80': load('a')[:2]}
  got, sampled = collect(odd, path, sets, samples=2)
  assert len(sampled) == 4
  rows = [json.loads(line) for line in path.read_bytes().splitlines()]
  assert {(r['file'], r['verdict'], r['answer']) for r in rows} == {
      ('a\ufffd', '\ufffd', '\ufffd')}
  assert collect(odd, path, sets, samples=2) == (got, [])


def test_a_removed_folder_is_noticed_at_the_next_call(watched, tmp_path):
  folder = tmp_path / 'evaluation'
  folder.mkdir()

  def verify(problem, text, truncated):
    shutil.rmtree(folder, ignore_errors=True)
    return Verdict(1.0, 'right')

  odd = tiny.watch(watched.parts, verify)
  with pytest.raises(FileNotFoundError, match='was removed during the eval'):
    collect(odd, folder / 'responses.jsonl')
  assert len(odd.rollouts) < 3


def test_a_full_disk_costs_no_whole_response(watched, whole, tmp_path):
  path = tmp_path / 'responses.jsonl'
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
  try:
    with pytest.raises(OSError) as error:
      collect(watched, path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert exits.sentence(error.value).startswith('The disk is full')
  there = path.read_bytes().count(b'\n')
  assert 0 < there < 40
  got, sampled = collect(watched, path)
  assert got == whole[0] and len(sampled) == 40 - there
  assert lines(path) == lines(whole[1])
