"""Tests of configs: table, files, command line, and checks across fields."""

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Annotated

import pytest

from jaxrl_llm import config
from jaxrl_llm.config import plugs
from jaxrl_llm.config import table as table_lib
from jaxrl_llm.models.config import PRESETS, RopeScaling

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / 'configs/countdown.py')

FILE = '''
from jaxrl_llm import config

def get_config(arg=None):
  c = config.base()
  c.steps = 300
  c.loss.clip_high = 0.28
  c.task.seed = 3
  if arg == 'unknown':
    c.optimizer.lr = 1.0
  if arg == 'type':
    c.optimizer.learning_rate = 'fast'
  if arg == 'none':
    c.steps = None
  if arg == 'bool':
    c.steps = True
  if arg == 'option':
    c.task.sede = 1
  if arg == 'bug':
    c.steps = undefined
  return c
'''


@pytest.fixture(name='file')
def _file(tmp_path):
  path = tmp_path / 'small.py'
  path.write_text(FILE)
  return str(path)


def refusal(capsys, *argv):
  """Returns the error message for a wrong command line."""
  with pytest.raises(SystemExit) as stop:
    config.parse(argv)
  assert stop.value.code == 2
  out, err = capsys.readouterr()
  assert not out
  assert err.endswith('\n') and err.count('\n') == 1, err
  return err


def test_command_line_overrides_the_file(file):
  c, name = config.parse([
      f'--config={file}', '--config.loss.clip_high=.3', '--config.seed=7'])
  assert name == 'small'
  assert (c.steps, c.loss.clip_high, c.seed, c.task.seed) == (300, 0.3, 7, 3)
  assert c.workdir == 'runs/small'
  assert config.load(file, {'workdir': 'none'}).workdir == 'runs/small'
  assert c.task.kinds == ('two', 'three', 'four', 'five')  # option's default
  with pytest.raises(AttributeError):
    c.task.other = 1


@pytest.mark.parametrize('name,text,value', [
    ('steps', '1_000', 1000),
    ('mesh.fsdp', '-1', -1),
    ('optimizer.learning_rate', '1e-3', 1e-3),
    ('optimizer.learning_rate', '1', 1.0),
    ('loss.entropy_bonus', '-.5', -0.5),
    ('loss.clip_high', 'inf', float('inf')),
    ('loss.dual_clip', '3', 3.0),
    ('loss.dual_clip', 'none', None),
    ('sampling.chunk', 'None', None),
    ('log.display', 'false', False),
    ('log.display', 'True', True),
    ('log.display', '0', False),
    ('eval.k', '1', (1,)),
    ('eval.k', '1,8', (1, 8)),
    ('eval.k', '(1, 8)', (1, 8)),
    ('eval.k', '[2,4,]', (2, 4)),
    ('sampling.buckets', '', ()),
    ('sampling.buckets', '()', ()),
    ('learner.tokens_per_microbatch', '300', 300),
    ('learner.tokens_per_microbatch', 'auto', 'auto'),
    ('eval_k', 'none', ()),
    ('eval_k', 'None', ()),
    ('task.shown', 'none', ()),
    ('sampling.chunk', '128', 128),
    ('loss.clip_high', '1e300', 1e300),
    ('optimizer.learning_rate', '1e-300', 1e-300),
    ('seed', '4294967295', 4294967295),
    ('task.kinds', "('two', 'four')", ('two', 'four')),
    ('task.solved', '.5,1', (0.5, 1.0)),
    ('overlong.mode', 'none', 'none'),
    ('workdir', 'a=b/c', 'a=b/c'),
    ('model.layers', '2', 2),
    ('model.qk_norm', 'false', False),
])
def test_text_becomes_the_value_of_its_type(file, name, text, value):
  _, overrides = config.split([f'--config.{name}={text}'])
  got = config.flatten(config.load(file, overrides))[name]
  assert got == value
  assert type(got) is type(value)
  # What is printed can be typed again.
  again = config.load(file, {name: config.to_text(got)})
  assert config.flatten(again)[name] == value


