"""Tests of runs that learn from a teacher."""

import jax
import numpy as np
import pytest

from jaxrl_llm import train
from jaxrl_llm.monitoring import metrics
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


@pytest.mark.parametrize('fields, said', [
    (dict(teacher__model__vocab_size=99),
     'teacher.model has 99 tokens and model .* Choose a teacher with the voc'),
    (dict(teacher__temperature=2., teacher__kl='sampled'),
     'teacher.temperature=2.0 has no effect with teacher.kl=sampled'),
    (dict(teacher__top_k=3), 'teacher.top_k=3 has no effect with teacher.kl=a'),
    (dict(teacher__top_k=99, teacher__kl='top_k'), 'teacher.top_k=99 is not b'),
    (dict(drop_zero_advantage=True), 'drop_zero_advantage=True leaves out a')])
def test_what_does_not_fit_is_one_sentence(fields, said):
  with pytest.raises(ValueError, match=said) as error:
    stages.validate(tiny.load(**{**RUN, **fields}))
  assert '\n' not in str(error.value)


def test_without_a_teacher_nothing_is_learned_from():
  with pytest.raises(ValueError, match='advantage=none leaves nothing'):
    tiny.load(advantage='none')
  with pytest.raises(ValueError, match='teacher.coef'):
    tiny.load(teacher__coef=2.)
