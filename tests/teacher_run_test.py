"""Tests of runs that learn from a teacher."""

import jax
import numpy as np
import pytest

from jaxrl_llm import cli, evaluate, train
from jaxrl_llm.models import transformer
from jaxrl_llm.monitoring import metrics, timing
from jaxrl_llm.prepare import build, stages
from tests.helpers import tiny

# A teacher of another size, whose warm start has seen more than the student's.
TEACHER = {f'teacher__model__{name}': value for name, value in dict(
    preset='tiny', width=16, heads=2, layers=2, kv_heads=1, head_dim=8,
    mlp_width=24).items()}
RUN = dict(
    **TEACHER, advantage='none', samples_per_prompt=1, prompts_per_step=16,
    steps=4, eval__every=0, optimizer__learning_rate=1e-2)


def go(folder, **fields):
  train.train(tiny.load(folder, **{**RUN, **fields}))
  return metrics.read(folder / 'metrics.jsonl')[1:]


def last(folder, step):
  """Returns the parameters in a checkpoint."""
  return {path.name: path.read_bytes() for path in sorted(
      (folder / 'checkpoints' / str(step) / 'tree').rglob('*'))
          if path.is_file() and path.suffix != '.txt'}


def test_a_run_goes_on_to_the_bit_and_learns(tmp_path):
  whole = go(tmp_path / 'whole')
  go(tmp_path / 'cut', steps=2)
  cut = go(tmp_path / 'cut')
  for a, b in zip(whole, cut, strict=True):
    for name in 'update/teacher_kl', 'update/loss', 'reward/mean':
      assert a[name] == b[name]
    assert a['update/teacher_kl'] > 0
    assert a['update/loss'] == pytest.approx(a['update/teacher_kl'], rel=1e-5)
  assert last(tmp_path / 'whole', 4) == last(tmp_path / 'cut', 4) != {}
  assert whole[-1]['update/teacher_kl'] < whole[0]['update/teacher_kl']


def test_beside_rewards(tmp_path):
  for kl in 'top_k', 'sampled':
    rows = go(
        tmp_path / kl, advantage='grpo', samples_per_prompt=4, steps=1,
        prompts_per_step=4, teacher__kl=kl, teacher__coef=.1, **(
            dict(teacher__top_k=3) if kl == 'top_k' else {}))
    row, = rows
    assert np.isfinite(row['update/teacher_kl'])
    assert row['update/loss'] == pytest.approx(
        row['update/policy_loss'] + .1 * row['update/teacher_kl'], abs=1e-5)


def test_the_teacher_is_no_part_of_the_state():
  parts = build.parts(tiny.load(**RUN))
  state, fixed, _ = tiny.begin(parts)
  assert {*state.learners} == {'policy'} and fixed.teacher['layers']
  shapes = jax.tree.map(np.shape, fixed.teacher)
  assert shapes == jax.tree.map(
      np.shape, parts.programs.players['teacher'].policy.shapes)


HINTS = '''
def solved(problem):
  return f'{problem.prompt}{problem.answer}>{problem.prompt}'

def long(problem):
  return problem.prompt[:2] * (9 if problem.id % 2 else 1)

def same(problem):
  return problem.prompt

def none(problem):
  return None

def odd(problem):
  return '~'
'''


