"""Tests of reward models: their files, their scores, and runs with them."""

import contextlib
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from jaxrl_llm import cli, evaluate, sharding, train
from jaxrl_llm import config as config_lib
from jaxrl_llm.base.tokenizer import CharTokenizer, ModelTokenizer
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.loop import step
from jaxrl_llm.models import flops, hf, transformer
from jaxrl_llm.monitoring import metrics, timing
from jaxrl_llm.prepare import build, stages
from jaxrl_llm.types import LearnerBatch
from tests.helpers import families, tiny, tiny_hf
from tests.helpers.tolerance import decoder, rounding

# Its sizes are not the policy's.
REWARD = {f'reward__model__{name}': value for name, value in dict(
    preset='tiny', width=16, heads=2, layers=2, kv_heads=1, head_dim=8,
    mlp_width=24).items()}
RUN = dict(**REWARD, prompts_per_step=4, steps=4, eval__every=0)
L, T = 14, 11


def classifier(name, **fields):
  """Makes transformers' reward model of a family, with weights that matter."""
  _, cls, cfg = families.family(name)
  found = getattr(transformers, cls.__name__.replace(
      'CausalLM', 'SequenceClassification'))
  cfg = type(cfg)(**{**cfg.to_dict(), 'num_labels': 1, **fields})
  return families.random_model(found, cfg)


def load(folder):
  """Returns (config, float32 parameters) of a folder."""
  checkpoint = hf.open_checkpoint(folder)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return checkpoint.config, hf.load(checkpoint, sharding.abstract_params(
      jax.eval_shape(lambda: transformer.init(
          jax.random.key(0), checkpoint.config)), sharding.TRAIN_RULES, mesh))


@pytest.mark.parametrize('name', [
    'qwen2', 'qwen3', 'qwen3_moe', 'llama3', 'gemma2'])
def test_scores_are_those_of_transformers(name, tmp_path):
  """Of rows of many lengths that share prompts, in microbatches."""
  model = classifier(name)
  model.save_pretrained(tmp_path)
  cfg, params = load(tmp_path)
  assert cfg.scores and params['score'].shape == (1, cfg.width)
  assert 'unembed' not in params
  assert cfg.parameter_count() == sum(x.size for x in jax.tree.leaves(params))
  rows, rng = 9, np.random.default_rng(0)
  group = np.arange(rows) // 3
  for longest in (L, 1) if name == 'qwen3' else (L,):
    made = learner_lib.make_reward(cfg, learner_lib.LearnerConfig(
        tokens=40, max_prompt=longest, max_response=T, samples=3))
    assert made.columns == T + 1
    before = np.minimum(np.array([1, 8, L]), longest)[group]
    length = np.array([1, T, 4, T, 2, 7, 5, 0, T])
    prompts = rng.integers(1, cfg.vocab_size, (3, L))
    tokens = np.zeros((rows, longest + T), np.int32)
    for row in range(rows):
      tokens[row, :before[row]] = prompts[group[row], :before[row]]
      # No pad, where transformers would end the row, and junk behind it.
      tokens[row, before[row]:] = rng.integers(
          1, cfg.vocab_size, longest + T - before[row])
    real = np.where(length > 0, length + 1, 0)
    batch = LearnerBatch(
        tokens=tokens, prompt_length=before.astype(np.int32),
        response_length=real.astype(np.int32),
        mask=(np.arange(T + 1) == length[:, None]) & (length > 0)[:, None],
        advantages=np.zeros(rows, np.float32))
    plan = made.plan(group, before, real)
    assert plan.count > 1
    found = np.asarray(made.scores(params, batch, plan))
    with torch.no_grad():
      want = [model(torch.from_numpy(
          tokens[row, :before[row] + length[row]][None]).long()).logits.item()
              if length[row] else 0.0 for row in range(rows)]
    assert np.std(want) > .1
    np.testing.assert_allclose(found, want, rtol=0, atol=rounding(
        decoder(cfg, L + T), cfg.width, magnitude=np.abs(want).max()))


