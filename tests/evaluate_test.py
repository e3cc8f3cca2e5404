"""Tests of held-out estimates against plain counting, and of the program."""

import dataclasses
import json
import pathlib
import sys
import types
import zlib

import jax
import numpy as np
import pytest

from jaxrl_llm import checkpoint, evaluate, export, train
from jaxrl_llm.evaluation import estimators, heldout
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.prepare import build, start_weights
from jaxrl_llm.rewards import Verdict, VerifierError
from jaxrl_llm.tasks import Problem
from tests.evaluation.page_test import data
from tests.helpers import tiny


def test_spread():
  assert heldout.spread('abcdefgh', 0) == 'abcdefgh'
  assert heldout.spread('abcdefgh', 9) == 'abcdefgh'
  assert heldout.spread('abcdefgh', 4) == ['a', 'c', 'e', 'g']
  assert heldout.spread('abc', 2) == ['a', 'b']


def test_heldout_is_what_sampling_by_hand_gives(parts):
  """A different number of samples than a training step has, greedy, and a
  verifier that fails now and then."""
  config = tiny.load(eval__samples=3, eval__k=(1, 3))
  seen = []

  def verify(problem, text, truncated):
    seen.append((problem.id, text))
    if (problem.id + len(text)) % 5 == 0:
      raise RuntimeError
    return Verdict(float(len(text) % 2), 'parity', answer=text[:1])

  watched = tiny.watch(tiny.changed(parts, config=config), verify)
  _, _, weights = tiny.begin(parts)
  got = heldout.evaluate(watched.parts, weights)
  again = heldout.evaluate(watched.parts, weights)
  assert got == again
  seen = seen[:len(seen) // 2]
  ids = [p.id for p in parts.task.heldout]
  assert [i for i, _ in seen] == [i for i in ids for _ in range(3)] + ids

  def score(problem, text):
    return np.nan if (problem + len(text)) % 5 == 0 else len(text) % 2

  scores = np.array([score(*x) for x in seen])
  assert np.isnan(scores).any() and not np.isnan(scores).all()
  said = ['' if np.isnan(x) else text[:1]
          for x, (_, text) in zip(scores, seen)]
  expected = estimators.estimate(
      scores[:18].reshape(6, 3), (1, 3), greedy=scores[18:],
      answers=np.reshape(said[:18], (6, 3)).tolist())
  assert got == expected and 'maj@3' in got
  # The greedy responses are of temperature 0: all the same for a problem.
  greedy = watched.rollouts[-1]
  assert (greedy.logprobs[:, 0] == 0).all()


def test_a_verifier_that_fails_on_heldout_problems_is_named(parts, caplog):
  failing = {p.id for p in parts.task.heldout}

  def verify(problem, text, truncated):
    if problem.id in failing:
      raise RuntimeError('no such key')
    return Verdict(1.0, 'right')

  watched = tiny.watch(parts, verify)
  _, _, weights = tiny.begin(parts)
  with pytest.raises(VerifierError, match='(?s)failed on all.*no such key'):
    heldout.evaluate(watched.parts, weights)
  heldout.evaluate(watched.parts, weights, step=3)  # a run has begun
  said = 'failed on {} of 24 responses to held-out problems, which are left'
  assert said.format(24) in caplog.text
  failing.pop()
  heldout.evaluate(watched.parts, weights)
  assert said.format(20) in caplog.text and 'no such key' in caplog.text


def of_files(task):
  """Returns a task's held-out problems as if they were of two files."""
  return [dataclasses.replace(p, source='b' if i % 3 else 'a_1')
          for i, p in enumerate(task.heldout)]


def test_several_files_have_their_own_estimates(parts):
  """Beside the total, which is as without them."""
  config = tiny.load(eval__samples=3, eval__k=(1, 3))
  watched = tiny.watch(tiny.changed(parts, config=config), tiny.by_length)
  _, _, weights = tiny.begin(parts)
  total = heldout.evaluate(watched.parts, weights)
  watched.parts.task.heldout = of_files(parts.task)
  got = heldout.evaluate(watched.parts, weights)
  assert {k: v for k, v in got.items() if '/' not in k} == total
  problems, at = watched.parts.task.heldout, {'a_1': [0, 3], 'b': [1, 2, 4, 5]}
  for name, rows in at.items():
    alone = tiny.watch(
        tiny.changed(parts, config=config), tiny.by_length,
        heldout=[dataclasses.replace(problems[row], source='') for row in rows])
    assert heldout.evaluate(alone.parts, weights) == {
        k.removeprefix(f'{name}/'): v for k, v in got.items()
        if k.startswith(f'{name}/')}
  assert len(got) == 3 * len(total)


def test_slots_of_its_own_take_many_problems_in_a_call(parts):
  got, calls = [], []
  for fields in (dict(), dict(eval__slots=5)):
    config = tiny.load(eval__samples=1, eval__k=(1,), **fields)
    own = tiny.watch(tiny.changed(
        build.parts(config) if fields else parts, config=config),
                     tiny.by_length)
    got.append(heldout.evaluate(own.parts, tiny.begin(own.parts)[2]))
    calls.append([len(x.length) for x in own.rollouts])
  assert got[0] == got[1]
  # 6 problems, then 6 again, greedy; a step has 4 prompts and 16 requests.
  assert calls == [[4, 2, 4, 2], [6, 6]]


def test_rewards_of_functions_stand_at_their_responses(monkeypatch):
  nan = np.nan
  judged = [types.SimpleNamespace(
      reward=np.array(reward), answer=[''] * len(reward), rewards=rewards,
      kind=['x'] * len(reward))
            for reward, rewards in (
                ([1., 2.], {'f': np.array([3., nan])}),
                ([5., 6.], {'f': np.array([7., 8.]),
                            'g': np.array([9., nan])}))]
  places = ([0, 1], [1, 0]), ([0, 1], [0, 1])
  monkeypatch.setattr(heldout.responses, 'draw', lambda *_, **__: (
      types.SimpleNamespace(
          problem=np.array(problem), sample=np.array(sample), judged=one)
      for (problem, sample), one in zip(places, judged)))
  score, _, found = heldout.solve(
      None, None, [None] * 2, samples=2, sampling=None)
  np.testing.assert_array_equal(score, [[5, 1], [2, 6]])
  np.testing.assert_array_equal(found['f'], [[7, 3], [nan, 8]])
  np.testing.assert_array_equal(found['g'], [[9, nan], [nan, nan]])


def test_a_long_evaluation_is_announced():
  # A step has 4 x 4 responses, an evaluation 4 + 1 to each problem.
  config = tiny.load(eval__samples=4, eval__problems=0)
  assert heldout.size(config, [None] * 63) == ''  # 19 steps
  assert 'samples 320 responses to 64 held-out problems, as many as 20' in (
      heldout.size(config, [None] * 64))
  few = tiny.load(eval__samples=4, eval__problems=9)
  assert heldout.size(few, [None] * 64) == ''


def test_evaluation_does_not_share_noise_with_training(parts):
  watched = tiny.watch(parts, heldout=parts.task.train[:4])
  _, _, weights = tiny.begin(parts)
  keys = []
  parts_ = watched.parts._replace(step_key=lambda step: keys.append(
      int(jax.device_get(step))) or parts.step_key(step))
  heldout.evaluate(parts_, weights)
  assert keys and min(keys) >= 1 << 30


@pytest.fixture(scope='module')
def trained(parts, tmp_path_factory):
  """A short run with scores for which its best checkpoint is not its last."""
  folder = tmp_path_factory.mktemp('trained') / 'run'
  scores = iter([.1, .6, .3])
  watched = tiny.watch(parts, tiny.by_length)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, 'parts', lambda c: tiny.changed(
        watched.parts, config=c))
    patch.setattr(
        heldout, 'evaluate', lambda *_: {'mean': next(scores), 'greedy': 0.0})
    train.train(tiny.load(folder, checkpoint__keep=1))
  return folder


