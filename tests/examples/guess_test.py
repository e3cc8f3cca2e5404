"""Tests of the game of a hidden letter."""

from jaxrl_llm import tasks
from jaxrl_llm.examples import guess


def test_a_binary_search_finds_every_letter():
  task = tasks.get(guess.__name__, train=3, heldout=2)
  found, seeds = set(), range(200)
  for seed in seeds:
    state, prompt = guess.reset(task.train[0].info, seed)
    assert prompt == task.train[0].prompt == f'{state.letters}:'
    low, high, said, reward = 0, 6, '', 0.0
    while said is not None:
      middle = (low + high) // 2
      state, said, reward = guess.step(state, state.letters[middle])
      low, high = (low, middle - 1) if said == '<' else (middle + 1, high)
    assert reward == 1
    found.add(state.hidden)
  assert found == {*range(7)}
  # A letter beside the list, none and two are answered, and cost a guess.
  for text in ('!', '', 'ab'):
    state, said, _ = guess.step(guess.reset(task.train[0].info, 0)[0], text)
    assert said == '?' and state.left == 2