def test_what_is_no_reward_model_is_refused(tmp_path):
  scoring, plain = tmp_path / 'scoring', tmp_path / 'plain'
  classifier('qwen3').save_pretrained(scoring)
  families.save('qwen3', plain)
  for field, folder, said in (
      ('reward__model__hf', plain, 'is not a reward model, a sequence'),
      ('model__hf', scoring, 'is a reward model, a sequence'),
      ('teacher__model__hf', scoring, 'is a reward model, a sequence')):
    with pytest.raises(ValueError, match=said):
      config_lib.validate(tiny.load(**{field: folder}))
  for labels in 2, 3:
    classifier('qwen3', num_labels=labels).save_pretrained(scoring)
    with pytest.raises(ValueError, match=f'with {labels} labels is not supp'):
      hf.open_checkpoint(scoring)


@pytest.mark.parametrize('fields, said', [
    (dict(reward__coef=0.), 'leave no reward: set one of them'),
    (dict(reward__coef=float('inf')), 'reward.coef=inf must .* 1e6'),
    (dict(curriculum='speed'), 'curriculum=speed screens by right responses'),
    (dict(advantage='gdpo'), 'advantage=gdpo reads the column separate'),
    (dict(advantage='maxrl'), 'advantage=maxrl needs rewards of 0 or more'),
    (dict(learner__attention='cudnn', model__dtype='bfloat16'),
     'set reward.model.dtype=bfloat16'),
    (dict(reward__model__vocab_size=99),
     'reward.model has 99 tokens and model .* Choose a reward model with the')])
def test_what_does_not_fit_is_one_sentence(fields, said):
  with pytest.raises(ValueError, match=said) as error:
    stages.validate(tiny.load(**{**RUN, **fields}))
  assert '\n' not in str(error.value)


def test_the_section_is_there_with_a_model_alone():
  with pytest.raises(ValueError, match='reward.coef'):
    tiny.load(reward__coef=2.)
  assert 'scores' not in tiny.load(**REWARD).reward.model


def test_an_evaluation_needs_no_reward_model():
  argv = ['--config=configs/countdown.py', '--config.reward.model.hf=./gone']
  _, config, _ = evaluate.parse(argv)
  cli.check(config)
  with pytest.raises(ValueError, match='there is no folder'):
    cli.check(config_lib.load(argv[0].partition('=')[2], {
        'reward.model.hf': './gone'}))


def twin(params, cfg, responses, length):
  """Scores each response by itself."""
  call, found = responses.call, []
  for row, prompt in enumerate(call.requests.prompt):
    n = call.prompts.length[prompt]
    whole = np.concatenate([
        call.prompts.tokens[prompt, :n],
        responses.rollouts.tokens[row, :length[row]]])
    hidden, _ = transformer.forward(params, jnp.asarray(whole)[None], cfg=cfg)
    found.append(float(hidden[0, -1] @ params['score'][0]))
  return np.array(found)


@pytest.mark.parametrize('coef, verifier', [(.5, 2.), (1., 0.)])
def test_rewards_are_the_scores_and_the_verdicts(coef, verifier):
  def verify(problem, text, truncated):
    verdict = tiny.by_length(problem, text, truncated)
    if len(text) < 8:
      return verdict.__class__(0., 'bad', False)
    # As of two reward functions.
    return dataclasses.replace(verdict, rewards=dict(
        a=float(len(text)), b=verdict.reward - len(text)))

  parts = tiny.watch(build.parts(tiny.load(
      **RUN, reward__coef=coef, reward__verifier=verifier)), verify).parts
  state, fixed, _ = tiny.begin(parts)
  assert {*state.learners} == {'policy'}
  timer = timing.Timer()
  _, wave = step.sample(parts, state, fixed, timer)
  judged, model = wave.judged, parts.programs.players['reward'].model
  prompt = wave.rows.table.prompt_length
  assert timer.take_flops() == {'reward': pytest.approx(
      flops.update(model, prompt, judged.length) / 3)}  # a forward pass
  scores = twin(fixed.reward, model, wave.responses, judged.length)
  error = rounding(decoder(model, 40), model.width, magnitude=8)
  valid = np.array([kind != 'bad' for kind in judged.kind])
  assert (judged.valid == valid).all() and 0 < valid.sum() < len(valid)
  np.testing.assert_allclose(
      judged.rewards['model'], np.where(valid, scores, np.nan), atol=error)
  assert np.std(scores) > 10 * error
  assert {*judged.rewards} == {'a', 'b', 'model', 'verifier'}
  np.testing.assert_array_equal(
      judged.rewards['a'] + judged.rewards['b'],
      np.where(valid, judged.rewards['verifier'], np.nan))
  verdicts = judged.rewards['verifier']
  np.testing.assert_allclose(
      judged.reward[valid], (coef * scores + verifier * verdicts)[valid],
      atol=(coef + 1) * error)
  assert (judged.right == (verdicts == 1)).all() and judged.right.any()
  table = wave.rows.table
  assert (table.reward == np.where(
      valid, judged.reward, 0).astype(np.float32)).all()
  for verdict, reward in zip(judged.verdicts, judged.reward):
    assert verdict.reward == reward or not verdict.valid


