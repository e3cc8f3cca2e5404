"""Tests that the notebooks run from top to bottom and have no saved outputs.

`make test-slow` runs each in an environment that has only what its first cell
installs.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

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
    'cbs.ipynb': 4, 'jackpot.ipynb': 5, 'pkpo.ipynb': 4, 'speed.ipynb': 4,
    'train.ipynb': 1, 'turns.ipynb': 1}

# The others run in the tests' process, which costs less.
IN_A_KERNEL = 'speed.ipynb'

# Shorter runs and warm starts, fewer programs to compile.
SHORTER = {'    steps=40, ': '    steps=14, ',
           '    steps=30, ': '    steps=8, ',
           '    steps=500, prompts_per_step=32': (
               '    steps=20, prompts_per_step=8'),
           '    steps=200, prompts_per_step=32': (
               '    steps=8, prompts_per_step=8'),
           'layers=2, heads=4': 'layers=1, heads=4',
           'sizes = [4, 8, 16, 32, 64]': 'sizes = [8, 32]',
           'sft.update(steps=300, ': 'sft.update(steps=100, '}

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
  assert code[0].source == first_cell()
  assert not any(cell.outputs or cell.execution_count for cell in code)


def first_cell():
  """Returns the cell that all notebooks begin with."""
  cells = nbformat.read(FOLDER / FILES[0], as_version=4).cells
  return next(cell.source for cell in cells if cell.cell_type == 'code')


def installs():
  """Executes the first cell; returns what it would install."""
  found = []
  source = first_cell().replace(
      '%pip install --quiet {SOURCE}', 'found.append(str(SOURCE))')
  exec(source, {'found': found})
  return found


def test_the_first_cell_installs_what_is_missing(tmp_path, monkeypatch):
  """The checkout around it, or what the repository has."""
  assert installs() == []
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.chdir(FOLDER)
  assert installs() == [str(FOLDER.parent)]
  monkeypatch.chdir(tmp_path)  # as in Colab
  address, = re.findall(
      '^repository-code: (.*)$', (FOLDER.parent / 'CITATION.cff').read_text(),
      re.MULTILINE)
  assert installs() == [f'git+{address}']


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
  # The first cell is no Python.
  _, *rest = [cell.source for cell in cells if cell.cell_type == 'code']
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
  checked(book, IN_A_KERNEL)


def checked(book, name):
  """Returns the outputs of a notebook, without errors and with its pictures.
  """
  outputs = [
      output for cell in book.cells for output in cell.get('outputs', ())]
  assert not any(o.output_type == 'error' for o in outputs)
  drawn = sum('image/png' in o.get('data', ()) for o in outputs)
  assert drawn == PICTURES[name]
  return outputs


@pytest.fixture(scope='module')
def repository(tmp_path_factory):
  """A repository with the files of this checkout."""
  folder = tmp_path_factory.mktemp('origin')

  def git(*command, at=folder, **kwargs):
    return subprocess.run(
        ['git', *command], cwd=at, check=True, capture_output=True, **kwargs)

  git('init', '--quiet')
  files = git('ls-files', '-z', at=FOLDER.parent).stdout
  git('--work-tree', FOLDER.parent, 'add', '--pathspec-from-file=-',
      '--pathspec-file-nul', input=files, at=folder)
  git('-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-qm', 'all')
  return f'file://{folder}'


@pytest.fixture(scope='module')
def fresh(tmp_path_factory):
  """A new environment, and its kernel, with the package's requirements.

  They are those of this environment, pip among them, but not the package: a
  folder on the path has no editable installs.
  """
  folder = tmp_path_factory.mktemp('fresh')
  subprocess.run(
      [sys.executable, '-m', 'venv', '--without-pip', folder], check=True)
  python = folder / 'bin' / 'python'
  site, = folder.glob('lib/python*/site-packages')
  (site / 'requirements.pth').write_text(sysconfig.get_path('purelib'))
  done = subprocess.run(
      [python, '-c', 'import jax, jaxrl_llm'], cwd=folder, check=False,
      capture_output=True, text=True, env={
          k: v for k, v in os.environ.items() if k != 'PYTHONPATH'})
  assert "No module named 'jaxrl_llm'" in done.stderr
  kernel = folder / 'kernels' / 'fresh'
  kernel.mkdir(parents=True)
  (kernel / 'kernel.json').write_text(json.dumps(dict(
      argv=[str(python), '-m', 'ipykernel_launcher', '-f', '{connection_file}'],
      display_name='fresh', language='python')))
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', FILES)
def test_it_runs_in_a_fresh_environment(
    name, fresh, repository, tmp_path, monkeypatch):
  """As in Colab, with another address. Nothing comes from the network."""
  for variable, value in (
      ('IPYTHONDIR', tmp_path), ('JUPYTER_RUNTIME_DIR', tmp_path),
      ('JUPYTER_PATH', fresh), ('PIP_NO_INDEX', 1),
      ('PIP_NO_BUILD_ISOLATION', 0)):
    monkeypatch.setenv(variable, str(value))
  monkeypatch.delenv('PYTHONPATH', raising=False)
  book = nbformat.read(FOLDER / name, as_version=4)
  first = next(cell for cell in book.cells if cell.cell_type == 'code')
  first.source = re.sub('https://[^\']*', repository, first.source)
  nbclient.NotebookClient(
      book, timeout=540, kernel_name='fresh',
      resources={'metadata': {'path': str(tmp_path)}}).execute()
  outputs = checked(book, name)
  least = {'train.ipynb': .8, 'turns.ipynb': .6}
  if name in least:
    said = ''.join(o.text for o in outputs if o.output_type == 'stream')
    final, = re.findall(r"'pass@1': {'start': [\d.]+, 'final': ([\d.]+)}", said)
    assert float(final) > least[name]