def test_programs_say_that_the_best_checkpoint_is_the_first(
    parts, reuse, tmp_path, monkeypatch, capsys):
  reuse(tiny.watch(parts, tiny.by_length).parts)
  scores = iter([.6, .1, .3])
  with monkeypatch.context() as patch:
    patch.setattr(
        heldout, 'evaluate', lambda *_: {'mean': next(scores), 'greedy': 0.0})
    train.train(tiny.load(tmp_path / 'run'))
  for which, there in (('best', True), ('last', False), ('start', False)):
    for main, argv in (  # start is a choice of the first one alone
        (evaluate.main, [f'--config={tmp_path}/run/config.json',
                         '--samples=1', '--k=1']),
        (export.main, [f'--workdir={tmp_path}/run', f'--out={tmp_path}/{which}'
                       ]))[:1 if which == 'start' else 2]:
      capsys.readouterr()
      monkeypatch.setattr(sys, 'argv', ['x', *argv, f'--checkpoint={which}'])
      main()
      said = ' '.join(capsys.readouterr().out.split())
      assert ('step 0, before any update' in said) == there
      assert ('--checkpoint=last takes step 4.' in said) == there


def program(monkeypatch, *argv):
  monkeypatch.setattr(sys, 'argv', ['evaluate', *map(str, argv)])
  evaluate.main()


