"""Held-out figures against plain counting, and the program."""

import itertools
import json
import sys

import jax
import numpy as np
import pytest
from scipy import stats

from jaxrl_llm import checkpoint, evaluate, experiment, train
from jaxrl_llm.rewards import Verdict
from tests import tiny


def test_standard_errors():
  values = np.random.default_rng(0).random(17)
  mean, error = evaluate.mean_and_error(values)
  assert mean == pytest.approx(values.mean())
  assert error == pytest.approx(stats.sem(values))
  assert evaluate.mean_and_error(np.array([0.5])) == (0.5, 0.0)
  assert np.isnan(evaluate.mean_and_error(np.array([]))).all()


def test_calls_cover_everything_once_within_what_fits():
  rng = np.random.default_rng(0)
  for _ in range(300):
    problems, samples, prompts, group = rng.integers(1, 13, 4)
    seen = []
    calls = list(evaluate.calls(
        problems, samples, max_prompts=prompts, max_requests=prompts * group))
    for problem, sample in calls:
      assert len(problem) == len(sample) <= prompts * group
      assert len(set(problem.tolist())) <= prompts
      seen += zip(problem.tolist(), sample.tolist())
    assert seen == list(itertools.product(range(problems), range(samples)))
    # No more calls than a full sampler needs, but for one at the end.
    full = max(samples / (prompts * group), 1 / prompts) * problems
    assert len(calls) <= 2 * full + 1


def test_figures_by_hand():
  nan = np.nan
  score = np.array([
      [1, 0, 1, 0],  # 2 of 4
      [1, nan, nan, nan],  # 1 of 1: no pass@2
      [0.5, nan, 2, 0],  # 1 of 3: half a reward is not a pass, 2 is
      [nan] * 4])  # not known
  got = evaluate.figures(score, np.array([1, 0.9, nan, 0]), (1, 2, 4))
  expected = {
      'pass@1': [1 / 2, 1, 1 / 3], 'pass@2': [5 / 6, 2 / 3], 'pass@4': [1],
      'greedy': [1, 0, 0], 'mean': [0.5, 1, 2.5 / 3]}
  assert list(got) == [
      name + end for name in ('pass@1', 'pass@2', 'pass@4', 'greedy', 'mean')
      for end in ('', '_error')]
  for name, values in expected.items():
    assert got[name] == pytest.approx(np.mean(values))
    error = stats.sem(values) if len(values) > 1 else 0
    assert got[f'{name}_error'] == pytest.approx(error)


def test_figures_of_nothing_are_nan_in_silence(recwarn):
  nothing = np.full((3, 2), np.nan)
  got = evaluate.figures(nothing, nothing[:, 0], (1,))
  assert len(got) == 6 and all(np.isnan(x) for x in got.values())
  assert not recwarn.list


def test_spread():
  assert evaluate.spread('abcdefgh', 0) == 'abcdefgh'
  assert evaluate.spread('abcdefgh', 9) == 'abcdefgh'
  assert evaluate.spread('abcdefgh', 4) == ['a', 'c', 'e', 'g']
  assert evaluate.spread('abc', 2) == ['a', 'b']


