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


def test_a_trajectory_is_blocks(page, tmp_path):
  rows, samples = planted()
  samples[0] |= dict(
      response='ab [2] c [dropped]', reward=1.5, advantage=1.0, turns=[
          dict(text='ab', observation='<b>2</b>', reward=.5,
               token_chars=[1, 1, 0], token_logprobs=[-3, 0, -6]),
          dict(text='c', observation='dropped', reward=1.0,
               token_chars=[1], token_logprobs=[-6])])
  samples[1] |= dict(advantage=-1.0)
  page.open(written(tmp_path, (rows, samples)))
  page.keys('2')
  found = ('[...document.querySelectorAll(".response")[0].querySelectorAll('
           '".block")].map((n) => [n.className, n.children[0].textContent, '
           'n.children[1].textContent])')
  assert page.run(found) == [
      ['block', 'model, turn 1 · reward 0.5', 'ab'],
      ['block read', 'environment', '<b>2</b>'],
      ['block', 'model, turn 2 · reward 1', 'c'],
      ['block read', 'environment, not read', 'dropped']]
  assert '4 tokens recorded, log-prob -15' in page.run(
      'document.querySelector(".response .head").textContent')
  tints = ('[...document.querySelectorAll(".response")[0].querySelectorAll('
           '".box span")].map((n) => [n.textContent, '
           'n.style.background.match(/--\\w+|[\\d.]+(?=\\))/g)])')
  page.choose('#colour', 'logprob')
  assert page.run(tints) == [
      ['a', ['--low', '0.375']], ['b', None], ['▪', ['--low', '0.750']],
      ['c', ['--low', '0.750']]]
  # Observations are no action of the model.
  page.choose('#colour', 'advantage')
  assert page.run(tints) == [
      ['ab', ['--high', '0.750']], ['c', ['--high', '0.750']]]
  page.choose('#f-text', 'b>2</')
  assert count(page)[0] == 1
  assert not page.errors()


def test_tools_give_no_reward_of_a_turn(page, tmp_path):
  rows, samples = planted()
  samples[0] |= dict(turns=[dict(text='f(1)', observation='2', reward=0.0),
                            dict(text='2', observation='', reward=0.0)])
  page.open(written(tmp_path, (rows, samples), config={'task.name': 'tools'}))
  page.keys('2')
  assert page.run('[...document.querySelectorAll(".block > span")].map('
                  '(n) => n.textContent)') == [
                      'model, turn 1', 'tool', 'model, turn 2']


def test_rewards_of_functions_and_what_they_logged(page, tmp_path):
  rows, samples = planted()
  rows = [row | {'rewards/exact': .5, 'logged/longest': 4.0} for row in rows]
  samples[0] |= dict(
      rewards={'exact': 1.0, EVIL: None},
      extra={'tokens': 12, 'why': EVIL, 'parts': [1, {'a': None}]})
  page.open(written(tmp_path, (rows, samples)))
  assert {'rewards/exact', 'logged/longest'} <= set(page.run(
      '[...document.querySelectorAll("figure")].map((n) => n.dataset.metric)'))
  page.keys('2')
  head = ('[...document.querySelectorAll(".response")[{}].querySelectorAll('
          '".head")].slice(1).map((n) => n.innerText.trim())')
  assert [[*filter(None, text.split('\n'))] for text in page.run(
      head.format(0))] == [
          ['rewards', 'exact 1', f'{EVIL} –'],
          ['logged', 'tokens 12', f'why {EVIL}', 'parts [1,{"a":null}]']]
  assert page.run(head.format(1)) == ['', '']
  assert page.run('document.querySelectorAll("img, b b").length') == 0
  assert not page.errors()


@pytest.mark.parametrize('rewards, colours', [
    ((0, 0), 'low 1, low 1'), ((1, 1), 'high 1, high 1'),
    ((-2, -2), 'low 1, low 1'), ((0, 1), 'low 1, high 1'),
    ((0, .1), 'low 1, low 0.2'), ((.5, .5), 'low 0.2, low 0.2'),
    ((-1, 0, 1), 'low 1, low 0.2, high 1'), ((-3, -1), 'low 1, low 0.2'),
    ((0, .9, 1), 'low 1, low 0.2, high 1'), ((None, 0), 'line, low 1')])
