"""Tests of the package: what a wheel holds, and that it works by itself.

The slow test installs a wheel beside no checkout and runs every program.
"""

import importlib
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest
from setuptools import Distribution
from setuptools.command import build_py

import jaxrl_llm
from jaxrl_llm import config
from jaxrl_llm.config import files as config_files
from tests.helpers import devices

ROOT = devices.ROOT


@pytest.fixture(name='setup', scope='module')
def _setup():
  """The arguments of setup.py."""
  import setuptools
  found = {}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(setuptools, 'setup', lambda **given: found.update(given))
    patch.chdir(ROOT)
    exec(compile((ROOT / 'setup.py').read_text(), 'setup.py', 'exec'),
         {'__file__': str(ROOT / 'setup.py')})
  return found


def test_a_wheel_has_every_file_of_the_package_and_nothing_else(
    setup, monkeypatch):
  monkeypatch.chdir(ROOT)
  command = build_py.build_py(
      Distribution({**setup, 'script_name': 'setup.py'}))
  command.build_lib = 'x'
  command.finalize_options()
  found = {pathlib.PurePath(path).relative_to('x').as_posix()
           for path in command.get_outputs(include_bytecode=False)}
  own = {(prefix / path.relative_to(folder)).as_posix()
         for folder, prefix in (
             (ROOT / 'jaxrl_llm', pathlib.PurePath('jaxrl_llm')),
             (ROOT / 'configs', pathlib.PurePath('jaxrl_llm/configs')),
             (ROOT / 'examples', pathlib.PurePath('jaxrl_llm/examples')),
             (ROOT / 'launch', pathlib.PurePath('jaxrl_llm/launch')))
         for path in folder.rglob('*')
         if path.is_file() and path.parent.name != '__pycache__'}
  assert found == own
  assert {'jaxrl_llm/py.typed', 'jaxrl_llm/config/coming_from_trl.md',
          'jaxrl_llm/configs/pkpo/countdown.py',
          'jaxrl_llm/configs/real/requirements.txt',
          'jaxrl_llm/launch/aot/check.py'} <= found


def test_programs_and_version(setup):
  assert setup['version'] == jaxrl_llm.__version__
  scripts = setup['entry_points']['console_scripts']
  assert len(scripts) > 4
  for line in scripts:
    name, _, target = line.partition(' = ')
    module, _, function = target.partition(':')
    assert callable(getattr(importlib.import_module(module), function)), name


