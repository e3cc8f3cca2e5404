"""Tests that the notebooks run from top to bottom and have no saved outputs."""

import pathlib

import nbclient
import nbformat
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'notebooks'
FILES = sorted(path.name for path in FOLDER.glob('*.ipynb'))

# Pictures that each must draw; what they show is asserted in their cells.
PICTURES = {'pkpo.ipynb': 4}


def test_all_are_known():
  assert FILES == sorted(PICTURES)


@pytest.mark.parametrize('name', FILES)
def test_it_is_kept_clean(name):
  cells = nbformat.read(FOLDER / name, as_version=4).cells
  code = [cell for cell in cells if cell.cell_type == 'code']
  assert '%pip install' in code[0].source
  assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.parametrize('name', FILES)
def test_it_runs(name, tmp_path, monkeypatch):
  for variable in ('IPYTHONDIR', 'JUPYTER_RUNTIME_DIR'):  # not at home
    monkeypatch.setenv(variable, str(tmp_path / variable))
  book = nbformat.read(FOLDER / name, as_version=4)
  nbclient.NotebookClient(
      book, timeout=180, kernel_name='python3',
      resources={'metadata': {'path': str(tmp_path)}}).execute()
  outputs = [
      output for cell in book.cells for output in cell.get('outputs', ())]
  assert not any(o.output_type == 'error' for o in outputs)
  pictures = sum('image/png' in o.get('data', ()) for o in outputs)
  assert pictures == PICTURES[name]