def test_it_is_kept_in_its_compute_type():
  """Scores are those of float32 weights: products take this type anyway."""
  parts = tiny.watch(build.parts(tiny.load(
      **RUN, reward__model__dtype='bfloat16')), tiny.by_length).parts
  state, fixed, _ = tiny.begin(parts)
  kinds = jax.tree.map(lambda x: str(x.dtype), fixed.reward)
  assert kinds['layers']['q'] == kinds['score'] == 'bfloat16'
  assert kinds['layers']['attn_norm'] == kinds['norm'] == 'float32'
  found = []
  for kind in None, 'float32':
    params = jax.tree.map(lambda x: x.astype(kind or x.dtype), fixed.reward)
    _, wave = step.sample(
        parts, state, fixed._replace(reward=params), timing.Timer())
    found.append(wave.judged.reward)
  assert (found[0] == found[1]).all() and np.std(found[0]) > 0
  # A teacher that is made by supervised fine-tuning is trained.
  teacher = {name.replace('reward', 'teacher'): value
             for name, value in REWARD.items()}
  for steps, kind in (2, 'float32'), (0, 'bfloat16'):
    made = build.parts(tiny.load(
        **teacher, teacher__model__dtype='bfloat16', sft__steps=steps))
    stored = made.programs.players['teacher'].policy.stored
    assert stored['embed'].dtype == kind


@pytest.mark.parametrize('padding', ['', '\n'])
def test_a_chat_is_scored_as_its_template_writes_it(padding, tmp_path):
  """To transformers' score of the whole conversation.

  A score is of the last token that is no padding.
  """
  rows = tiny_hf.word_problems(8)
  model = tiny_hf.make(tmp_path / 'model', rows)
  scoring = tiny_hf.scoring(model, tmp_path / 'scoring')
  config, own = scoring / 'config.json', ModelTokenizer(model)
  config.write_text(json.dumps({
      **json.loads(config.read_text()), 'pad_token_id':
      own.encode(padding)[0] if padding else None}))
  parts = build.parts(config_lib.load('configs/own.py', {
      'task.name': 'math', 'model.hf': str(model),
      'reward.model.hf': str(scoring), 'task.reward': (),
      'task.path': str(tiny_hf.write(tmp_path / 'rows.jsonl', rows)),
      'task.heldout_count': 2, 'prompts_per_step': 4,
      'samples_per_prompt': 32, 'max_prompt': 200,
      'max_response': 48, 'sampling.temperature': 3.0}))
  state, fixed, _ = tiny.begin(parts)
  with contextlib.closing(parts):
    _, wave = step.sample(parts, state, fixed, timing.Timer())
  scorer = transformers.AutoModelForSequenceClassification.from_pretrained(
      scoring).eval()
  own, call, judged = parts.task.tokenizer.own, wave.responses.call, wave.judged
  ended = 0
  for row, prompt in enumerate(call.requests.prompt):
    ids = [*call.prompts.tokens[prompt, :call.prompts.length[prompt]],
           *wave.responses.rollouts.tokens[row, :judged.length[row]]]
    if not judged.truncated[row]:
      ended += 1
      ids += own('\n', add_special_tokens=False).input_ids
      text = own.decode(ids)
      asked, _, said = text.rpartition('<|im_start|>assistant\n')
      assert text == asked + own.apply_chat_template([dict(
          role='assistant', content=said.removesuffix('<|im_end|>\n'))],
                                                     tokenize=False)
    with torch.no_grad():
      want = scorer(torch.tensor([[int(i) for i in ids]])).logits.item()
    assert judged.rewards['model'][row] == pytest.approx(want, abs=2e-3)
  assert 3 < ended < len(judged.length) - 3


