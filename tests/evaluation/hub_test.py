"""Tests of the card of an exported model, and of its upload."""

import json
import pathlib
import sys
import types

import huggingface_hub
import jax
import pytest

from jaxrl_llm import config, export
from jaxrl_llm.evaluation import hub
from jaxrl_llm.jobs import export as export_job
from jaxrl_llm.models import transformer
from tests.helpers import devices, tiny

METHODS = devices.ROOT / 'tests/outside/methods.py'


def card(tmp_path, which='best', step=4, player='policy', **fields):
  c = tiny.load(tmp_path / 'My run', steps=9, **fields)
  return hub.card(c, which, step, player, 'safetensors')


def block(text):
  return json.loads(text.partition('```json\n')[2].partition('```')[0])


def test_a_card_says_how_the_model_was_trained(tmp_path):
  (tmp_path / 'My run').mkdir()
  rows = [
      {'step': 0, 'eval/pass@1': .25, 'eval/pass@1_error': .0625},
      {'step': 4, 'eval/pass@1': .5, 'eval/pass@1_error': .125,
       'eval/pass@1_other': 1, 'eval/greedy': None, 'reward/mean': 3},
      {'step': 9, 'eval/pass@1': .75}]
  (tmp_path / 'My run' / 'metrics.jsonl').write_text(
      ''.join(json.dumps(row) + '\n' for row in rows))
  said = card(tmp_path, advantage='pkpo', pkpo__k=2)
  data = huggingface_hub.ModelCard(said).data
  assert data.library_name == 'transformers' and 'jaxrl_llm' in data.tags
  assert data.base_model is None
  for line in (
      '# My run', '- advantage: `pkpo`', '- loss.objective: `clip`',
      '| pass@1 | 0.250 ± 0.062 | 0.500 ± 0.125 | +0.250 |'):
    assert line in [' '.join(line.split()) for line in said.split('\n')]
  assert 'step 4 of 9' in said and '0.75' not in said and 'greedy' not in said
  given = block(said)
  assert given['pkpo.k'] == '2' and 'seed' not in given and (
      'workdir' not in given)
  # The settings are a config.
  (tmp_path / 'run.json').write_text(json.dumps(given))
  again = config.load(str(tmp_path / 'run.json'))
  want = tiny.load(tmp_path / 'x', steps=9, advantage='pkpo', pkpo__k=2)
  assert not config.resume_conflicts(want, again)
  # A loop of one's own has no metrics.
  (tmp_path / 'My run' / 'checkpoints').mkdir()
  assert 'run.json' in card(tmp_path)
  (tmp_path / 'My run' / 'metrics.jsonl').rename(tmp_path / 'kept')
  said = card(tmp_path)
  assert 'in a loop of its own' in said and 'loss.objective' in said
  assert 'run.json' not in said and '- advantage' not in said
  (tmp_path / 'kept').rename(tmp_path / 'My run' / 'metrics.jsonl')
  # Evaluations are of the policy; a damaged file costs no more than the table.
  assert 'held-out' not in card(tmp_path, player='actor')
  (tmp_path / 'My run' / 'metrics.jsonl').write_text('{\n{\n{')
  assert 'held-out' not in card(tmp_path)


def test_a_card_names_no_place(tmp_path):
  (tmp_path / 'Ann Doe').mkdir()
  file = tmp_path / 'Ann Doe' / 'methods.py'
  file.write_text(METHODS.read_text())
  said = card(tmp_path, advantage=f'{file}:sharper', sharper__best='0:2,2:1')
  assert '- advantage: `methods.py:sharper`' in said
  assert str(tmp_path) not in said and 'Ann' not in said
  assert block(said)['sharper.best'] == '0:2,2:1'


@pytest.mark.parametrize('value, shown', [
    ('/home/Ann Doe/p.jsonl', 'p.jsonl'), ('~/a/b.py:fn', 'b.py:fn'),
    ('gs://bucket/folder/model', 'model'), ('openai/gsm8k', 'openai/gsm8k'),
    ('run /home/ann/judge.py --x=/opt/a/b', 'run judge.py --x=b'),
    ('see\n"~ann/x/q.txt"', 'see\n"q.txt"'), ('file:///home/x/y', 'y'),
    ('https://h.org/a/b', 'https://h.org/a/b'), ('1/2 or 3/4', '1/2 or 3/4'),
    ('/no_think <a>b</a></c>', '/no_think <a>b</a></c>'),
    ((1, '/a/b'), [1, 'b']),
    ('https://me:pass@h.org/a', 'not shown'), (3, 3), (None, None),
    ('x hf_abcdefghijklmnop', 'not shown')])
