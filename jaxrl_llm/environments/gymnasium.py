"""Text environments of Gymnasium's API as environments of ours.

  from jaxrl_llm.environments import gymnasium

  reset, step = gymnasium.functions(lambda problem: MyEnv(problem['level']))

is an environment's file. The package gymnasium itself is not needed.
"""

from typing import Any, Callable, Mapping

from jaxrl_llm.base import results


def functions(
    make: Callable[[Mapping[str, Any]], Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
  """Returns the functions `reset` and `step` of an environment.

  Args:
    make: (problem) -> an environment with `reset(seed=) -> (observation,
      info)` and `step(text) -> (observation, reward, terminated, truncated,
      info)`. The first observation is the prompt; it must be the same for every
      seed.
  """
  def reset(problem, seed):
    made = make(problem)
    observation, _ = results.result(made.reset(seed=seed))
    return made, str(observation)

  def step(made, text):
    observation, reward, terminated, truncated, _ = results.result(
        made.step(text))
    ended = terminated or truncated
    return made, None if ended else str(observation), reward

  return reset, step
