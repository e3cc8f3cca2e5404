"""Tests of the answers to names that are not fields."""

import ast
import importlib.util
import pathlib
import re

import pytest

import jaxrl_llm
from jaxrl_llm import config
from jaxrl_llm.config import names
from jaxrl_llm.config.table import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs/coming_from_trl.md'
# The names that scripts of these libraries set most, by their documentation.
USUAL = {
    'num_generations': 'samples_per_prompt',
    'per_device_train_batch_size': 'prompts_per_step or sft.batch',
    'generation_batch_size': 'prompts_per_step',
    'gradient_accumulation_steps': 'learner.tokens_per_microbatch',
    'steps_per_generation': 'learner.updates',
    'num_iterations': 'learner.epochs',
    'max_completion_length': 'max_response',
    'max_prompt_length': 'max_prompt',
    'max_steps': 'steps or sft.steps',
    'num_train_epochs': 'steps or sft.epochs',
    'learning_rate': 'optimizer.learning_rate or sft.learning_rate',
    'lr_scheduler_type': 'optimizer.schedule',
    'warmup_steps': 'optimizer.warmup_steps or sft.warmup_steps',
    'max_grad_norm': 'optimizer.max_grad_norm',
    'beta': 'loss.kl_coef',
    'epsilon': 'loss.clip_low',
    'epsilon_high': 'loss.clip_high',
    'loss_type': 'loss.aggregation',
    'scale_rewards': 'advantage',
    'mask_truncated_completions': 'overlong.mode=mask',
    'temperature': 'sampling.temperature',
    'top_p': 'sampling.top_p',
    'bf16': 'model.dtype=bfloat16',
    'gradient_checkpointing': 'learner.remat',
    'output_dir': 'workdir',
    'save_steps': 'checkpoint.every',
    'eval_steps': 'eval.every',
    'logging_steps': 'log.every',
    'report_to': 'log.tensorboard or log.wandb',
    'rollout.n': 'samples_per_prompt',
    'actor_rollout_ref.rollout.n': 'samples_per_prompt',
    'data.train_batch_size': 'prompts_per_step',
    'data.max_response_length': 'max_response',
    'data.train_files': 'task.path',
    'actor_rollout_ref.model.path': 'model.hf',
    'actor_rollout_ref.actor.optim.lr': 'optimizer.learning_rate',
    'actor.ppo_mini_batch_size': 'learner.updates',
    'ppo_micro_batch_size_per_gpu': 'learner.tokens_per_microbatch',
    'kl_loss_coef': 'loss.kl_coef',
    'clip_ratio_high': 'loss.clip_high',
    'entropy_coeff': 'loss.entropy_bonus',
    'algorithm.adv_estimator': 'advantage',
    'custom_reward_function.path': 'task.reward',
    'trainer.total_training_steps': 'steps',
    'trainer.save_freq': 'checkpoint.every',
    'trainer.test_freq': 'eval.every',
    'n_samples_per_prompt': 'samples_per_prompt',
    'rollout_batch_size': 'prompts_per_step',
    'micro_train_batch_size': 'learner.tokens_per_microbatch',
    'init_kl_coef': 'loss.kl_coef',
    'eps_clip_low_high': 'loss.clip_low or loss.clip_high',
    'actor_learning_rate': 'optimizer.learning_rate',
    'advantage_estimator': 'advantage',
    'generate_max_len': 'max_response',
    'pretrain': 'model.hf',
    'prompt_data': 'task.path',
}


def answer(name):
  return names.unknown(name, table())


@pytest.mark.parametrize('name', USUAL)
def test_usual_names_of_other_libraries(name):
  said = answer(name)
  for use in re.findall(r': use ([^;(.]+(?:\.\w+[^;(.]*)*)', said):
    assert use.strip(' .') == USUAL[name], said
  assert ': use ' in said and said.count('\n') == 0