def written(folder):
  return json.loads((folder / 'evaluation.json').read_text())


@pytest.mark.parametrize('which, step', [('', 2), ('best', 2), ('last', 4)])
def test_the_program(
    parts, reuse, trained, monkeypatch, capsys, which, step):
  reuse(parts)
  given = [f'--checkpoint={which}'] if which else []
  program(monkeypatch, f'--config={trained}/config.json', '--samples=6',
          '--k=1,5', *given)
  found = written(trained)
  numbers = ['problems', 'pass@1', 'pass@1_error', 'pass@5', 'pass@5_error',
             'mean', 'mean_error', 'tokens', 'truncated', 'invalid']
  assert list(found) == [
      'workdir', 'checkpoint', 'step', 'temperature', 'samples', 'max_prompt',
      'max_response', 'responses', 'left_out', *numbers, 'files']
  assert (found['checkpoint'], found['step']) == (which or 'best', step)
  assert (found['problems'], found['samples']) == (6, 6)
  assert (found['temperature'], found['max_response']) == (1, 10)
  assert found['files'] == {'held-out': {k: found[k] for k in numbers}}
  rows = [json.loads(line)
          for line in pathlib.Path(found['responses']).open()]
  assert len(rows) == 36
  assert found['tokens'] == np.mean([r['tokens'] for r in rows])
  assert found['truncated'] == np.mean([r['truncated'] for r in rows])
  said = capsys.readouterr().out
  table = (trained / 'evaluation.md').read_text()
  for part in (f'step {step}', 'held-out', 'pass@5', 'mean@6', '±'):
    assert part in said and part in table
  assert f'| held-out | 6 | {found["mean"]:.3f} ± ' in table
  assert 'evaluation.json' in said and found['responses'] in said
  # All that there is of this evaluation is also in a folder of its own.
  folder = pathlib.Path(found['responses']).parent
  assert (folder / 'evaluation.md').read_text() == table
  assert written(folder) == found
  settings = json.loads((folder / 'settings.json').read_text())
  assert settings['sampling.temperature'] == 1
  assert settings['weights'] == checkpoint.digest(
      trained / 'checkpoints', step)
  on_page = data((trained / 'report.html').read_text())
  shown, of = on_page['samples'], on_page['texts'].index(folder.name)
  assert sorted(text for text, where in zip(
      shown['response'], shown['of']) if where == of) == sorted(
          row['response'] for row in rows)


def test_it_finds_what_training_found(run, reuse):
  """The same problems, noise and parameters, and a fickle verifier."""
  config = tiny.load(run.config.workdir)
  reuse(run.parts._replace(task=run.watched.parts.task))
  for which, end in (('start', 'start'), ('last', 'final')):
    found = evaluate.evaluate(config, which)
    for name in ('pass@1', 'pass@4'):
      assert found[name] == run.summary[name][end]
    assert found['invalid']['error'] > 0