def test_values_without_folders_and_secrets(value, shown):
  assert hub._public('task.x', value) == shown
  if isinstance(value, str):
    assert hub._public('judge.api_key', value) == 'not shown'
    assert hub._public('a.access_token', value) == 'not shown'


@pytest.mark.parametrize('name, shown, on_hub', [
    ('Qwen/Qwen3-1.7B', 'Qwen/Qwen3-1.7B', True), ('gpt2', 'gpt2', True),
    ('/home/ann/model/', 'model', False), ('./here/m', 'm', False),
    ('gs://b/m', 'm', False), ('mine/model', 'model', False)])
def test_what_a_model_starts_from(tmp_path, monkeypatch, name, shown, on_hub):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine/model').mkdir(parents=True)
  assert hub._base(name) == (shown, on_hub)


class Api:
  """Stand-in for the hub, which records calls and may fail at one."""

  def __init__(self, fails='', error=None):
    self.calls, self.fails = [], fails
    self.error = error or ConnectionError('no\nanswer')

  def __call__(self):
    return self

  def _call(self, name, *said):
    self.calls.append((name, *said))
    if name == self.fails:
      raise self.error

  def create_repo(self, name, private, exist_ok):
    self._call('create_repo', name, private, exist_ok)
    return types.SimpleNamespace(repo_id=f'me/{name}')

  def auth_check(self, name, write):
    self._call('auth_check', name, write)

  def upload_folder(
      self, repo_id, folder_path, commit_message, delete_patterns):
    files = {path.name for path in pathlib.Path(folder_path).iterdir()}
    self._call('upload_folder', repo_id, files, delete_patterns)
    return types.SimpleNamespace(repo_url=f'https://hub/{repo_id}')


@pytest.fixture
def push(tmp_path, monkeypatch):
  """Returns push(api, *args), which exports a run and pushes it."""
  c = tiny.load(tmp_path / 'run')
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(config.to_json(c))
  made = transformer.init(jax.random.key(0), config.model_config(c))
  monkeypatch.setattr(
      export_job, 'parameters', lambda *_: (made, config.model_config(c), 3))
  def push(api, *args, token='hf_x'):
    monkeypatch.setattr(hub, 'huggingface_hub', types.SimpleNamespace(
        HfApi=api, get_token=lambda: token,
        ModelCardData=huggingface_hub.ModelCardData))
    monkeypatch.setattr(
        sys, 'argv', ['export', f'--workdir={tmp_path}/run', *args])
    try:
      export.main()
    except SystemExit as end:
      return end.code
    return None

  return push


def test_the_folder_is_uploaded_with_its_card(push, tmp_path, capsys):
  api = Api()
  assert push(api, '--push=x', '--private') is None
  assert api.calls == [
      ('create_repo', 'x', True, True), ('auth_check', 'me/x', True),
      ('upload_folder', 'me/x',
       {'README.md', 'config.json', 'model.safetensors'},
       ['model*.safetensors*'])]
  assert 'https://hub/me/x' in capsys.readouterr().out
  assert (tmp_path / 'run/hub/README.md').exists()


@pytest.mark.parametrize('fails', ['create_repo', 'auth_check'])
def test_a_refusal_comes_before_the_export(push, tmp_path, fails):
  said = push(Api(fails), '--push=x')
  assert '--push=x' in said and 'no answer' in said and '\n' not in said
  assert not (tmp_path / 'run/hub').exists()


def test_other_mistakes_of_a_push(push, capsys):
  api = Api()
  assert push(api, '--push=') == 2 and push(api, '--private', '--out=x') == 2
  assert '--push=NAME' in capsys.readouterr().err
  assert 'on disk' in push(api, '--push=x', '--out=gs://b/x')
  assert 'hf auth login' in push(api, '--push=x', token=None)
  assert not api.calls


@pytest.mark.parametrize('error', [ConnectionError(), KeyboardInterrupt()])
def test_an_upload_that_fails_can_be_repeated(push, tmp_path, error):
  said = push(
      Api('upload_folder', error), '--push=x', f'--out={tmp_path}/my model')
  assert said.endswith(
      f"hf upload me/x '{tmp_path}/my model' . "
      "'--delete=model*.safetensors*'")
  assert (tmp_path / 'my model' / 'model.safetensors').exists()


def test_a_gguf_file_replaces_no_weights(tmp_path, monkeypatch):
  api = Api()
  monkeypatch.setattr(huggingface_hub, 'HfApi', api)
  (tmp_path / 'model.gguf').write_text('')
  hub.upload(tmp_path, 'me/x', 'Step 1')
  assert api.calls == [('upload_folder', 'me/x', {'model.gguf'}, [])]
