"""Tests of the papers' figures: what is plotted of small tables."""

import json
import sys

import pytest

from benchmarks import figures


def run(scale, **others):
  """Returns rows of metrics.jsonl: step 0, and three steps."""
  return [{'step': 0, 'eval/pass@1': .1 * scale}, *(
      {'step': step, 'eval/pass@1': .1 * scale * step, 'reward/mean': .2,
       'batch/reward': .5 * scale, 'response/entropy': scale / step,
       'update/grad_norm': scale * step, 'seconds/select': .01 * scale,
       'seconds/sample': float(step), 'seconds/update': 4.0, **others}
      for step in (1, 2, 3))]


def drawn(axes):
  """Returns label to values of the lines with a label."""
  return {line.get_label(): [*map(float, line.get_ydata())]
          for line in axes.lines if not line.get_label().startswith('_')}


def heights(axes):
  return [float(bar.get_height()) for bar in axes.patches]


RESPONSES = [
    dict(file='a', problem_id=number, valid=valid, reward=reward)
    for number, valid, reward in (
        (0, True, 0.0), (0, True, 0.0), (1, True, 1.0), (1, True, 0.0),
        (1, False, 1.0), (2, True, 1.0), (3, False, 1.0))]


def test_speed_2():
  """Pass rates 0, .5 and 1; the fourth problem has no valid response."""
  rates, seconds = figures.speed_2(RESPONSES, run(1)).axes
  assert heights(rates) == [1] + [0] * 9 + [1] + [0] * 8 + [1]
  assert heights(seconds) == [2, 4]


def test_speed_4_has_the_reward_of_the_prompts_that_are_trained_on():
  reward, norm = figures.speed_4({
      'rloo': run(1), 'speed': run(1, **{'screening/screened': 4})}).axes
  assert drawn(reward) == {'rloo': [.2] * 3, 'speed': [.5] * 3}
  # Medians over a window of one: as they are.
  assert drawn(norm) == {'rloo': [1, 2, 3], 'speed': [1, 2, 3]}


def test_cbs_4_and_8():
  entropy, score = figures.cbs_4({'a': run(1), 'b': run(2)}).axes
  assert drawn(entropy) == {
      'a': [1, .5, pytest.approx(1 / 3)], 'b': [2, 1, pytest.approx(2 / 3)]}
  assert drawn(score)['b'] == pytest.approx([.2, .2, .4, .6])
  figure = figures.cbs_8({
      'grpo/cbs': run(1), 'gspo/cbs': run(2), 'grpo/no_entropy': run(3)})
  assert [axes.get_title() for axes in figure.axes] == ['grpo', 'gspo']
  assert [{name: values[0] for name, values in drawn(axes).items()}
          for axes in figure.axes] == [{'cbs': 1, 'no_entropy': 3}, {'cbs': 2}]


def test_cbs_10_and_a_run_without_the_metric():
  score, seconds = figures.cbs_10({'256': run(1), '512': run(2)}).axes
  # Means of the last three evaluations: .1, .2, .3.
  assert heights(score) == pytest.approx([.2, .4])
  assert heights(seconds) == pytest.approx([.01, .02])
  with pytest.raises(ValueError, match='No row of 1 has eval/pass@1: give'):
    figures.cbs_10({'256': [{'step': 1}]})


def record(step, used):
  return dict(
      step=step, used=used, reward=1.0, prompt=f'p{step}\nq', reference='7',
      response=f'r{step}')


def test_cases_are_the_latest_that_a_round_chose_from():
  text = figures.cbs_cases([
      record(1, 0), record(2, 2), record(3, 0), record(4, 1), record(5, None)])
  assert [line for line in text.splitlines() if line[:2] == '##'] == [
      '## Left out: step 3, reward 1', '## Trained on: step 4, reward 1']
  assert '    p3\n    q\n' in text and '    r4\n' in text


def test_the_command_line(tmp_path, monkeypatch, capsys):
  folder = tmp_path / 'run'
  folder.joinpath('evaluation/x').mkdir(parents=True)
  for name, rows in (
      ('metrics.jsonl', run(1)), ('samples.jsonl', [record(1, 0)]),
      ('evaluation/x/responses.jsonl', RESPONSES)):
    (folder / name).write_text(''.join(json.dumps(x) + '\n' for x in rows))
  for figure in (*figures.FIGURES, 'cbs_cases'):
    out = tmp_path / f'{figure}.png'
    monkeypatch.setattr(
        sys, 'argv', ['figures', figure, str(out), f'some/name={folder}'])
    figures.main()
    assert out.stat().st_size > 0
  (folder / 'evaluation/x/responses.jsonl').unlink()
  monkeypatch.setattr(
      sys, 'argv', ['figures', 'speed_2', str(out), f'a={folder}'])
  with pytest.raises(SystemExit):
    figures.main()
  assert 'has 0 folders with responses.jsonl' in capsys.readouterr().err