def test_what_fails_is_not_in_the_best_colour(page, tmp_path, rewards, colours):
  rows, samples = planted(steps=1, samples=len(rewards))
  for sample, reward in zip(samples, rewards):
    sample['reward'] = reward
  page.open(written(tmp_path, (rows, samples)))
  page.keys('2')
  got = page.run('[...document.querySelectorAll(".row .cells i")].map('
                 '(n) => n.style.background)')
  assert ', '.join(text.replace('rgba(', '').replace('var(--', '').replace(
      ')', '').replace(',', '') for text in got) == colours


def sweep(folder, fields, **files):
  """Writes the page of runs with these configs; returns the page.

  Run i has the estimate .1 (i + 1), and with `files` these of its files; `done`
  is the number of its rows.
  """
  folders = []
  for i, config in enumerate(fields):
    own = dict(summary={
        'pass@1': {'start': .05, 'final': .1 * (i + 1)}, 'steps': 40,
        'seconds': 60.0 * (i + 1)}) | files.get(f'run{i}', {})
    rows, samples = planted(seed=i)
    rows = rows[:own.pop('done', 40)]
    folders.append(write(
        folder / f'run{i}', rows, samples, config=config, **own))
  page_lib.write(folders, folder / 'out.html')
  return folder / 'out.html'


def order(page):
  """Returns the first cells of the table's rows."""
  return page.run('[...document.querySelectorAll("#table tbody td:first-child"'
                  ')].map((n) => n.textContent)')


def column(page, label):
  """Returns the texts of a column of the table, and whether it is sorted."""
  cell = (f'[...document.querySelectorAll("#table th")].find((n) => '
          f'n.textContent === "{label}")')
  return page.run(f'[...document.querySelectorAll("#table tbody tr")].map('
                  f'(n) => n.cells[{cell}.cellIndex].textContent)'), page.run(
                      f'{cell}.getAttribute("aria-sort")')


def click_head(page, label):
  page.run(f'[...document.querySelectorAll("#table th button")].find((n) => '
           f'n.textContent === "{label}").click()')


def test_the_table_sorts(page, tmp_path):
  page.open(sweep(tmp_path, [
      {'lr': 1e-2, 'loss': 'gspo', 'k': None, 'same': 1},
      {'lr': 9e-3, 'loss': 'clip', 'k': '0:2,4:1', 'same': 1},
      {'lr': 1e-4, 'loss': 'clip', 'k': 10, 'same': 1},
      {'lr': 2, 'loss': 'ab', 'k': 9, 'same': 1},
      {'loss': 'tis', 'k': True, 'same': 1}],
      run1=dict(summary={}), run2=dict(summary={'pass@1': {
          'start': None, 'final': None}, 'steps': 40, 'seconds': 1.0})))
  names = [f'run{i}' for i in range(5)]
  assert order(page) == names
  assert 'same' not in page.run(
      'document.querySelector("#table thead").textContent')
  for label, up, missing in (
      ('lr', '2103', '4'), ('k', '3214', '0'), ('loss', '31204', ''),
      ('pass@1', '034', '2')):
    for sign, said in ((1, 'ascending'), (-1, 'descending')):
      click_head(page, label)
      assert column(page, label)[1] == said
      if label == 'pass@1':  # run1 is under way: the latest value of its rows
        assert [x for x in order(page) if x != 'run1'] == [
            f'run{i}' for i in up[::sign] + missing]
      elif label == 'loss':  # a tie keeps the order of the runs
        assert order(page) == [f'run{i}' for i in (
            up if sign == 1 else '40123')]
      else:
        assert order(page) == [f'run{i}' for i in up[::sign] + missing]
  assert column(page, 'steps done')[0][
      order(page).index('run1')] == '40, not done'
  # By the keyboard; the button keeps the focus.
  page.run('document.querySelector("#table th button").focus()')
  page.keys('\ue007')
  assert order(page) == names
  page.keys('\ue007')
  assert order(page) == names[::-1]
  assert page.run('document.activeElement.textContent') == 'run'
  assert page.run('document.querySelectorAll("th[aria-sort=none]").length') > 4
  page.choose('#when', 'change')
  assert column(page, 'pass@1')[0][order(page).index('run4')] == '0.450'
  page.choose('#when', 'start')
  assert column(page, 'pass@1')[0][order(page).index('run4')] == '0.050'
  assert order(page) == names[::-1]
  assert not page.errors()