@pytest.fixture
def asked(parts, reuse):
  """Parts whose task reads files, and a record of what they sample."""
  def load(source):
    try:
      prompts = pathlib.Path(source).read_text().split()
    except FileNotFoundError:
      raise ValueError(f'There is no file {source}.') from None
    return [Problem(zlib.crc32(p.encode()) >> 1, p, pathlib.Path(source).stem)
            for p in prompts]

  def verify(problem, text, truncated):
    return Verdict(float(len(text) % 2), 'odd' if len(text) % 2 else 'even',
                   valid=len(text) % 5 != 2, answer=str(len(text)))

  watched = tiny.watch(parts, verify, load=load)
  reuse(watched.parts)
  return watched


def test_files_can_be_evaluated_without_a_run(
    asked, monkeypatch, tmp_path, capsys, caplog):
  """Of problems that stand twice in a file or are too long, it tells."""
  (tmp_path / 'a.txt').write_text('1,2>3: 4,5>9: 7,2>5: 1,2>3:')
  (tmp_path / 'b.txt').write_text('1,2>3: 1,2,3,4>10: 3,3>6:')
  workdir = tmp_path / 'new' / 'run'
  args = (f'--config={tiny.FILE}', f'--config.workdir={workdir}',
          f'--files={tmp_path}/a.txt,{tmp_path}/b.txt,{tmp_path}/./b.txt',
          '--checkpoint=start', '--samples=8', '--k=1,4,8',
          '--temperature=.7')
  program(monkeypatch, *args)
  said = capsys.readouterr().out
  found = written(workdir)
  files = [f'{tmp_path}/{name}.txt' for name in 'ab']
  assert list(found['files']) == files
  assert found['problems'] == 5
  assert [x['problems'] for x in found['files'].values()] == [3, 2]
  assert (found['step'], found['temperature']) == (0, .7)
  assert found['left_out'] == 1
  assert '1 of 4 problems, which are repeated' in caplog.text
  assert '1 of 3 problems, whose prompts have more' in caplog.text
  lines = (workdir / 'evaluation.md').read_text().splitlines()
  table = [[x.strip() for x in line.split('|')[1:-1]]
           for line in lines if line[:1] == '|']
  assert table[0] == ['', 'problems', 'mean@8', 'pass@1', 'pass@4', 'pass@8',
                      'maj@4', 'maj@8']
  assert [row[0] for row in table[2:]] == ['a.txt', 'b.txt', 'all']
  assert 'initial parameters' in lines[0] and 'temperature 0.7' in lines[0]
  kind, *_ = found['invalid']
  assert f'left out: {found["invalid"][kind]} {kind}' in said
  assert 'max_prompt=9 tokens: 1.' in said

  # The start is that of RL, and the temperature is the one asked for.
  rollouts = asked.rollouts.copy()
  start = asked.parts.programs.policy.init(
      asked.parts.replicate(jax.random.key(0)))
  expected, *_ = heldout.solve(
      asked.parts, asked.parts.programs.policy.to_sampling(start),
      asked.parts.task.load(files[0])[:3], samples=8,
      sampling=asked.parts.sampling(temperature=.7))
  assert found['files'][files[0]]['mean'] == pytest.approx(
      np.nanmean(expected, 1).mean())
  # Nothing is sampled again for other figures of the same responses.
  asked.rollouts.clear()
  program(monkeypatch, *args, '--k=2')
  assert 'pass@2' in written(workdir) and rollouts and not asked.rollouts


def test_greedy(asked, monkeypatch, tmp_path):
  args = (f'--config={tiny.FILE}', f'--config.workdir={tmp_path}',
          '--checkpoint=start')
  program(monkeypatch, *args, '--temperature=0')
  found = written(tmp_path)
  assert (found['temperature'], found['samples']) == (0, 1)
  assert found['pass@1'] == found['maj@1'] and 'pass@4' not in found
  table = (tmp_path / 'evaluation.md').read_text()
  assert 'one response' in table and 'temperature 0,' in table
  assert asked.rollouts
  for rollouts in asked.rollouts:
    assert (rollouts.logprobs == 0).all()
  program(monkeypatch, *args)
  assert written(tmp_path)['temperature'] == 1
  assert (asked.rollouts[-1].logprobs[:, 0] < 0).all()