@pytest.mark.parametrize('name, words', [
    # What differs is said.
    ('per_device_train_batch_size', ['problems of all devices, not responses']),
    ('num_train_epochs', ['no epochs']),
    ('epsilon', ['set loss.clip_high too']),
    ('max_length', ['TRL: use sft.max_length', 'sft.too_long']),
    ('packing', ['always packed whole']),
    ('assistant_only_loss', ['use sft.turns']),
    ('actor_rollout_ref.rollout.top_k', ['0 here, not -1']),
    # What a config could choose, and does not.
    ('data.train_files', ['task.path (with task.name=']),
    ('vllm_importance_sampling_cap', ['with loss.importance=tis or icepop']),
    # Two libraries mean different things by one name.
    ('train_batch_size', [
        'verl (data.train_batch_size): use prompts_per_step',
        'OpenRLHF: use learner.updates']),
    ('n', ['samples_per_prompt', 'rollout.val_kwargs.n): use eval.samples']),
    # In a section of ours or of nobody's, and as an option of a program.
    ('loss.beta', ['TRL (beta): use loss.kl_coef']),
    ('training_args.num_generations', ['use samples_per_prompt']),
    ('num-generations', ['use samples_per_prompt']),
    # Nothing of ours does this.
    ('use_vllm', ['no counterpart']), ('vllm_server_port', ['no counterpart']),
    ('critic.optim.lr', ['verl', 'no counterpart']),
    ('algorithm.gamma', ['no counterpart']),
    # Sections of verl.
    ('actor_rollout_ref', ['section of verl', '--help=verl']),
    ('trainer', ['section of verl']),
])
def test_what_differs_is_said(name, words):
  for word in words:
    assert word in answer(name), answer(name)


@pytest.mark.parametrize('name', [
    'zzz', 'gpu', 'train_on_tpu', 'sampling.n', 'learner.batch_size',
    'log_softmax', 'label_names', 'neftune_noise_alpha', 'debug', 'use_cache'])
def test_no_field_is_guessed(name):
  """The fields that look most like these do something else."""
  assert re.fullmatch(
      rf'{name} is not a field of this config: --help=\w+ lists them all\.',
      answer(name))


@pytest.mark.parametrize('name, field', [
    ('stpes', 'steps'), ('model.widht', 'model.width'), ('lr', 'learning_rate'),
    ('sft.lr', 'sft.learning_rate'), ('kl', 'loss.kl_coef'),
    ('epochs', 'learner.epochs'), ('sampling.temp', 'sampling.temperature'),
    ('learning_rates', 'learning_rate'), ('evals.every', 'eval.every'),
    ('warm_start.lr', 'sft.learning_rate')])
def test_a_near_field_is_offered(name, field):
  assert field in answer(name)


@pytest.mark.parametrize('name, said', [
    ('warm_start.steps', 'warm_start.steps is sft.steps now.'),
    ('warm_start.cache', 'warm_start.cache is sft.cache now.'),
    ('warm_start', 'warm_start is sft now.')])
def test_a_former_name_leads_to_the_new_one(name, said):
  assert answer(name) == said


def rows():
  for library, found in names.libraries().items():
    for row in found:
      yield pytest.param(library, row, id=f'{library}-{row.names[0]}')


@pytest.mark.parametrize('library, row', [*rows()])
def test_our_names_are_fields_and_choices(library, row):
  said = [*row.ours, *re.findall('`(.+?)`', row.note)]
  for name, _, value in (text.partition('=') for text in said):
    if name == '--help':
      assert value in ('sampling', 'model', 'logging')
      continue
    choice = '' if name in table() else names.elsewhere(name)
    assert name in table() or choice, name
    if value and 'FILE' not in value:
      by, _, plug = choice.split(' or ')[0].partition('=')
      config.complete({}, {by: plug, name: value} if by else {name: value}, 'x')
  # A field of ours is another library's name only where it is the same thing.
  assert not {*row.names} & {*table()} - {*row.ours}


def test_each_library_has_a_name_once():
  for library, found in names.libraries().items():
    every = [name for row in found for name in row.names]
    assert len(every) == len({*every}) > 60, library


@pytest.mark.parametrize('name, least', [('grpo', 60), ('sft', 20)])
def test_every_option_of_trl_is_known(name, least):
  """No option of GRPOConfig or SFTConfig is left to a guess."""
  spec = importlib.util.find_spec('trl')
  assert spec, 'the tests need TRL'
  tree = ast.parse((pathlib.Path(spec.origin).parent /
                    f'trainer/{name}_config.py').read_text())
  made, = (node for node in tree.body if isinstance(node, ast.ClassDef))
  options = [node.target.id for node in made.body
             if isinstance(node, ast.AnnAssign)]
  assert len(options) > least
  for option in options:
    assert any(one[0] == 'TRL' for one in names.meanings(option)), option