def test_seeds_are_a_group(page, tmp_path):
  # Runs 0, 2 and 4 differ in seeds and folders alone; so do 1 and 3.
  page.open(sweep(tmp_path, [
      {'lr': (2, 1)[i % 2], 'seed': i, 'task.seed': i, 'workdir': f'w{i}'}
      for i in range(5)] + [{'lr': 3, 'seed': 0}, {}, {}],
      run3=dict(summary={}, done=25)))
  assert order(page) == [
      'lr 2 × 3', 'run0', 'run2', 'run4', 'lr 1 × 2', 'run1', 'run3', 'run5',
      'run6', 'run7']
  # .1, .3 and .5: t is 4.303 and the standard deviation .2.
  cells, _ = column(page, 'pass@1')
  assert cells[0] == f'0.300 ± {4.30265 * .2 / 3 ** .5:.3f}'
  assert cells[4] == '0.200'  # of the only run that is done
  assert column(page, 'seed')[0][:2] == ['', '0']
  assert '95% interval' in page.run(
      '[...document.querySelectorAll("tr.mean td[title]")].map('
      '(n) => n.title).join()')
  click_head(page, 'pass@1')
  assert order(page)[:4] == ['lr 1 × 2', 'run1', 'run3', 'lr 2 × 3']
  click_head(page, 'pass@1')
  assert order(page) == [
      'run7', 'run6', 'run5', 'lr 2 × 3', 'run4', 'run2', 'run0', 'lr 1 × 2',
      *column(page, 'run')[0][-2:]]
  chips = ('[...document.querySelectorAll("#runs button")].map('
           '(n) => n.textContent)')
  assert page.run(chips) == ['lr 2', 'lr 1', 'run5', 'run6', 'run7']
  # Each run, and the mean over the steps that all of a group have.
  ends = ('[...curvesOf("reward/mean")].map((c) => [c.at, !!c.thin, '
          'c.count || 0])')
  assert page.run(ends) == [
      [0, True, 0], [2, True, 0], [4, True, 0], [1, True, 0], [3, True, 0],
      [0, False, 3], [1, False, 2], [5, False, 0], [6, False, 0],
      [7, False, 0]]
  assert page.run('curvesOf("update/entropy")[5].raw[9]') == pytest.approx(.8)
  assert page.run('curvesOf("update/entropy")[6].x') == [*range(1, 26)]
  page.click('#runs button')
  assert [at for at, _, _ in page.run(ends)] == [1, 3, 1, 5, 6, 7]
  page.click('#together')
  assert len(page.run(chips)) == 8
  assert page.run('document.querySelectorAll("tr.mean").length') == 0
  assert not page.errors()


def test_settings_of_all_are_those_that_do_not_differ(page, tmp_path):
  found = ('[...document.querySelectorAll("#settings tr")].map('
           '(n) => [n.cells[0].textContent, n.cells[1].textContent])')
  fields = [{'b': [i, 1], 'a': 'x', 'workdir': f'w{i}'} for i in range(2)]
  page.open(sweep(tmp_path, fields))
  assert page.run(found) == [['a', '"x"']]
  page.open(sweep(tmp_path, fields[:1]))
  assert page.run(found) == [['a', '"x"'], ['b', '[0,1]'], ['workdir', '"w0"']]