def test_a_tokeniser_tells_what_ends_a_chat():
  class Chat(CharTokenizer):
    def after_last_answer(self):
      return self.text

    def encode(self, text):
      return [1, *super().encode(text[1:])] if text[:1] == '!' else (
          super().encode(text))

  for text, closing in (('!ab', (1, 2, 3)), ('ab', ()), ('', ())):
    tokenizer = Chat('ab')
    object.__setattr__(tokenizer, 'text', text)
    assert build._stops(tokenizer).closing == closing
  assert build._stops(CharTokenizer('ab')).closing == ()


def test_responses_that_are_carried_over_are_scored_whole():
  parts = tiny.watch(build.parts(tiny.load(
      **RUN, sampling__carry_over=True, sampling__wave_steps=6,
      sampling__slots=8)), tiny.by_length).parts
  state, fixed, _ = tiny.begin(parts)
  model, older = parts.programs.players['reward'].model, 0
  error = rounding(decoder(model, 40), model.width, magnitude=8)
  for _ in range(5):
    _, wave = step.sample(parts, state, fixed, timing.Timer())
    np.testing.assert_allclose(wave.judged.rewards['model'], twin(
        fixed.reward, model, wave.responses, wave.judged.length), atol=error)
    table = wave.rows.table
    older += (table.carried > 0).sum()
    assert (table.reward == wave.judged.reward.astype(np.float32)).all()
    state, _ = train.take_step(parts, state, fixed, timing.Timer())
  assert older > 5


def test_a_score_that_is_not_finite_ends_the_run():
  parts = tiny.watch(build.parts(tiny.load(**RUN)), tiny.by_length).parts
  state, fixed, _ = tiny.begin(parts)
  fixed = fixed._replace(reward={
      **fixed.reward, 'score': fixed.reward['score'] * np.inf})
  with pytest.raises(ValueError, match='reward model gives the score'):
    step.sample(parts, state, fixed, timing.Timer())


def test_a_run_goes_on_to_the_bit_and_raises_the_score(tmp_path):
  def go(folder, **fields):
    train.train(tiny.load(folder, **{
        **RUN, 'optimizer__learning_rate': 1e-2, **fields}))
    return metrics.read(folder / 'metrics.jsonl')[1:]

  whole = go(tmp_path / 'whole', steps=8)
  go(tmp_path / 'cut', steps=3)
  cut = go(tmp_path / 'cut', steps=8)
  for a, b in zip(whole, cut, strict=True):
    assert a['reward/mean'] == b['reward/mean']
    assert a['rewards/model'] == pytest.approx(a['reward/mean'], rel=1e-6)
    assert a['update/loss'] == b['update/loss'] and 'seconds/reward' in a
    assert 'rewards/verifier' in a
    assert not any(name.startswith('reward/pass') for name in a)
  assert np.mean([row['reward/mean'] for row in whole[-2:]]) > np.mean(
      [row['reward/mean'] for row in whole[:2]])
  record = json.loads(
      (tmp_path / 'whole/samples.jsonl').read_text().splitlines()[0])
  assert record['reward'] == record['rewards']['model']


def test_one_program_scores_all_waves(tmp_path, monkeypatch):
  names, known = tiny.compiled_by_step(monkeypatch)
  train.train(tiny.load(tmp_path, **RUN))
  assert any('scores' in name for name in names)
  assert len({*known[1:]}) == 1