def test_held_out_problems_of_several_files_have_a_row_each(
    asked, monkeypatch, trained):
  asked.parts.task.heldout = of_files(asked.parts.task)
  program(monkeypatch, f'--config={trained}/config.json')
  found = written(trained)
  assert [(name, numbers['problems']) for name, numbers in
          found['files'].items()] == [('a_1', 2), ('b', 4)]
  assert found['problems'] == 6
  lines = (trained / 'evaluation.md').read_text().splitlines()
  assert [line.split(' | ')[0] for line in lines if line[:1] == '|'][2:] == [
      '| a_1', '| b', '| all']


def test_held_out_problems_can_be_a_few(asked, monkeypatch, trained, tmp_path):
  config = f'--config={trained}/config.json'
  program(monkeypatch, config, '--config.eval.problems=2')
  assert written(trained)['problems'] == 2
  # Files are taken whole.
  (tmp_path / 'a').write_text('1,2>3: 4,5>9: 7,2>5:')
  program(monkeypatch, config, '--config.eval.problems=2',
          f'--files={tmp_path}/a')
  assert written(trained)['problems'] == 3


def test_the_program_evaluates_the_checkpoints_parameters(
    parts, reuse, trained, monkeypatch):
  reuse(parts)
  like = state_lib.init_state(parts, parts.programs.learner.state).listed
  saved = checkpoint.restore(trained / 'checkpoints', like, best=True)
  params, seen = saved.state.named.learner.params, []

  def collect(path, parts, source, *_, **__):
    seen.append(source.params)
    raise ValueError('enough')

  monkeypatch.setattr(evaluate.responses, 'collect', collect)
  with pytest.raises(SystemExit, match='enough'):
    program(monkeypatch, f'--config={trained}/config.json')
  assert tiny.same(seen[0], params)
  start = parts.programs.policy.init(parts.replicate(jax.random.key(0)))
  assert not tiny.same(params, start)


def test_no_copy_is_made_for_a_penalty(parts, reuse, tmp_path, monkeypatch):
  reuse(parts)
  starts, start = [], start_weights.start
  monkeypatch.setattr(
      start_weights, 'start',
      lambda *x, **y: starts.append(start(*x, **y)) or starts[-1])
  config = tiny.load(tmp_path, loss__kl_coef=.1)
  evaluate.evaluate(config, 'start')
  assert starts[0].anchors == {}
  assert config.loss.kl_coef == .1


def mistake(monkeypatch, capsys, *argv):
  """Returns the program's error message and exit code."""
  with pytest.raises(SystemExit) as end:
    program(monkeypatch, *argv)
  said = capsys.readouterr().err
  code = end.value.code
  if isinstance(code, str):  # printed by the interpreter
    said, code = code, 1
  assert len(said.strip().splitlines()) == 1
  return said, code


@pytest.mark.parametrize('change, words', [
    (['--k=8'], ['eval.k=8', 'eval.samples=4']),
    (['--samples=2'], ['eval.k=4', 'eval.samples=2']),
    (['--samples=x'], ['eval.samples=x', '(int)']),
    (['--checkpoint=first'], ['--checkpoint=first', 'best, last or start']),
    (['--checkpoint'], ['--checkpoint is not understood']),
    (['--best'], ['--best is not understood']),
    (['--config.evals.k=1'], ['evals.k is not', 'eval.k']),
    (['--temperature=-1'], ['--temperature=-1 must be at least 0']),
    (['--temperature=warm'], ['sampling.temperature=warm', '(float)']),
    (['--temperature=0', '--samples=4'], ['--samples=4', '--temperature=0']),
    (['--temperature=0', '--k=2'], ['eval.k=2', 'eval.samples=1']),
    (['--files=,'], ['--files=, names no file']),
])
def test_mistakes_on_the_command_line(
    monkeypatch, capsys, trained, change, words):
  said, code = mistake(
      monkeypatch, capsys, f'--config={trained}/config.json', *change)
  assert code == 2
  for word in words:
    assert word in said


