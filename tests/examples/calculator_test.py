"""Tests of the calculator."""

import fractions

import pytest

from jaxrl_llm.examples.calculator import calculator
from jaxrl_llm.rewards import math


@pytest.mark.parametrize('expression, value', [
    ('2+3*4', '14'), ('-(2 - 5)', '3'), ('7/2', '3.5'), ('7//2', '3'),
    ('0.1+0.2', '0.3'), ('1e3*2', '2000'), (' 12 ', '12'), ('7 % 4', '3'),
    ('1/1000000000000', '0.000000000001'), ('1e-9/3', '0.00000000033333333333'),
    ('2e-13', '2e-13'), ('1/3', '0.33333333333'), ('2/3*3', '2'),
    ('123456789*9876', '1219259248164'), ('1e9/7', '142857142.8571428571'),
    ('1-1e-14', '0.99999999999999'), ('-7//2', '-4'), ('-7%3', '2'),
    ('1_000+1', '1001'), ('-0.0', '0'), (5, '5')])
def test_the_calculator(expression, value):
  assert calculator(expression) == value


@pytest.mark.parametrize('expression', [
    '9**9**9', '__import__("os")', 'x', '1+', '', '(' * 150, '1' * 201,
    '999999*999999*999999', 'True', '"a"*9', '1 if 1 else 2', '1,000+1', '2^3',
    '5%', '0x10', '010+1', '٣+١', '1 # + 1', '1e-999999999', '1e-99*1e-99',
    '1/0'])
def test_what_the_calculator_refuses(expression):
  with pytest.raises(ValueError):
    calculator(expression)


@pytest.mark.parametrize('expression', ['1e-13', '1/3', '-1e-30/7', '10*5'])
def test_the_judge_reads_what_the_calculator_says(expression):
  said = calculator(expression)
  value = fractions.Fraction(said)
  assert math.judge(dict(
      answer=f'\\frac{{{value.numerator}}}{{{value.denominator}}}',
      response=f'\\boxed{{{said}}}', take='boxed', tags=(), tolerance=0.0,
      any_order=False))['kind'] == 'correct'