@pytest.mark.parametrize('arg,words', [
    # Unknown: the field that was meant.
    ('lr=1', ['lr is not', 'use optimizer.learning_rate']),
    ('sft.lr=1', ['did you mean sft.learning_rate?']),
    ('sampling.temprature=1', ['did you mean sampling.temperature?']),
    ('temperature=1', ['use sampling.temperature']),
    ('max_prompts=1', ['did you mean max_prompt?']),
    ('task.sede=1', ['task.sede is not', 'did you mean task.seed?']),
    ('model.layer=1', ['did you mean model.layers?']),
    ('zzz=1', ['zzz is not', '--help']),
    ('loss=1', ['loss is a section', 'loss.objective']),
    # Wrong types: the field, the value and what it should be.
    ('steps=abc', ['steps=abc', '(int)']),
    ('steps=1.5', ['steps=1.5', '(int)']),
    ('steps=none', ['steps=none', '(int)']),
    ('steps=true', ['steps=true', '(int)']),
    ('optimizer.learning_rate=x', ['learning_rate=x', '(float)']),
    ('optimizer.learning_rate=nan', ['learning_rate=nan', '(float)']),
    ('loss.dual_clip=x', ['loss.dual_clip=x', '(float), or none']),
    ('log.display=2', ['log.display=2', '(bool)']),
    ('eval.k=1,x', ['eval.k=1,x', 'int values']),
    ('task.seed=x', ['task.seed=x', '(int)']),
    ('advantage=pkpo --config.pkpo.k=0:8,x:1',
     ['pkpo.k=0:8,x:1', 'such as 0:8,1500:1']),
    ('advantage=pkpo --config.pkpo.k=10:8', ['pkpo.k=10:8', 'begin at step 0']),
    # Out of range.
    ('steps=-1', ['steps=-1', '[0, inf)']),
    ('max_response=0', ['max_response=0', '[1, inf)']),
    ('sampling.top_p=0', ['sampling.top_p=0', '(0, 1]']),
    ('sampling.top_p=1.1', ['sampling.top_p=1.1', '(0, 1]']),
    ('sampling.temperature=-1', ['sampling.temperature=-1', '(0, inf)']),
    ('loss.clip_low=1.5', ['loss.clip_low=1.5', '[0, 1]']),
    ('loss.dual_clip=1', ['loss.dual_clip=1', '(1, inf)']),
    ('checkpoint.every=-1', ['checkpoint.every=-1']),
    ('eval.k=0,1', ['eval.k=0', '[1, inf)']),
    ('eval_k=0,1', ['eval_k=0', '[1, inf)']),
    ('model.heads=0', ['model.heads=0', '[1, inf)']),
    # Out of range where the run computes: float32, int32.
    ('sampling.temperature=1e300', ['1e+300 is inf in float32', '(0, inf)']),
    ('sampling.temperature=1e-300', ['1e-300 is 0 in float32']),
    ('sampling.temperature=1e-40', ['1e-40 is 0 in float32']),
    ('optimizer.eps=1e-300', ['optimizer.eps=1e-300 is 0 in float32']),
    ('optimizer.b1=0.9999999999', ['is 1 in float32', '[0, 1)']),
    ('loss.entropy_bonus=-1e300', ['is -inf in float32']),
    ('model.norm_eps=1e-300', ['model.norm_eps=1e-300 is 0']),
    ('steps=2147483648', ['steps=2147483648', '2147483647']),
    ('eval_k=1,99999999999', ['eval_k=99999999999']),
    ('task.seed=99999999999', ['task.seed=99999999999']),
    ('task.seed=-99999999999', ['task.seed=-99999999999']),
    ('seed=4294967296', ['seed=4294967296', '[0, 4294967295]']),
    ('mesh.cpu_devices=100000', ['mesh.cpu_devices=100000', '4096']),
    # Empty or repeated.
    ('workdir=', ['workdir is empty', 'or none']),
    ('eval.k=', ['eval.k is empty']),
    ('eval.k=none', ['eval.k is empty']),
    ('eval.k=1,8,1', ['eval.k=1,8,1', 'twice']),
    ('eval_k=1,1', ['eval_k=1,1', 'twice']),
    ('sampling.buckets=3,3', ['sampling.buckets=3,3', 'twice']),
    ('learner.tokens_per_microbatch=many', ['(int) or auto']),
    ('task.kinds=two,two,three,four', ['kinds=', 'twice']),
    # Not a path, not a text.
    ('workdir=~nouser/x', ['~nouser/x', "no user 'nouser'", './~nouser/x']),
    ('model.hf=~nouser', ["no user 'nouser'"]),
    ('task.name=~nouser/x.py', ["no user 'nouser'"]),
    ('workdir=a\0b', ['workdir', 'NUL']),
    ('workdir=a\udcffb', ["workdir='a\\udcffb'", 'not valid Unicode']),
    ('steps=' + 'x' * 5000, ['steps=xxx', 'xxx... must be']),
    ('lora.targets=( --config.lora.rank=2', ['lora.targets=(', 'regular']),
    ('sampling.chunk=129', ['sampling.chunk=129', '128 positions']),
    # Unknown choices.
    ('task=contdown', ['task.name=contdown', "Did you mean 'countdown'?"]),
    ('advantage=grpoo', ['advantage=grpoo', "Did you mean 'grpo'?"]),
    ('learner.attention=splas', ["Did you mean 'splash'?"]),
    ('learner.remat=true', ['learner.remat=true is not known', 'attention']),
    ('advantage=pkpo --config.pkpo.transform=slo',
     ['pkpo.transform=slo', "'sloo'"]),
    ('loss.objective=ppo', ['loss.objective=ppo', "Did you mean 'clip'?"]),
    ('loss.objective=gsp', ['loss.objective=gsp', "Did you mean 'gspo'?"]),
    ('learner.skip_zero=true --config.drop_zero_advantage=true',
     ['learner.skip_zero=true has no effect with drop_zero_advantage=true']),
    ('loss.aggregation=mean', ['loss.aggregation=mean', 'token_mean']),
    ('loss.importance=tiss', ['loss.importance=tiss', "'tis'"]),
    ('loss.kl_estimator=k4', ['loss.kl_estimator=k4', 'k3']),
    ('overlong.mode=mas', ['overlong.mode=mas', "'mask'"]),
    ('optimizer.schedule=cos', ['optimizer.schedule=cos', 'cosine']),
    ('model.preset=qwen3-1b', ['model.preset=qwen3-1b', 'qwen3-1.7b']),
    # Fields that do not go together.
    ('samples_per_prompt=1',
     ['samples_per_prompt=1', 'advantage=grpo', 'advantage=reinforce']),
    ('learner.updates=3', ['learner.updates=3', '256 responses', 'use 2.']),
    ('eval.k=1,16', ['eval.k=16', 'eval.samples=8']),
    ('advantage=pkpo --config.pkpo.k=9',
     ['pkpo.k=9', 'samples_per_prompt=8', '1 to 8']),
    ('advantage=pkpo --config.pkpo.k=0:4,9:0', ['pkpo.k=0', '1 to 8']),
    ('advantage=pkpo --config.pkpo.transform=sloo --config.pkpo.k=8',
     ['pkpo.k=8', 'sloo can use k of 1 to 7']),
    ('advantage=pkpo --config.samples_per_prompt=1',
     ['samples_per_prompt=1', 'advantage=pkpo', 'advantage=reinforce']),
    ('samples_per_prompt=1 --config.curriculum=dynamic '
     '--config.advantage=reinforce',
     ['samples_per_prompt=1', 'curriculum=dynamic', 'curriculum=uniform']),
    ('replay.rounds=2',
     ['replay.rounds has', 'no effect without selection=replay']),
    ('cbs.rounds=3', ['cbs.rounds has', 'no effect without selection=cbs']),
    ('selection=cbs --config.cbs.keep=.5',
     ['cbs.keep=0.5', 'no effect with cbs.scope=global']),
    ('selection=largest_advantage --config.largest_advantage.keep=.5',
     ['largest_advantage.keep=0.5',
      'no effect with largest_advantage.scope=global']),
    ('selection=cbs --config.cbs.pool=true',
     ['cbs.pool=true', 'no effect with cbs.scope=global']),
    ('selection=cbs --config.cbs.scope=intra_group --config.cbs.rounds=3',
     ['cbs.rounds=3', 'no effect with cbs.scope=intra_group']),
    ('overlong.mode=penalty', ['overlong.window=0', 'max_response=64']),
    ('mesh.fsdp=-1', ['mesh=-1,-1,1']),
    ('mesh.fsdp=0', ['mesh=-1,0,1']),
    ('model.kv_heads=3', ['model.kv_heads=3', 'heads=4']),
    ('actor.model.preset=tiny --config.actor.model.vocab_size=24 '
     '--config.actor.model.kv_heads=3', ['actor.model.kv_heads=3', 'heads=4']),
    ('model.rope_scaling=8', ['model.rope_scaling=8.0', '4 numbers']),
    ('learner.attention=cudnn', ['model.dtype=bfloat16']),
    ('loss.replay_experts=true',
     ['loss.replay_experts=True needs a model with experts', 'tiny has not']),
    ('loss.replay_experts=true --config.model.experts=4 '
     '--config.model.experts_per_token=2 --config.model.expert_width=8 '
     '--config.actor.model.preset=tiny',
     ['loss.replay_experts=True', 'the actor is another model']),
    ('task.kinds=two', ['kinds=', 'train=']),
])
def test_mistakes_are_refused_in_one_sentence(capsys, file, arg, words):
  said = refusal(capsys, f'--config={file}', *f'--config.{arg}'.split())
  for word in words:
    assert word in said


