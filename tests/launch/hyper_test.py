"""Tests of sweeps against enumerations written out."""

import pytest

from jaxrl_llm.launch import hyper


def test_sweep_and_fixed():
  assert hyper.sweep('seed', range(2)) == [{'seed': 0}, {'seed': 1}]
  assert hyper.sweep('a.b', []) == []
  assert hyper.fixed('a.b', None, 2) == [{'a.b': None}, {'a.b': None}]


def test_product_varies_the_last_sweep_fastest():
  trials = hyper.product([
      hyper.sweep('a', [1, 2]), hyper.fixed('b', 'x'),
      hyper.sweep('c', [True, False])])
  assert trials == [
      {'a': 1, 'b': 'x', 'c': True}, {'a': 1, 'b': 'x', 'c': False},
      {'a': 2, 'b': 'x', 'c': True}, {'a': 2, 'b': 'x', 'c': False}]
  assert hyper.product([]) == [{}]
  assert hyper.product([hyper.sweep('a', [1]), []]) == []


def test_zipit_and_chainit_nest():
  pairs = hyper.zipit([hyper.sweep('a', [1, 2]), hyper.sweep('b', [3, 4])])
  assert pairs == [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
  trials = hyper.chainit([
      hyper.product([pairs, hyper.sweep('seed', [0, 1])]),
      hyper.fixed('a', 5)])
  assert trials == [
      {'a': 1, 'b': 3, 'seed': 0}, {'a': 1, 'b': 3, 'seed': 1},
      {'a': 2, 'b': 4, 'seed': 0}, {'a': 2, 'b': 4, 'seed': 1}, {'a': 5}]
  assert pairs[0] == {'a': 1, 'b': 3}  # nothing was changed in place


def test_mistakes():
  with pytest.raises(ValueError, match=r'not \[2, 1\]: use fixed'):
    hyper.zipit([hyper.sweep('a', [1, 2]), hyper.fixed('b', 3)])
  for combine in (hyper.product, hyper.zipit):
    with pytest.raises(ValueError, match='a is set by two sweeps'):
      combine([hyper.sweep('a', [1]), hyper.sweep('a', [2])])