def test_as_many_colours_as_groups(page, tmp_path):
  page.open(sweep(tmp_path, [
      {'lr': 1 + i // 2, 'seed': i % 2} for i in range(40)]))
  dots = ('[...document.querySelectorAll("#runs .dot")].map('
          '(n) => getComputedStyle(n).backgroundColor)')
  assert len({*page.run(dots)}) == 20
  page.click('#together')
  assert len({*page.run(dots)}) == 40


def test_a_plot_of_settings_and_estimates(page, tmp_path):
  page.open(sweep(tmp_path, [
      {'lr': lr, 'kl': kl, 'loss': loss, 'seed': seed, 'zero': kl}
      for lr, kl, loss in ((1e-4, 0, 'a'), (1e-3, 1e-3, 'b'), (1e-2, .1, 'a'))
      for seed in (0, 1)] + [{'lr': 1e-2, 'loss': 'a', 'seed': 2, 'zero': .1}],
      run4=dict(summary={})))
  at = ('[...document.querySelectorAll("#plot circle")].map('
        '(n) => Number(n.getAttribute("cx")))')
  labels = ('[...document.querySelectorAll("#plot text:not([text-anchor=end])")'
            '].map((n) => n.textContent)')
  page.choose('#plot-y', 'pass@1')

  def gaps(field):
    page.choose('#plot-x', f'config.{field}')
    places = sorted({*page.run(at)})
    return [b - a for a, b in zip(places, places[1:])]

  low, high = gaps('lr')  # decades
  assert low == pytest.approx(high)
  assert page.run(labels) == ['0.0001', '0.001', '0.01']
  low, high = gaps('zero')  # of 0 and decades: categories
  assert low == pytest.approx(high)
  assert page.run(labels) == ['0', '0.001', '0.1']
  assert len(gaps('kl')) == 3
  assert page.run(labels) == ['0', '0.001', '0.1', '–']
  assert len(gaps('loss')) == 1 and page.run(labels) == ['a', 'b']
  low, high = gaps('seed')
  assert low == pytest.approx(high)
  # Seeds have no interval by seed; the estimates go up.
  page.choose('#plot-x', 'config.lr')
  up = page.run('[...document.querySelectorAll("#plot circle")].map('
                '(n) => Number(n.getAttribute("cy")))')
  assert up[:4] == sorted(up[:4], reverse=True)
  # Run 4 is under way.
  assert page.run('[...document.querySelectorAll("#plot circle")].map('
                  '(n) => n.style.fill === "none")') == [
                      i == 4 for i in range(7)]
  assert len(page.run('[...document.querySelectorAll("#plot path title")].map('
                      '(n) => n.textContent)')) == 2
  assert not page.errors()


@pytest.mark.parametrize('runs', [1, 20])
def test_a_phone_shows_the_page(page, tmp_path, runs):
  rows, samples = planted(steps=2)
  samples[0] |= dict(
      extra={'long': 'x' * 300}, turns=[dict(text='y' * 300, reward=0.0)])
  folders = [write(
      tmp_path / f'a_run_with_a_long_name_and_a_number_{i}', rows, samples,
      config={'optimizer.learning_rate': 10.0 ** -i, 'seed': i})
             for i in range(runs)]
  page_lib.write(folders, tmp_path / 'out.html')
  with page.phone():
    page.open(tmp_path / 'out.html')
    for tab in '12':
      page.keys(tab)
      assert page.run('innerWidth') == 390
      assert page.run('[document.documentElement, ...document.querySelectorAll('
                      '"main, #group")].every((n) => '
                      'n.scrollWidth <= n.clientWidth)')


def test_text_of_several_runs_stays_text(page, tmp_path):
  page.open(sweep(tmp_path, [
      {EVIL: EVIL, 'seed': seed} for seed in (0, 1)] + [{EVIL: 'b'}],
      run0=dict(summary={EVIL: {'start': EVIL, 'final': 1}, 'pass@1': {
          'start': None, 'final': EVIL}})))
  page.choose('#plot-x', f'config.{EVIL}')
  assert column(page, 'pass@1')[0][1] == '–'
  assert page.run('document.querySelectorAll("img, b b").length') == 0
  assert page.run('document.title') == 'run0, run1, run2'
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
