"""Tests of the ids of problems, and of what is in a set."""

import dataclasses
import itertools

import pytest

from jaxrl_llm import tasks
from jaxrl_llm.tasks import Problem, sets

MADE = '''
import types
from jaxrl_llm.tasks import Problem

def create(tokenizer=None, ids: tuple[int, ...] = (), held: int = 0):
  made = [Problem(i, f'{n}?', 'k') for n, i in enumerate(ids)]
  return types.SimpleNamespace(
      tokenizer=1, train=made[held:], heldout=made[:held], verify=1)
'''


def made(*ids, **fields):
  return [Problem(ident, f'{n}?', 'k', info={'n': n}, **fields)
          for n, ident in enumerate(ids)]


def ids(problems):
  return [p.id for p in problems]


def test_only_ids_that_meet_change():
  alone = made(5, 6, 7)
  assert sets.distinct(alone) is alone
  problems = made(5, 6, 5, 7, 5, 6)
  found = sets.distinct(problems)
  assert found[3] == problems[3] and len({*ids(found)}) == 6
  assert all(0 <= i < 2**31 for i in ids(found))
  assert [dataclasses.replace(p, id=0) for p in found] == [
      dataclasses.replace(p, id=0) for p in problems]
  assert sets.distinct(found) is found


def test_ids_do_not_depend_on_the_order_or_on_further_problems():
  problems = made(5, 5, 5, 6)
  want = {p.prompt: p.id for p in sets.distinct(problems)}
  for order in itertools.permutations(problems):
    assert {p.prompt: p.id for p in sets.distinct(order)} == want
  more = made(5, 5, 5, 6, 5, 8)
  assert {p.prompt: p.id for p in sets.distinct(more)}.items() > want.items()


def test_equal_problems_and_hashes_of_few_bits(monkeypatch):
  assert len({*ids(sets.distinct(made(5)[:1] * 9))}) == 9
  real = sets.number
  monkeypatch.setattr(sets, 'number', lambda text: real(text) % 64)
  found = sets.distinct(made(*[5] * 30), made(*range(30)))
  assert len({*ids(found), *range(30)}) == 60


def test_others_keep_their_ids():
  problems, others = made(5, 6), made(6)
  first, second = sets.distinct(problems, others)
  assert first == problems[0] and second.id not in (5, 6)


def test_a_task_of_the_user_gets_ids_of_its_own(tmp_path):
  file = tmp_path / 'own.py'
  file.write_text(MADE)
  task = tasks.get(str(file), ids=(3, 3, 4, 4, 5, 3), held=2)
  assert len({*ids(task.train), *ids(task.heldout)}) == 6
  assert task.train[2].id == 5
  for wrong in (-1, 2**31):
    with pytest.raises(ValueError, match=f'own.py has the id {wrong}: give'):
      tasks.get(str(file), ids=(3, wrong))