@pytest.fixture(name='outside')
def _outside(tmp_path, monkeypatch):
  """A folder that has nothing to do with the checkout."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [
      path for path in sys.path if path and not pathlib.Path(
          path, 'configs').exists()])
  for name in [n for n in sys.modules if n.split('.')[0] in (
      'configs', 'launch')]:
    monkeypatch.delitem(sys.modules, name)
  return tmp_path


def test_every_config_has_a_name_that_works_in_any_folder(outside):
  names = config_files.shipped()
  assert 'pkpo/gemma2_2b_math' in names and 'countdown' in names
  assert len(names) == len([
      path for path in (ROOT / 'configs').rglob('*.py')
      if path.parent.name != 'papers'])
  for name in names:
    path = f'configs/{name}.py'
    assert config_files.existing(name).samefile(ROOT / path)
    assert config_files.existing(path).samefile(ROOT / path)
    assert callable(config.load_file(name).get_config)
  assert config.load('pkpo/gemma2_2b_math:4k').max_response > (
      config.load('pkpo/gemma2_2b_math').max_response)
  assert not [n for n in sys.modules if n.split('.')[0] in (
      'configs', 'launch')]


def test_a_users_config_builds_on_one_of_the_package(outside):
  (outside / 'mine.py').write_text(
      'from jaxrl_llm.configs.pkpo import countdown\n'
      'def get_config(arg=None):\n  c = countdown.get_config()\n'
      '  c.steps = 7\n  return c\n')
  mine = config.load('mine.py')
  assert (mine.steps, mine.advantage) == (7, 'pkpo')


def test_which_file_a_name_means(outside):
  """A path is the user's own file; a name is the package's."""
  own = 'from jaxrl_llm import config\ndef get_config():\n' \
        '  c = config.base()\n  c.steps = 7\n  return c\n'
  (outside / 'countdown').mkdir()
  assert config.load('countdown').steps == 400
  (outside / 'countdown.py').write_text(own)
  assert config.load('countdown').steps == 400
  assert config.load('countdown.py').steps == 7
  (outside / 'configs').mkdir()
  (outside / 'configs/countdown.py').write_text(own)
  assert config.load('configs/countdown.py').steps == 7


@pytest.mark.parametrize('name, said', [
    ('contdown', 'Did you mean countdown?'),
    ('pkpo/gema2_2b_math:4k', 'Did you mean pkpo/gemma2_2b_math?'),
    ('min', 'Did you mean mine.py?'),
    ('mine', 'Did you mean mine.py?'),
    ('speed.py', 'There is no config file speed.py'),
    ('../configs/countdown', 'There is no config file'),
    ('pkpo', 'There is no config file pkpo.')])
def test_a_wrong_name_is_named(outside, name, said):
  (outside / 'mine.py').touch()
  with pytest.raises(ValueError) as error:
    config.load(name)
  assert said in str(error.value) and name.partition(':')[0] in str(error.value)


def run(folder, *words):
  """Runs a program of the installed wheel; returns its output."""
  done = subprocess.run(
      [folder / 'venv/bin' / words[0], *words[1:]], cwd=folder / 'work',
      capture_output=True, text=True, check=False, env={
          'PATH': '/usr/bin:/bin', 'HOME': str(folder), 'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': devices.QUICK})
  assert done.returncode == 0, f'{words}: {done.stdout}{done.stderr}'
  return done.stdout


@pytest.fixture(name='wheel')
def _wheel(tmp_path):
  """A folder with an environment that has the wheel, and a folder to work in.

  Its other packages are those of this environment, without its checkout.
  """
  pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check', '-q']
  shutil.copytree(ROOT, tmp_path / 'source', symlinks=True, ignore=(
      shutil.ignore_patterns('.*', 'runs', 'build', '__pycache__',
                             '*.egg-info')))
  subprocess.run([
      *pip, 'wheel', '--no-deps', '--no-build-isolation', '-w', '.',
      './source'], cwd=tmp_path, check=True)
  shutil.rmtree(tmp_path / 'source')
  subprocess.run([sys.executable, '-m', 'venv', '--without-pip', 'venv'],
                 cwd=tmp_path, check=True)
  python = tmp_path / 'venv/bin/python'
  site = subprocess.run(
      [python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))'],
      check=True, capture_output=True, text=True).stdout.strip()
  file, = tmp_path.glob('*.whl')
  subprocess.run([
      *pip, '--python', python, 'install', '--no-deps', '--no-index',
      '--ignore-installed', file], check=True)
  pathlib.Path(site, 'others.pth').write_text(sysconfig.get_path('purelib'))
  (tmp_path / 'work').mkdir()
  return tmp_path


SMALL = ('--config.sft.steps=40', '--config.eval.samples=2',
         '--config.eval.k=1', '--config.eval.every=0',
         '--config.log.display=false')
SWEEP = '''
from jaxrl_llm.configs.pkpo import countdown

def get_config(arg=None):
  return countdown.get_config()

def get_hyper(hyper):
  return hyper.sweep('pkpo.k', [1, 2])
'''


@pytest.mark.slow
@devices.needs_libtpu
def test_a_wheel_without_a_checkout(wheel):
  work = wheel / 'work'
  where = run(wheel, 'python', '-c', 'import jaxrl_llm, jaxrl_llm.launch.run\n'
              'print(jaxrl_llm.__file__, jaxrl_llm.launch.run.__file__)\n'
              'try:\n  import configs\nexcept ImportError:\n  print("none")')
  assert where.count(f'{wheel}/venv/') == 2 and where.endswith('none\n')
  for name in ('train', 'evaluate', 'export', 'sweep', 'report',
               'compile-check'):
    assert 'jaxrl_llm.' in run(wheel, f'jaxrl-{name}', '--help')
  assert 'samples_per_prompt' in run(wheel, 'jaxrl-train', '--help=verl')
  train = 'jaxrl-train', '--config=countdown', *SMALL, '--config.steps=20'
  run(wheel, *train)
  assert (work / 'runs/countdown/summary.json').exists()
  run(wheel, *train)  # is done
  run(wheel, 'python', '-m', 'jaxrl_llm.evaluate',
      '--config=runs/countdown/config.json')
  run(wheel, 'jaxrl-evaluate', '--config=runs/countdown/config.json')
  run(wheel, 'jaxrl-export', '--workdir=runs/countdown', '--out=mine')
  assert (work / 'mine/model.safetensors').exists()
  run(wheel, 'jaxrl-report', 'runs/countdown', '--out=page.html')
  assert '</html>' in (work / 'page.html').read_text()
  (work / 'sweep.py').write_text(SWEEP)
  said = run(wheel, 'jaxrl-sweep', '--config=sweep.py', *SMALL,
             '--config.steps=2')
  assert said.count(': done') == 2
  assert (work / 'runs/sweep-sweep/sweep.md').exists()
  assert 'Estimate' in run(
      wheel, 'jaxrl-compile-check', '--config=countdown',
      '--topology=v5e:2x2')