def test_the_policy_learns_from_itself_with_a_hint(tmp_path, monkeypatch):
  """The teacher's prompts are those of the rows, also where all are carried."""
  (tmp_path / 'hints.py').write_text(HINTS)
  monkeypatch.chdir(tmp_path)
  fields = dict(
      teacher__hint='hints.py:solved', advantage='none', steps=2,
      samples_per_prompt=2, prompts_per_step=4, eval__every=0)
  own = tiny.load(tmp_path / 'own', **fields, teacher__max_tokens=30)
  watched = tiny.watch(build.parts(own), tiny.by_length)
  parts = watched.parts
  assert {*parts.programs.players} == {'policy'}
  state, fixed, _ = tiny.begin(parts)
  params = jax.device_get(state.learner.params)
  _, report = train.take_step(parts, state, fixed, timing.Timer())
  by_prompt = {problem.prompt: problem.teacher_prompt
               for problem in parts.task.train}
  decode = parts.task.tokenizer.decode
  for batch in watched.batches:
    for row, n, hinted, m, length in zip(
        batch.tokens, batch.prompt_length, batch.teacher_tokens,
        batch.teacher_prompt_length, batch.response_length):
      assert decode(hinted[:m].tolist()) == by_prompt[decode(row[:n].tolist())]
      assert (row[n:n + length] == hinted[m:m + length]).all() and length
  batch, = watched.batches

  def logps(tokens, length):
    hidden, _ = transformer.forward(params, tokens, cfg=parts.programs.model)
    found = jax.nn.log_softmax(transformer.logits(
        params, hidden, parts.programs.model) / own.sampling.temperature)
    at = length[:, None] - 1 + np.arange(batch.mask.shape[1])
    return np.take_along_axis(np.asarray(found), at[..., None], 1)

  p, q = (logps(batch.tokens, batch.prompt_length),
          logps(batch.teacher_tokens, batch.teacher_prompt_length))
  kl = np.sum(np.exp(p) * (p - q), -1)[batch.mask].mean()
  assert report.row['update/teacher_kl'] == pytest.approx(kl, rel=1e-3) and kl
  for more in dict(sampling__carry_over=True, sampling__wave_steps=6), TEACHER:
    rows = go(tmp_path / str(len(more)), **{
        **fields, 'teacher__max_tokens': 30, **more})
    assert rows[-1]['update/teacher_kl'] > 0


def test_texts_of_a_teacher_are_checked(tmp_path, monkeypatch, caplog):
  (tmp_path / 'hints.py').write_text(HINTS)
  monkeypatch.chdir(tmp_path)
  make = lambda **fields: build.parts(tiny.load(
      tmp_path / 'run', advantage='none', samples_per_prompt=1, **fields))
  for name, said in (
      ('none', "returns 'None' for the"), ('same', 'the prompt of each'),
      ('odd', "hints.py:odd: character '~' of"),
      ('solved', 'at most 9 tokens'), ('other', 'has no function')):
    with pytest.raises(ValueError, match=said):
      make(teacher__hint=f'hints.py:{name}')
  parts = make(teacher__hint='hints.py:long')
  assert {problem.id % 2 for problem in parts.task.train} == {0}
  assert 'teacher.max_tokens raises that' in caplog.text


@pytest.mark.parametrize('fields, said', [
    (dict(teacher__max_tokens=9), 'teacher.max_tokens=9 has no effect with te'),
    (dict(teacher__model__vocab_size=99),
     'teacher.model has 99 tokens and model .* Choose a teacher with the voc'),
    (dict(teacher__temperature=2., teacher__kl='sampled'),
     'teacher.temperature=2.0 has no effect with teacher.kl=sampled'),
    (dict(teacher__top_k=3), 'teacher.top_k=3 has no effect with teacher.kl=a'),
    (dict(teacher__top_k=99, teacher__kl='top_k'), 'teacher.top_k=99 is not b'),
    (dict(drop_zero_advantage=True), 'drop_zero_advantage=True leaves out a'),
    (dict(teacher__coef=0.), 'advantage=none and teacher.coef=0 leave nothing'),
    (dict(selection='largest_advantage'), 'largest_advantage picks rows by th'),
    (dict(selection='cbs'), 'selection=cbs picks rows by their advantages'),
    (dict(curriculum='speed', speed__n_init=1), 'curriculum=speed measures')])
def test_what_does_not_fit_is_one_sentence(fields, said):
  with pytest.raises(ValueError, match=said) as error:
    stages.validate(tiny.load(**{**RUN, **fields}))
  assert '\n' not in str(error.value)


def test_an_evaluation_needs_no_teacher(tmp_path):
  """Of a run that learns from a teacher alone, too."""
  for more in '--config.teacher.model.hf=gone', '--config.teacher.kl=all':
    _, config, _ = evaluate.parse(
        ['--config=configs/distill/countdown.py', more])
    cli.check(config)
  go(tmp_path, **{**RUN, 'steps': 1})
  _, config, _ = evaluate.parse([f'--config={tmp_path}/config.json'])
  assert 'pass@1' in evaluate.evaluate(config)


def test_without_a_teacher_nothing_is_learned_from():
  with pytest.raises(ValueError, match='advantage=none leaves nothing'):
    tiny.load(advantage='none')
  with pytest.raises(ValueError, match='teacher.coef'):
    tiny.load(teacher__coef=2.)