def test_heldout_is_what_sampling_by_hand_gives(parts):
  """A different number of samples than a training step has, greedy, and a
  verifier that fails now and then."""
  config = tiny.load(eval__samples=3, eval__k=(1, 3))
  seen = []

  def verify(problem, text, truncated):
    seen.append((problem.id, text))
    if (problem.id + len(text)) % 5 == 0:
      raise RuntimeError
    return Verdict(float(len(text) % 2), 'parity')

  watched = tiny.watch(parts._replace(config=config), verify)
  _, _, weights = tiny.begin(parts)
  got = evaluate.heldout(watched.parts, weights)
  again = evaluate.heldout(watched.parts, weights)
  assert got == again
  seen = seen[:len(seen) // 2]
  ids = [p.id for p in parts.task.heldout]
  assert [i for i, _ in seen] == [i for i in ids for _ in range(3)] + ids

  def score(problem, text):
    return np.nan if (problem + len(text)) % 5 == 0 else len(text) % 2

  scores = np.array([score(*x) for x in seen])
  assert np.isnan(scores).any() and not np.isnan(scores).all()
  expected = evaluate.figures(
      scores[:18].reshape(6, 3), scores[18:], (1, 3))
  assert got == expected
  # The greedy responses are of temperature 0: all the same for a problem.
  greedy = watched.rollouts[-1]
  assert (greedy.logprobs[:, 0] == 0).all()


def test_evaluation_does_not_share_noise_with_training(parts):
  watched = tiny.watch(parts, heldout=parts.task.train[:4])
  _, _, weights = tiny.begin(parts)
  keys = []
  parts_ = watched.parts._replace(step_key=lambda step: keys.append(
      int(jax.device_get(step))) or parts.step_key(step))
  evaluate.heldout(parts_, weights)
  assert keys and min(keys) >= 1 << 30


@pytest.fixture(scope='module')
def trained(parts, tmp_path_factory):
  """A short run, and scores by which its best checkpoint is not its last."""
  folder = tmp_path_factory.mktemp('trained') / 'run'
  scores = iter([.1, .6, .3])
  watched = tiny.watch(parts, tiny.by_length)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experiment, 'build', lambda c: watched.parts._replace(
        config=c))
    patch.setattr(
        evaluate, 'heldout', lambda *_: {'mean': next(scores), 'greedy': 0.0})
    train.train(tiny.load(folder, checkpoint__keep=1))
  return folder


def program(monkeypatch, *argv):
  monkeypatch.setattr(sys, 'argv', ['evaluate', *map(str, argv)])
  evaluate.main()


@pytest.mark.parametrize('which, step', [('', 2), ('best', 2), ('last', 4)])
def test_the_program(
    parts, reuse, trained, monkeypatch, capsys, which, step):
  reuse(parts)
  given = [f'--checkpoint={which}'] if which else []
  program(monkeypatch, f'--config={trained}/config.json', '--samples=6',
          '--k=1,5', *given)
  found = json.loads((trained / 'evaluation.json').read_text())
  assert list(found) == [
      'checkpoint', 'step', 'problems', 'samples', 'pass@1', 'pass@1_error',
      'pass@5', 'pass@5_error', 'greedy', 'greedy_error', 'mean', 'mean_error']
  assert (found['checkpoint'], found['step']) == (which or 'best', step)
  assert (found['problems'], found['samples']) == (6, 6)
  said = capsys.readouterr().out
  for part in (f'step {step}', '6 held-out problems', 'pass@5', 'greedy',
               'mean@6', 'standard error', 'evaluation.json'):
    assert part in said


def test_the_program_evaluates_the_checkpoints_parameters(
    parts, reuse, trained, monkeypatch):
  reuse(parts)
  like = train.begin(parts.learner.state, 40)
  saved = checkpoint.restore(trained / 'checkpoints', like, best=True)
  params, seen = saved.state.learner.params, []
  monkeypatch.setattr(
      evaluate, 'heldout', lambda _, weights: seen.append(weights) or {})
  program(monkeypatch, f'--config={trained}/config.json')
  assert tiny.same(seen[0], params)
  start = parts.policy.init(parts.put(jax.random.key(0)))
  assert not tiny.same(params, start)


def mistake(monkeypatch, capsys, *argv):
  """What the program says as it ends, and its exit code."""
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
    (['--checkpoint=first'], ['--checkpoint=first', 'best or last']),
    (['--checkpoint'], ['--checkpoint is not understood']),
    (['--best'], ['--best is not understood']),
    (['--config.evals.k=1'], ['evals.k is not', 'eval.k']),
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


def test_help(monkeypatch, capsys):
  with pytest.raises(SystemExit) as end:
    program(monkeypatch, '--help')
  said = capsys.readouterr().out
  assert end.value.code == 0
  assert '--checkpoint=best' in said and 'eval.samples' in said
