"""Tests of the page of a run in headless Chromium.

  make test-browser
"""

import json
import random
import time

import pytest

from jaxrl_llm.evaluation import page as page_lib
from tests.helpers.browser import browser
from tests.helpers.planted import HACKS, planted, write

# Slow, so that no other tier starts a browser.
pytestmark = [pytest.mark.browser, pytest.mark.slow]
EVIL = '<img src=x onerror="document.title=\'bad\'"></script><b>bold</b>'


@pytest.fixture(scope='module', name='page')
def fixture_page():
  with browser() as page:
    yield page


def written(folder, *runs, **files):
  """Writes runs of (rows, samples) and their page; returns the page."""
  folders = [write(folder / f'run{i}', *run, **files)
             for i, run in enumerate(runs)]
  page_lib.write(folders, folder / 'out.html')
  return folder / 'out.html'


def count(page):
  """Returns the responses and groups that match, once the filters have run."""
  time.sleep(.3)
  text = page.run('document.getElementById("count").textContent')
  words = text.replace(',', '').split()
  return int(words[0]), int(words[4])


def test_filters(page, tmp_path):
  rows, samples = planted(groups=2)
  other = dict(step=40, file='held-out', problem_id=1, kind='products',
               prompt='3 * 4?', response='3 * 4 is TWELVE', sample=0,
               reward=.5, verdict='lenient')
  folder = write(tmp_path / 'run', rows, samples)
  of = folder / 'evaluation' / 'a'
  of.mkdir(parents=True)
  (of / 'settings.json').write_text('{"weights": "start"}')
  (of / 'responses.jsonl').write_text(json.dumps(other) + '\n')
  page_lib.write([folder], tmp_path / 'out.html')
  page.open(tmp_path / 'out.html')
  page.keys('2')
  assert count(page) == (641, 81)

  def matching(**wanted):
    """Counts rows by a function of each of some columns."""
    return sum(all(f(s[name]) for name, f in wanted.items()) for s in samples)

  for field, value, expected in (
      ('text', 'carry ONE', matching(
          response=lambda x: 'carry one' in x)),
      ('text', '/first take .*hence/', matching(
          response=lambda x: 0 <= x.find('first take') < x.find('hence'))),
      ('text', '3 * 4', 1), ('verdict', 'lenient', 1),
      ('verdict', 'correct', matching(reward=lambda x: x == 1)),
      ('source', 'held-out', 1), ('kind', 'sums', 640),
      ('step0', '31', 160), ('step1', '0', 1),
      ('reward0', '0.5', 1 + matching(reward=lambda x: x == 1)),
      ('reward1', '0.4', matching(reward=lambda x: x == 0))):
    if field in ('verdict', 'source', 'kind'):  # options have numbers
      value = page.run(
          f'[...document.querySelectorAll("#f-{field} option")]'
          f'.find((o) => o.textContent === "{value}").value')
    page.choose(f'#f-{field}', value)
    assert count(page)[0] == expected, field
    page.click('[type=reset]')
    assert count(page) == (641, 81)
  # The whole group of a response that matches is shown.
  page.choose('#f-text', samples[24]['response'])
  assert count(page)[1] == 1
  assert page.run('document.querySelectorAll(".response").length') == 8
  assert page.run('document.querySelectorAll("mark").length') >= 1
  page.choose('#f-text', '/(/')
  assert count(page) == (641, 81)
  assert not page.run('document.getElementById("f-text").validity.valid')
  assert not page.errors()


def test_keys(page, tmp_path):
  page.open(written(tmp_path, planted()))
  at = 'document.querySelector(".row[aria-selected=true]").id'
  page.keys('2jjjk')
  assert page.run(at) == 'row-2'
  page.keys('\ue010')  # End
  assert page.run(at) == 'row-39'
  page.keys('/so')
  assert page.run('document.activeElement.id + document.activeElement.value'
                  ) == 'f-textso'
  page.keys('\ue00c')  # Escape
  before = page.run('document.documentElement.dataset.theme')
  page.keys('t1')
  assert page.run('document.documentElement.dataset.theme') != before
  assert page.run('document.getElementById("samples").hidden')
  page.keys('?')
  assert page.run('document.getElementById("keys").open')
  assert not page.errors()