def test_a_name_is_answered_wherever_a_field_is_expected(tmp_path):
  use = 'name of TRL: use samples_per_prompt'
  with pytest.raises(ValueError, match=use):
    config.load(f'{ROOT}/configs/countdown.py', {'num_generations': 8})
  with pytest.raises(ValueError, match=use):
    jaxrl_llm.run({'num_generations': 8})
  c = config.base()
  with pytest.raises(AttributeError, match=use):
    c.num_generations = 8
  with pytest.raises(AttributeError, match='section of verl'):
    c.actor_rollout_ref.rollout.n = 8
  file = tmp_path / 'a.py'
  file.write_text('from jaxrl_llm import config\n\ndef get_config():\n'
                  '  c = config.base()\n  c.num_generations = 8\n  return c\n')
  with pytest.raises(ValueError, match=f'a.py, line 5: .*{use}'):
    config.load(str(file))
  for arg in ('--num_generations', '--num-generations=8', 'rollout.n=8'):
    with pytest.raises(ValueError, match='use samples_per_prompt'):
      config.split([arg])
  # Several names are answered at once, a line each.
  for refuse in (
      lambda: config.split(['--num_generations=8', '--beta=.1', '--config=a']),
      lambda: config.load(f'{ROOT}/configs/countdown.py', {
          'num_generations': 8, 'seed': 1, 'beta': .1})):
    with pytest.raises(ValueError) as error:
      refuse()
    first, second = str(error.value).split('\n')
    assert 'samples_per_prompt' in first and 'loss.kl_coef' in second
  with pytest.raises(ValueError, match='write --config.steps=VALUE'):
    config.split(['--steps=8'])


def test_the_answers_are_read_from_the_page():
  page = PAGE.read_text()
  assert [*names.read(page)] == ['TRL', 'verl', 'OpenRLHF']
  assert names.read(page) == names.libraries()
  rows = sum(map(len, names.libraries().values()))
  # Each row is shown in a table: a blank line would end it.
  assert page.count('\n| `') == rows
  assert page.count('|\n| `') == rows and page.count('|\n\n') == 2


@pytest.mark.parametrize('row', [
    '| `n` | `seed` |', '| n | `seed` | a note |', '| `n` |  | a note |',
    '| `n`, | `seed` | a note |', '| `n` | `seed`, - | a note |',
    '| `n` | `seed` | a | b |', '| `n` | `seed` | a note', '| `n | - | |',
    '`n` | `seed` | a note |', '| | `seed` | a note |', 'n: seed'])
def test_a_malformed_row_is_named(row):
  page = ('# A page\n\n| not | a row |\n\n## Names of X\n\n'
          '| X | jaxrl_llm | what differs |\n|---|---|---|\n{}\n\n'
          '## Other\n\ntext')
  right = page.format('| `a`, `b.*` | `c`, `d=e` |  |\n| `f`|-|see `g`  |')
  assert names.read(right) == {'X': [
      (('a', 'b.*'), ('c', 'd=e'), ''), (('f',), (), 'see `g`')]}
  with pytest.raises(ValueError, match='line 10: write a row as'):
    names.read(page.format(f'| `a` | - |  |\n{row}'))


def test_the_page_is_read_only_for_an_answer():
  """A run whose names are all right does not read it."""
  names.libraries.cache_clear()
  config.load(f'{ROOT}/configs/countdown.py', {'seed': 1})
  assert not names.libraries.cache_info().currsize
  answer('num_generations')
  assert names.libraries.cache_info().currsize


def test_the_pages_scripts_say_what_they_do(monkeypatch):
  theirs, ours = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
  calls = {node.func.id: node for node in ast.walk(ast.parse(theirs))
           if isinstance(node, ast.Call) and hasattr(node.func, 'id')}
  for option in calls['GRPOConfig'].keywords + calls['GRPOTrainer'].keywords:
    assert option.arg == 'args' or names.meanings(option.arg), option.arg
  started = []
  monkeypatch.setattr(
      jaxrl_llm, 'run', lambda c, reward_fn: started.append((c, reward_fn)))
  exec(ours, {'__name__': '__main__'})  # pylint: disable=exec-used
  (made, reward_fn), = started
  flat = config.flatten(config.complete(made, {}, 'x'))
  options = {o.arg: ast.literal_eval(o.value)
             for o in calls['GRPOConfig'].keywords}
  for option in ('num_generations', 'max_completion_length', 'max_steps',
                 'learning_rate', 'beta', 'save_steps', 'output_dir'):
    of_rl = USUAL[option].partition(' or ')[0]
    assert flat[of_rl] == options[option]
  assert flat['prompts_per_step'] * flat['samples_per_prompt'] == (
      options['per_device_train_batch_size'] *
      options['gradient_accumulation_steps'])
  assert reward_fn(completions=['a 3'], answer=['3'], other=[0]) == [1.0]