def test_paths_begin_at_home(file, monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  c = config.load(file, {
      'workdir': '~/a', 'model.hf': '~/b', 'sft.cache': '~'})
  assert c.workdir == '/home/me/a' and c.model.hf == '/home/me/b'
  assert c.sft.cache == '/home/me'
  monkeypatch.setenv('HOME', str(pathlib.Path(file).parent))
  assert config.load('~/small.py').steps == 300


def test_values_of_any_type_are_refused_in_one_line(file):
  class Odd:
    def __str__(self):
      raise OSError

  for value in (Odd(), 10 ** 5000, {1, 2}, b'x', 'a\nb', object):
    for name in ('steps', 'optimizer.learning_rate', 'log.display', 'eval.k'):
      with pytest.raises(ValueError, match=f'^{name}=.*(must|is)') as error:
        config.load(file, {name: value})
      assert len(str(error.value)) < 250 and '\n' not in str(error.value)


def test_reinforce_needs_no_group(file):
  config.parse([f'--config={file}', '--config.samples_per_prompt=1',
                '--config.advantage=reinforce'])


@pytest.mark.parametrize('argv,words', [
    ([], ['--config=countdown', '--help']),
    (['--config={}x'], ['There is no config file', 'Did you mean {}?']),
    (['--config={}', '--config.steps'], ['--config.steps is not understood']),
    (['--config={}', '--steps=1'],
     ['--steps=1 is not', '--config.steps=VALUE']),
    (['--config={}', 'steps=1'], ['steps=1 is not understood']),
    (['--config={}:unknown'],
     ['{}, line 10: optimizer.lr is not', 'optimizer.l']),
    (['--config={}:type'], ['optimizer.learning_rate=fast', '(float)']),
    (['--config={}:none'], ['steps=None', '(int)']),
    (['--config={}:bool'], ['steps=True', '(int)']),
    (['--config={}:bug'], ["NameError: name 'undefined'", '{}, line 20.']),
    (['--config={}:option'], ['task.sede', 'task.seed?']),
    (['--config={}', '--config.lr=1', '--help'], ['learning_rate.']),
])
def test_mistakes_of_form_and_in_files(capsys, file, argv, words):
  said = refusal(capsys, *(arg.format(file) for arg in argv))
  for word in words:
    assert word.format(file) in said


def test_names_of_runs():
  assert config.name_of('configs/countdown.py') == 'countdown'
  assert config.name_of('countdown.py:a/b,c=1') == 'countdown-a-b-c=1'


def test_the_title_names_model_and_task(tmp_path):
  own = tmp_path / 'dice.py'
  own.write_text(
      'import dataclasses\n@dataclasses.dataclass\nclass Options:\n  n: int = 6'
      '\n\ndef create(tokenizer, options: Options):\n  pass\n')

  def title(fields):
    return config.title(config.complete(config.base(), fields, 'run'), 'run')

  assert title({}) == 'run: tiny on countdown'
  assert title({
      'model.hf': 'Qwen/Qwen2.5-0.5B', 'task.name': 'math',
      'task.path': ('data/gsm8k.jsonl.gz', 'b.jsonl'),
  }) == 'run: Qwen2.5-0.5B on math gsm8k'
  assert title({
      'model.hf': f'{tmp_path}/SmolLM2-135M/', 'task.name': str(own),
  }) == 'run: SmolLM2-135M on dice'


def test_a_new_task_brings_its_own_options(file, monkeypatch):
  def sums(
      tokenizer, *, digits: int = 2, share: Annotated[float, '[0, 1]'] = 0.5):
    """Makes sums.

    Args:
      tokenizer: of the model.
      digits: of the largest number.
      share: of sums with a carry,
        over all of them.
    """

  monkeypatch.setitem(plugs.known('task.name'), 'sums', sums)
  # The file's task.seed is Countdown's, so it goes with Countdown.
  c = config.load(file, {'task.digits': '3', 'task': 'sums'})
  assert c.task.to_dict() == {'name': 'sums', 'digits': 3, 'share': 0.5}
  field = table_lib.table({'task.name': 'sums'})['task.share']
  assert field.meaning == 'of sums with a carry, over all of them'
  assert field.affects == ('weights', 'sft', 'evaluation')
  with pytest.raises(ValueError, match='task.seed has no effect without task'):
    config.load(file, {'task.seed': 1, 'task': 'sums'})
  with pytest.raises(ValueError, match=r'task.share=2.0 must lie in \[0, 1\]'):
    config.load(file, {'task.share': 2, 'task': 'sums'})
  c = config.load(file, {'task': 'countdown'})
  assert c.task.seed == 3


def test_model_overrides():
  c = config.base()
  assert config.model_config(c) == PRESETS['tiny']
  c.model.layers = 5
  c.model.rope_scaling = (8.0, 1.0, 4.0, 8192.0)
  want = dataclasses.replace(
      PRESETS['tiny'], layers=5, rope_scaling=RopeScaling(8, 1, 4, 8192))
  assert config.model_config(c) == want
  llama = config.base()
  llama.model.preset, llama.model.rope_scaling = 'llama3.1-8b', (0.0,)
  assert config.model_config(llama).rope_scaling is None
  gemma = config.base()
  gemma.model.preset = 'gemma2-2b'
  gemma.model.window = gemma.model.attention_softcap = 0
  gemma.model.post_norms = False
  model = config.model_config(gemma)
  assert model.window is None and model.attention_softcap is None
  assert model.logit_softcap == 30.0 and model.post_norms is False


def test_cudnn_refuses_a_model_it_cannot_run(file):
  bad = {'learner.attention': 'cudnn', 'model.dtype': 'bfloat16',
         'model.preset': 'gemma2-2b'}
  with pytest.raises(ValueError, match='sliding window or soft cap'):
    config.validate(config.load(file, bad))
  config.validate(config.load(file, {**bad, 'model.preset': 'qwen3-1.7b'}))


def test_json_is_a_config_file_too(file, tmp_path):
  c = config.load(file, {'eval.k': (1, 2), 'loss.clip_high': float('inf')})
  saved = tmp_path / 'config.json'
  saved.write_text(config.to_json(c))
  assert config.load(str(saved)) == c
  assert config.difference(json.loads(saved.read_text()), c) == {}


def test_mistakes_show_no_traceback(file):
  done = subprocess.run(
      [sys.executable, '-c', 'import sys; from jaxrl_llm import config; '
       'config.parse(sys.argv[1:])', f'--config={file}', '--config.lr=1'],
      cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 2
  assert done.stderr.count('\n') == 1 and 'learning_rate' in done.stderr
