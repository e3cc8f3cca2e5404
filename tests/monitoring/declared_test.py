"""Tests of the declarations of metrics.

The fixture `declared` of conftest compares them with the steps of every run
that the tests take in their process.
"""

from tests import train_test
from tests.helpers import blocks

HOOKS = blocks.hooks()
# Metrics that take a method, a field or a task of their own.
OTHERS = (
    'carry/', 'cbs/', 'eval/<file>', 'eval/maj@', 'logged/', 'pkpo/',
    'rewards/', 'sampler/temperature', 'screening/', 'solve_rate/<kind>',
    'turns/', 'update/actor_', 'update/experts_', 'update/kl_anchor',
    'update/lambda_distill', 'update/obrs_', 'update/teacher_')


def test_a_run_has_what_is_declared_and_nothing_else():
  names = train_test.NAMES | train_test.FIGURES | {'solve_rate'}
  assert not HOOKS.undeclared(names)
  exact = {name for name in HOOKS.declared()
           if '<' not in name and not name.startswith(OTHERS)}
  assert exact <= names


def test_a_name_that_no_table_has_is_found():
  names = ['reward/mean', 'reward/means', 'update/loss', 'loss', 'eval/pass@8',
           'eval/aime/pass@8_error', 'eval/a/b/c', 'seconds/verify']
  assert HOOKS.undeclared(names) == {'reward/means', 'loss', 'eval/a/b/c'}


def test_the_page_has_every_metric_with_a_unit():
  page = HOOKS.metrics()
  assert len(HOOKS.declared()) > 100
  for name, metric in HOOKS.declared().items():
    assert f'| `{name}` | ' in page and metric.unit and metric.meaning
  assert ' |advantage|' not in page  # a bar would end its cell
