"""Tests of the page of a run: what it holds, and that no text breaks out."""

import base64
import gzip
import html.parser
import json
import re
import sys

import pytest

from jaxrl_llm.evaluation import page
from tests.helpers.planted import planted, write

EVIL = '</script><script>bad()</script><img src=x onerror=bad()>{{DATA}}<!--'


def data(text):
  """Returns what the script of a page would read."""
  packed = re.search(r'id="data">([^<]*)</script>', text)[1]
  return json.loads(gzip.decompress(base64.b64decode(packed)))


def responses(text):
  return data(text)['samples']['response']


def test_the_page_has_what_the_run_has(tmp_path):
  rows, samples = planted()
  samples[3] |= dict(
      advantage=1.23456789, token_chars=[2, 1], token_logprobs=[-.5, -1.0])
  folder = write(
      tmp_path / 'run', rows, samples, config={'seed': 3}, summary={
          'pass@1': {'start': .1, 'final': .7}, 'seconds': 60.0, 'steps': 40})
  run, = page.write([folder], tmp_path / 'out.html')
  got = data((tmp_path / 'out.html').read_text())
  known, = got['runs']
  assert run.name == known['name'] == 'run' and known['config'] == {'seed': 3}
  assert known['figures'] == {'pass@1': {'start': .1, 'final': .7}}
  assert known['done'] == {'steps': 40, 'seconds': 60.0}
  assert known['metrics']['step'] == [*range(1, 41)]
  assert known['metrics']['eval/pass@1'][8:10] == [None, rows[9]['eval/pass@1']]
  columns = got['samples']
  assert columns['response'] == [s['response'] for s in samples]
  assert columns['advantage'][2:4] == [None, 1.23457]
  for name in ('prompt', 'verdict', 'kind', 'reference'):
    assert [got['texts'][i] for i in columns[name]] == [
        s[name] for s in samples]
  assert got['tokens'] == {'3': [[2, 1], [-.5, -1.0], None]}


def test_evaluations_are_samples_too(tmp_path):
  folder = write(tmp_path / 'run', *planted(), evaluation=dict(
      step=40, responses='runs/run/evaluation/b/responses.jsonl'))
  row = dict(file='held-out', problem_id=7, kind='sums', prompt='p',
             response='later', sample=0, reward=1.0, verdict='correct')
  for name, weights, text in (('a', 'start', 'first'), ('b', 'x', 'later'),
                              ('c', 'y', 'other')):
    of = folder / 'evaluation' / name
    of.mkdir(parents=True)
    (of / 'settings.json').write_text(json.dumps({'weights': weights}))
    (of / 'responses.jsonl').write_text(
        json.dumps(row | dict(response=text)) + '\n{"torn')
  found = page.read(folder).samples[-3:]
  assert [(r['response'], r['step'], r['source']) for r in found] == [
      ('first', 0, 'held-out'), ('later', 40, 'held-out'),
      ('other', None, 'held-out')]
  assert (of / 'responses.jsonl').read_text().endswith('{"torn')
  (of / 'responses.jsonl').write_text('{}\n')
  with pytest.raises(ValueError, match='jsonl, line 1 is not a response'):
    page.read(folder)


def test_a_run_under_way_has_a_page(tmp_path):
  folder = write(tmp_path / 'run', *planted())
  for name in ('metrics', 'samples'):
    with (folder / f'{name}.jsonl').open('a') as file:
      file.write('{"step": 41, "respo')
  assert len(page.read(folder).rows) == 40
  write(folder, [], [])
  got = data(page.page([page.read(folder)]))
  assert got['samples'] == {} and got['runs'][0]['metrics'] == {}