def test_mistakes_about_the_checkpoint(
    parts, reuse, trained, tmp_path, monkeypatch, capsys):
  reuse(parts)
  config = f'--config={trained}/config.json'
  said, code = mistake(
      monkeypatch, capsys, config, f'--config.workdir={tmp_path}/no')
  assert code == 1 and f'no whole checkpoint in {tmp_path}/no' in said
  assert not (tmp_path / 'no').exists()
  said, _ = mistake(
      monkeypatch, capsys, config, '--config.model.rope_theta=7')
  assert 'another config: model.rope_theta: none -> 7.0' in said
  said, _ = mistake(monkeypatch, capsys, config, '--config.model.width=64')
  assert 'model.width: 32 -> 64' in said


def test_mistakes_about_files(
    parts, reuse, asked, trained, tmp_path, monkeypatch, capsys):
  args = f'--config={trained}/config.json', '--checkpoint=start'
  said, code = mistake(monkeypatch, capsys, *args, '--files=no.txt')
  assert code == 1 and said == 'There is no file no.txt.'
  (tmp_path / 'long').write_text('1,2,3,4>10:')
  said, _ = mistake(monkeypatch, capsys, *args, f'--files={tmp_path}/long')
  assert f"'{tmp_path}/long' has at most max_prompt=9" in said
  reuse(parts)
  said, _ = mistake(monkeypatch, capsys, *args, '--files=no.txt')
  assert 'countdown reads no files: leave out --files' in said


def test_a_task_that_reads_no_files_says_so_whatever_its_options(tmp_path):
  with pytest.raises(ValueError, match='countdown reads no files'):
    evaluate.evaluate(tiny.load(tmp_path), 'start', files=['no.jsonl'])


def test_an_evaluation_is_done_by_one_process_at_a_time(
    parts, reuse, trained, monkeypatch, capsys):
  reuse(parts)
  collect = evaluate.responses.collect
  said = []

  def twice(*args, **kwargs):
    if not said:
      said.append('')
      said[0], _ = mistake(monkeypatch, capsys, *argv)
    return collect(*args, **kwargs)

  argv = [f'--config={trained}/config.json']
  monkeypatch.setattr(evaluate.responses, 'collect', twice)
  program(monkeypatch, *argv)
  assert 'Another run is at work' in said[0] and 'evaluation/' in said[0]
  assert 'Written' in capsys.readouterr().out


def test_an_evaluation_ends_when_its_folder_is_gone(
    parts, reuse, trained, tmp_path, monkeypatch, capsys):
  reuse(parts)
  read = evaluate.responses.read

  def move(path):
    path.parent.rename(tmp_path / 'moved')
    path.parent.mkdir()
    return read(tmp_path / 'moved' / path.name)

  monkeypatch.setattr(evaluate.responses, 'read', move)
  said, code = mistake(
      monkeypatch, capsys, f'--config={trained}/config.json', '--temperature=2')
  assert code == 1 and 'evaluation/' in said
  assert 'was removed, or taken over by another process' in said


def test_an_interruption_is_told(parts, reuse, trained, monkeypatch, capsys):
  def stop(*_, **__):
    raise KeyboardInterrupt

  reuse(parts)
  monkeypatch.setattr(evaluate.responses, 'collect', stop)
  said, code = mistake(
      monkeypatch, capsys, f'--config={trained}/config.json')
  assert code == 1 and 'goes on where it stopped' in said


def test_help(monkeypatch, capsys):
  with pytest.raises(SystemExit) as end:
    program(monkeypatch, '--help')
  said = capsys.readouterr().out
  assert end.value.code == 0
  assert '--checkpoint=best' in said and 'eval.samples' in said
