"""Tests that the notebooks run from top to bottom and have no saved outputs."""

import importlib.util
import pathlib

import matplotlib.pyplot as plt
import nbclient
import nbformat
import numpy as np
import pytest

from tests.helpers import devices

FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'notebooks'
FILES = sorted(path.name for path in FOLDER.glob('*.ipynb'))

# Pictures that each must draw; what they show is asserted in their cells.
PICTURES = {
    'arc.ipynb': 5,
    'cbs.ipynb': 4, 'jackpot.ipynb': 5, 'pkpo.ipynb': 4, 'speed.ipynb': 4}

# The others run in the tests' process, which costs less.
IN_A_KERNEL = 'speed.ipynb'

# Steps of the runs in cbs.ipynb and speed.ipynb, and of their warm starts.
SHORTER = {'    steps=40, ': '    steps=14, ',
           '    steps=30, ': '    steps=8, ',
           'warm_start.update(steps=300, ': 'warm_start.update(steps=100, '}

# What each cell ends with, before its pictures are drawn and closed.
LABELLED = '''
import matplotlib.pyplot as plt
for drawn in map(plt.figure, plt.get_fignums()):
  assert drawn.legends or any(axes.get_legend() for axes in drawn.axes)
  for axes in drawn.axes:
    assert axes.get_xlabel() and axes.get_ylabel()
'''


def test_all_are_known():
  assert FILES == sorted(PICTURES)


def test_the_loop_of_parts_learns():
  """From 1 right digit of 12 tokens to nearly all; see notebooks/loop.py."""
  spec = importlib.util.spec_from_file_location('loop', FOLDER / 'loop.py')
  loop = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loop)
  said = []
  means = loop.main(31, said.append)
  assert len(means) == 31 and len(said) == 4
  assert means[0] < .3 and np.mean(means[-5:]) > .8


@pytest.mark.parametrize('name', FILES)
def test_it_is_kept_clean(name):
  cells = nbformat.read(FOLDER / name, as_version=4).cells
  code = [cell for cell in cells if cell.cell_type == 'code']
  assert '%pip install' in code[0].source
  assert not any(cell.outputs or cell.execution_count for cell in code)


def shorter(name):
  """Returns a notebook whose run, if it has one, takes fewer steps."""
  book = nbformat.read(FOLDER / name, as_version=4)
  for cell in book.cells:
    for before, after in SHORTER.items():
      cell.source = cell.source.replace(before, after)
  return book


@pytest.mark.parametrize('name', [x for x in FILES if x != IN_A_KERNEL])
def test_its_cells_run(name, tmp_path, monkeypatch):
  drawn, names = [], {'__name__': '__main__'}

  def show():
    """Draws all figures and closes them, as a kernel does."""
    for figure in map(plt.figure, plt.get_fignums()):
      figure.draw_without_rendering()
      drawn.append(figure)
    plt.close('all')

  plt.switch_backend('agg')
  monkeypatch.setattr(plt, 'show', show)
  monkeypatch.chdir(tmp_path)
  cells = shorter(name).cells
  first, *rest = [cell.source for cell in cells if cell.cell_type == 'code']
  assert '%pip' in first  # which is no Python
  with plt.rc_context():
    for number, source in enumerate(rest):
      exec(compile(source, f'{name}, cell {number}', 'exec'), names)
      exec(LABELLED, {})
      show()
  assert len(drawn) == PICTURES[name]


@pytest.mark.processes
def test_a_kernel_runs_one_that_trains(tmp_path, monkeypatch):
  """Inside of the kernel's event loop, and with its pictures."""
  for variable in ('IPYTHONDIR', 'JUPYTER_RUNTIME_DIR'):  # not at home
    monkeypatch.setenv(variable, str(tmp_path / variable))
  devices.share_programs(monkeypatch)
  book = shorter(IN_A_KERNEL)
  for cell in book.cells:
    if cell.cell_type == 'code' and 'plt.subplots' in cell.source:
      cell.source += LABELLED
  nbclient.NotebookClient(
      book, timeout=180, kernel_name='python3',
      resources={'metadata': {'path': str(tmp_path)}}).execute()
  outputs = [
      output for cell in book.cells for output in cell.get('outputs', ())]
  assert not any(o.output_type == 'error' for o in outputs)
  drawn = sum('image/png' in o.get('data', ()) for o in outputs)
  assert drawn == PICTURES[IN_A_KERNEL]