class _Parts(html.parser.HTMLParser):
  """Counts the elements of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags = []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, [name for name, _ in attrs]))


def test_no_text_of_a_run_is_a_part_of_the_page(tmp_path):
  rows, samples = planted()
  plain = page.page([page.read(write(tmp_path / 'run', rows, samples))])
  samples[0] |= dict.fromkeys(
      ('response', 'prompt', 'kind', 'verdict', 'reference', 'detail'), EVIL)
  write(tmp_path / 'run', [rows[0] | {EVIL: 1.0}, *rows[1:]], samples,
        config={EVIL: EVIL}, summary={EVIL: {'start': 0, 'final': 1}})
  text = page.page([page.read(tmp_path / 'run', EVIL)])
  assert _Parts(text).tags == _Parts(plain).tags
  assert 'bad()</script>' not in text and 'src=x' not in re.sub(
      '<title>.*?</title>|<h1>.*?</h1>', '', text)
  assert responses(text)[0] == EVIL


def test_nothing_comes_from_the_network(tmp_path):
  text = page.page([page.read(write(tmp_path / 'run', *planted()))])
  assert not re.search(r'(src|href|url|import|fetch)\s*[=(]|https?:', text)
  assert '''content="default-src 'none';''' in text


def test_whole_groups_are_left_out_evenly(tmp_path):
  runs = [page.read(write(tmp_path / name, *planted(steps=100)))
          for name in 'ab']
  size = sum(len(s['response']) for s in runs[0].samples)
  # Half of what both have.
  for run, kept in zip(runs, page.thinned(runs, size)):
    steps = [run.samples[i]['step'] for i, _ in kept]
    assert steps == [step for step in range(2, 101, 2) for _ in range(8)]
  whole = [*range(800)]
  assert [[i for i, _ in kept] for kept in page.thinned(runs, 2 * size)] == [
      whole, whole]
  got = page.contents(runs, size)
  assert got['runs'][0]['total'] == 800 and len(got['samples']['run']) == 800


@pytest.mark.parametrize('turns', [0, 2])
def test_values_of_tokens_are_left_out_by_groups_too(tmp_path, turns):
  rows, samples = planted()
  for sample in samples:
    values = dict(token_chars=[1] * 10, token_logprobs=[-1.0] * 10)
    if turns:
      values = dict(turns=[
          {name: x[:5] for name, x in values.items()} for _ in range(turns)])
    sample |= values
  run = page.read(write(tmp_path / 'run', rows, samples))
  got = page.contents([run], tokens=800)  # a quarter of what there is
  assert sorted(map(int, got['tokens'])) == [
      8 * step + i for step in range(3, 40, 4) for i in range(8)]
  assert len(got['samples']['run']) == 320


def test_turns_are_on_the_page_with_the_values_of_their_tokens(tmp_path):
  rows, samples = planted()
  samples[1] |= dict(
      response='ab [2] c', rewards={'f': .5, 'g': None}, extra={'n': [1]},
      turns=[
          dict(text='ab', observation='2', reward=.25, token_chars=[2],
               token_logprobs=[-1.0], token_acceptance=[.5]),
          dict(text='c', observation='', reward=0.0)])
  samples[2] |= dict(turns=[dict(text='old')])  # of an evaluation, say
  run = page.read(write(tmp_path / 'run', rows, samples))
  got = page.contents([run])
  columns = got['samples']
  assert columns['turns'][:3] == [
      [], [['ab', '2', .25], ['c', '', 0.0]], [['old', '', None]]]
  # The turns have the text.
  assert columns['response'][:3] == [samples[0]['response'], '', '']
  assert columns['rewards'][:2] == [None, {'f': .5, 'g': None}]
  assert columns['extra'][:2] == [None, {'n': [1]}]
  assert got['tokens'] == {'1': [[[2], [-1.0], [.5]], None]}
  assert page.contents([run], tokens=0)['tokens'] == {}


def test_a_page_of_many_runs(tmp_path):
  runs = [page.read(write(tmp_path / f'run{i}', *planted())) for i in range(5)]
  text = page.page(runs)
  assert '<title>5 runs</title>' in text
  # Student's t of two to five runs.
  assert data(text)['quantiles'] == pytest.approx(
      [12.706, 4.303, 3.182, 2.776], abs=5e-4)
  assert len(data(page.page(runs[:1]))['quantiles']) == 1


def test_flags_name_the_samples_of_the_page(tmp_path):
  run = page.read(write(tmp_path / 'run', *planted('repeated', steps=200)))
  for most in (10**9, 20_000):
    got = page.contents([run, run], most)
    flag, *_ = got['runs'][1]['flags']
    assert flag['name'] == 'repeated responses' and flag['samples']
    assert {got['samples']['response'][i] for i in flag['samples']} == {
        'It is clear now.'}


def test_warnings_are_on_the_page(tmp_path):
  rows, samples = planted()
  first = page.read(write(tmp_path / 'sound', rows, samples))
  # All of its last 20 rows have more than half of the responses cut off.
  rows = [{**row, 'response/truncated': .75} for row in rows]
  sick = page.read(write(tmp_path / 'sick', rows, samples))
  known = page.contents([first, sick])['runs']
  assert not known[0]['warnings']
  warning, = known[1]['warnings']
  assert (warning['kind'], warning['step']) == ('truncated', 10)
  assert 'raise max_response' in warning['text']


def test_the_program(tmp_path, monkeypatch, capsys):
  folders = [str(write(tmp_path / name / 'run', *planted('entropy')))
             for name in 'ab']
  monkeypatch.setattr(sys, 'argv', ['page', folders[0]])
  page.main()
  said = capsys.readouterr().out
  assert said.startswith('run: entropy collapse. The entropy falls')
  assert said.endswith(f'Written to {folders[0]}/report.html\n')
  out = tmp_path / 'both.html'
  monkeypatch.setattr(sys, 'argv', ['page', *folders, f'--out={out}'])
  page.main()
  assert [run['name'] for run in data(out.read_text())['runs']] == folders
  monkeypatch.setattr(sys, 'argv', ['page', str(tmp_path)])
  with pytest.raises(SystemExit):
    page.main()
  assert f'{tmp_path} has no metrics.jsonl: name the folder' in (
      capsys.readouterr().err)


def test_a_run_does_not_fail_for_its_page(tmp_path, caplog):
  folder = write(tmp_path / 'run', *planted())
  assert page.renew(folder, folder)
  assert len(responses((folder / 'report.html').read_text())) == 320
  (folder / 'samples.jsonl').write_text('no JSON\n{}\n')
  assert not page.renew(folder, folder)
  assert 'report.html could not be written' in caplog.text
