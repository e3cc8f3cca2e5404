"""Calls of the public functions, for the type checker; nothing runs them.

`make lint` checks them. A line with `type: ignore` is a wrong call: if the
checker no longer found its mistake, it would report the comment as unused.
"""

from typing import Sequence

import jax
import numpy as np

import jaxrl_llm
from jaxrl_llm.base.tokenizer import Tokenizer
from jaxrl_llm.curriculum import uniform
from jaxrl_llm.ops import advantages, kl, pkpo
from jaxrl_llm.selection import all_rows
from jaxrl_llm.types import Curriculum, GroupRequests, RunSizes, Selection


def exact(
    prompts: Sequence[str], completions: Sequence[str],
    answer: Sequence[str], **columns: object) -> list[float | None]:
  """Returns 1 where a response holds the answer."""
  del prompts, columns
  return [float(a in text) for a, text in zip(answer, completions)]


def runs() -> None:
  """Calls `run`."""
  summary = jaxrl_llm.run(
      'countdown', reward_fn=exact, problems=[{'problem': '1', 'answer': '2'}],
      heldout=[{'problem': '2', 'answer': '3'}], overrides={'steps': 10},
      name='mine')
  print(summary['seconds'], jaxrl_llm.__version__)
  jaxrl_llm.run()  # type: ignore[call-arg]
  jaxrl_llm.run('countdown', reward_fn='exact')  # type: ignore[arg-type]
  jaxrl_llm.run('countdown', exact)  # type: ignore[call-arg]
  jaxrl_llm.run('countdown', problems='1 + 1')  # type: ignore[arg-type]
  jaxrl_llm.run('countdown', problems={'a': 1})  # type: ignore[arg-type]
  jaxrl_llm.run('countdown', overrides=['steps'])  # type: ignore[arg-type]
  jaxrl_llm.run('countdown', steps=10)  # type: ignore[call-arg]
  print(jaxrl_llm.run('countdown').steps)  # type: ignore[attr-defined]


def loop(tokenizer: Tokenizer) -> dict[str, float]:
  """Calls the four calls."""
  sampler = jaxrl_llm.Sampler('tiny', tokenizer, max_prompt=8, slots=4)
  learner = jaxrl_llm.Learner(sampler, learning_rate=1e-5, clip_high=.3)
  samples = sampler.sample(['1', [{'role': 'user', 'content': '2'}]], 4)
  batch = samples.batch(np.zeros(8), trained=samples.lengths > 1)
  extra = jaxrl_llm.load('folder', learner)
  jaxrl_llm.save('folder', learner, {'step': 1, **(extra or {})})
  jaxrl_llm.Sampler()  # type: ignore[call-arg]
  jaxrl_llm.Sampler('tiny', 'abc')  # type: ignore[arg-type]
  jaxrl_llm.Learner('tiny')  # type: ignore[arg-type]
  sampler.sample([1])  # type: ignore[list-item]
  learner.step(samples)  # type: ignore[arg-type]
  jaxrl_llm.save(learner, 'folder')  # type: ignore[arg-type]
  return learner.step(learner.score(batch))


def equations(rewards: jax.Array, where: jax.Array) -> jax.Array:
  """Calls functions of `ops`."""
  advantages.rloo(rewards, where)  # type: ignore[call-arg]
  advantages.rloo(rewards, where=1)  # type: ignore[arg-type]
  pkpo.sloo(rewards, 'eight')  # type: ignore[arg-type]
  kl.k3(rewards)  # type: ignore[call-arg]
  return pkpo.sloo_minus_one(rewards, 8, where=where)


def stages(sizes: RunSizes) -> tuple[Curriculum, Selection]:
  """Makes and uses stages."""
  RunSizes('8', seed=0, batch=4, samples=8, prompts=4)  # type: ignore[arg-type]
  GroupRequests(np.zeros(1))  # type: ignore[call-arg]
  wrong: Selection = uniform.create(sizes)  # type: ignore[assignment]
  del wrong
  return uniform.create(sizes), all_rows.create(sizes)