def test_many_samples_open_in_3_seconds(page, tmp_path):
  rows, samples = planted(steps=625, groups=10)
  rng = random.Random(0)
  words = [''.join(rng.choices('etaoinshrdlu', k=1 + i % 8)) + ' '
           for i in range(5_000)]
  for sample in samples:  # of 80 words
    chosen = rng.choices(words, k=80)
    sample |= dict(
        response=''.join(chosen), advantage=rng.gauss(0, 1),
        token_chars=[*map(len, chosen)],
        token_logprobs=[round(-rng.random(), 3) for _ in chosen])
  assert len(samples) == 50_000
  began = time.monotonic()
  out = written(tmp_path, (rows, samples))
  made, began = time.monotonic() - began, time.monotonic()
  ready = float(page.open(out))
  seconds = time.monotonic() - began
  page.keys('2')
  began = time.monotonic()
  page.run('(document.getElementById("f-text").value = "eta", filter())')
  filtered = time.monotonic() - began
  print(f'made in {made:.1f} s, {out.stat().st_size / 1e6:.1f} MB, ready after '
        f'{ready / 1000:.2f} s ({seconds:.2f} s with the driver), filtered in '
        f'{filtered:.2f} s')
  assert ready < 3000
  assert filtered < 1
  # The list has the rows in sight alone.
  assert page.run('document.querySelectorAll(".row").length') < 60
  page.run('document.getElementById("list").scrollTop = 1e5')
  page.wait('document.querySelector(".row").offsetTop > 9e4')
  assert not page.errors()


@pytest.mark.parametrize('hack', ['clean', *HACKS])
def test_planted_hacks_are_flagged(page, tmp_path, hack):
  page.open(written(tmp_path, planted(hack)))
  names = page.run(
      '[...document.querySelectorAll(".flag b")].map((n) => n.textContent)')
  if hack == 'clean':
    assert not names
    assert page.run('document.getElementById("flags").textContent').startswith(
        'None. Looked for')
    return
  assert HACKS[hack] in names
  if page.run('!!document.querySelector(".flag button")'):
    page.click('.flag button')
    assert 0 < count(page)[0] <= 80
    assert page.run('!document.getElementById("samples").hidden')
  assert not page.errors()


def test_a_run_without_rows_or_samples(page, tmp_path):
  page.open(written(tmp_path, ([], [])))
  page.keys('2')
  assert count(page) == (0, 0)
  page.keys('jc1t')
  assert not page.errors()


def test_text_stays_text(page, tmp_path):
  rows, samples = planted()
  for sample in samples:
    sample |= dict.fromkeys(
        ('response', 'prompt', 'kind', 'verdict', 'reference', 'detail'), EVIL)
  rows = [row | {EVIL: 1.0} for row in rows]
  page.open(written(tmp_path, (rows, samples), config={EVIL: EVIL}, summary={
      EVIL: {'start': 0, 'final': 1}}))
  page.keys('2')
  page.choose('#f-text', 'onerror')
  assert count(page)[0] == 320
  assert page.run('document.querySelector(".response .box").textContent'
                  ) == EVIL
  assert page.run('document.querySelectorAll("img, b b").length') == 0
  assert page.run('document.title') == 'run0'


def test_tokens_are_coloured(page, tmp_path):
  rows, samples = planted()
  samples[0] |= dict(
      response='ab\U0001f642c', advantage=-1.0, token_chars=[1, 2, 1, 0],
      token_logprobs=[0, -3, -6, -.1], token_acceptance=[1, .5, 0, 1])
  samples[1] |= dict(advantage=.5)
  page.open(written(tmp_path, (rows, samples)))
  page.keys('2')
  found = ('[...document.querySelectorAll(".response")[0].querySelectorAll('
           '".box span")].map((n) => [n.textContent, n.style.background])')
  for kind, alphas in (('logprob', [None, '0.375', '0.750', '0.013']),
                       ('acceptance', [None, '0.375', '0.750', None])):
    page.choose('#colour', kind)
    texts, styles = zip(*page.run(found))
    assert texts == ('a', 'b\U0001f642', 'c', '▪')
    for style, alpha in zip(styles, alphas):
      assert alpha is None and not style or f', {alpha})' in style
  page.choose('#colour', 'advantage')
  (text, style), = page.run(found)
  assert text == 'ab\U0001f642c' and '--low' in style and ', 0.750)' in style
  page.keys('c')
  assert page.run('document.getElementById("colour").value') == 'acceptance'
  assert not page.errors()


def test_curves_of_several_runs(page, tmp_path):
  page.open(written(tmp_path, planted(), planted('entropy', seed=1), ([], [])))
  named = ('[...document.querySelectorAll("figure")].map('
           '(n) => n.dataset.metric)')
  shown = page.run(named)
  assert {'reward/mean', 'eval/pass@1', 'update/entropy'} <= {*shown}
  values = 'document.querySelector("figcaption span").children.length'
  assert page.run(values) == 2
  page.click('#runs button')
  assert page.run(values) == 1
  page.click('#log')
  page.choose('#smooth', '0.9')
  page.choose('#axis', 'hours')
  page.click('#pick summary')
  page.choose('#metric-text', 'response/count')
  page.click('#metrics label:not([hidden]) input')
  assert page.run(named) == [*shown, 'response/count']
  # 40 steps of 2 s: the right end of the axis.
  assert page.run('document.querySelector("figure").range[1]') == (
      pytest.approx(80 / 3600))
  assert page.run('''[...document.querySelectorAll("canvas")].every((c) =>
      c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(
          (x) => x))''')
  assert not page.errors()
