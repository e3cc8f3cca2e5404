"""Tests of the plots of a run."""

import json

import numpy as np
from PIL import Image
import pytest

from jaxrl_llm.monitoring import plots


def test_smooth_is_the_median_of_neighbours():
  values = np.random.default_rng(0).standard_normal(20)
  for window in (1, 3, 7):
    reach = window // 2
    expected = [
        np.median(values[max(0, i - reach):i + reach + 1]) for i in range(20)]
    np.testing.assert_allclose(plots.smooth(list(values), window), expected)


def colors(path):
  """Counts the pixels of each curve's colour."""
  pixels = np.asarray(Image.open(path).convert('RGB')).reshape(-1, 3)
  wanted = (plots._BLUE, plots._RED, plots._GREEN, plots._GREY)
  return [int((pixels == [int(c[i:i + 2], 16) for i in (1, 3, 5)]).all(1).sum())
          for c in wanted]


def test_curves_from_a_file(tmp_path, drawn):
  rows = [
      {'step': s, 'reward/pass@1': 0.5, 'update/entropy': None if s == 3 else 1,
       'seconds/step': 9.0 if s == 0 else 0.1} for s in range(60)]
  for s in (0, 30, 59):
    rows[s]['eval/greedy'] = s / 60
  lines = [json.dumps(row) for row in rows]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join([*lines, '{"st']))
  path = plots.curves(tmp_path, 'a run')
  assert path == tmp_path / 'curves.png'
  with Image.open(path) as image:
    assert image.size == (1350, 840)
  blue, red, green, grey = colors(path)
  assert blue > 300 and red > 300 and grey > 300 and green == 0


@pytest.mark.parametrize('rows', [[], [{'step': 0, 'update/entropy': 0.0}]])
def test_a_run_with_next_to_nothing(tmp_path, rows, draw):
  draw(rows, tmp_path / 'x.png')
  assert (tmp_path / 'x.png').stat().st_size > 0


def test_compiles_do_not_set_the_scale():
  assert plots._top([0.1] * 99 + [30.0]) == pytest.approx(0.125)
  assert plots._top([]) == 1.25 and plots._top([0.0]) == 1.0
