"""Tests of the check that two checkouts train to the same bits."""

import pathlib

import pytest

from benchmarks import same_bits
from jaxrl_llm import config as config_lib

RESULTS = {
    'metrics': [{'step': 1, 'loss': .5}, {'step': 2, 'loss': .25}],
    'samples': [{'step': 1, 'response': 'a'}],
    'arrays': {'learners.0.step': ['int32', [], '0a']}}


def differences(a, b):
  return {part: said for part, said, _ in same_bits.compared(a, b) if said}


def test_equal_results_are_the_same():
  assert [*same_bits.compared(RESULTS, RESULTS)] == [
      (part, '', []) for part in sorted(RESULTS)]


@pytest.mark.parametrize('part, value, said', [
    ('metrics', [{'step': 1, 'loss': .5}, {'step': 2, 'loss': .125}],
     '[1].loss: 0.25 -> 0.125'),
    ('metrics', [{'step': 1, 'loss': .5}, {'step': 2}],  # is lost
     '[1].loss: 0.25 -> absent'),
    ('metrics', RESULTS['metrics'][:1], '2 rows -> 1 rows'),
    ('samples', [{'step': 1}], '[0].response: a -> absent'),
    ('arrays', {**RESULTS['arrays'], 'learners.0.skipped': ['int32', [], '']},
     'absent -> '),
    ('arrays', {}, '-> absent')])
def test_a_difference_is_named(part, value, said):
  (name, found), = differences(RESULTS, {**RESULTS, part: value}).items()
  assert name == part and said in found


def test_a_metric_in_one_more_row_is_no_new_one():
  a = {'metrics': [{'step': 1}, {'step': 2, 'x': 1.0}]}
  b = {'metrics': [{'step': 1, 'x': 1.0}, {'step': 2, 'x': 1.0}]}
  assert differences(a, b) == {'metrics': '[0].x: absent -> 1.0'}


def test_new_metrics_are_named():
  rows = [{**row, 'other': 1} for row in RESULTS['metrics']]
  assert ('metrics', '', ['other']) in same_bits.compared(
      RESULTS, {**RESULTS, 'metrics': rows})


def test_a_part_that_one_side_lacks_is_a_difference():
  some = {k: v for k, v in RESULTS.items() if k != 'samples'}
  for pair in (RESULTS, some), (some, RESULTS):
    assert [*differences(*pair)] == ['samples']


def test_older_names_of_arrays():
  assert same_bits.renamed('learner.params.q') == 'learners.0.params.q'
  assert same_bits.renamed('learners.1.params.q') == 'learners.1.params.q'
  assert same_bits.renamed('old.learner.step') == 'old.learner.step'


def test_what_does_not_act_is_named():
  job = same_bits.Job('', {}, ('loss', 'reward'))
  rows = [{'loss': .5, 'reward': 0.0}, {'loss': .1}, {'reward': 1.0}]
  assert same_bits.idle(job, {'metrics': rows, 'samples': rows}) == ['reward']


def test_newer_fields_are_given_where_one_side_lacks_them():
  job = same_bits.Job('a', {'steps': 2}, ())
  old, new = (
      same_bits.Checkout(pathlib.Path(), '', {'a': ['steps', *names]})
      for names in ([], ['sampling.buckets', 'sampling.unroll']))

  def given(*pair):
    return {flag for flag in same_bits.command(job, *pair, pathlib.Path())
            if 'sampling' in flag}

  assert given(new, old) == {
      '--config.sampling.buckets=none', '--config.sampling.unroll=false'}
  assert not given(old, new) and not given(new, new)


@pytest.mark.parametrize('name', [*same_bits.JOBS])
def test_jobs_have_valid_fields(name):
  job = same_bits.JOBS[name]
  config = config_lib.flatten(config_lib.load(job.config, {
      field: str(value) for field, value in job.fields.items()}))
  assert config.keys() >= job.fields.keys()
