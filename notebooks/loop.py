"""The loop from its parts, without a config: sample, judge, advantages, update.

  python notebooks/loop.py

A model of 0.4 million random parameters learns in half a minute to answer a
digit with the next one. Config, task, curriculum, checkpoints and display of
`jaxrl_llm.train` are not used.
"""

import jax
import numpy as np

from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer, options, update
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import PRESETS
from jaxrl_llm.ops import advantages
from jaxrl_llm.sampling import generate
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.tasks import Problem
from jaxrl_llm.types import RolloutTokens

P, N, L, T = 16, 8, 1, 1  # prompts, samples of each, tokens of both


def main(steps=61, show=print):
  """Trains and returns the mean reward of each step."""
  tokenizer, model = CharTokenizer('0123456789'), PRESETS['tiny']
  key = jax.random.key(0)
  sample = jax.jit(lambda *args: generate.generate(
      *args, cfg=model, sampler=generate.SamplerConfig(
          slots=P * N, max_response=T, stop_ids=tokenizer.stop_ids)))
  policy = learner_lib.PlayerModel(model, optimizer.make_optimizer(
      options.OptimizerConfig(learning_rate=5e-4), steps))
  learner = learner_lib.make_learner(
      {'policy': policy}, learner_lib.LearnerConfig(
          tokens=P * N, max_prompt=L, max_response=T, samples=N))
  hyper = update.LossParams(
      temperature=1.0, entropy_bonus=0.0, kl_coef=0.0, budget=T,
      objective=dict(clip_low=0.2, clip_high=0.2), importance={})
  state = learner.init({'policy': transformer.init(key, model)})
  means = []
  for step in range(steps):
    digits = np.random.default_rng(step).integers(10, size=P)
    prompts = rollout.encode(
        [Problem(int(d), str(d), '') for d in digits], tokenizer, L)
    # Each sample has a number of its own: a digit may come twice in a step.
    row, number = np.repeat(np.arange(P), N), np.arange(P * N)
    rollouts, _ = jax.device_get(sample(
        state['policy'].params,
        Queue(prompts, rollout.requests(row, number, T), P * N),
        jax.random.fold_in(key, step), SamplingParams(), step))
    texts = rollout.decode(rollouts, tokenizer)
    rewards = np.array([
        text == str((digits[p] + 1) % 10) for p, text in zip(row, texts)])
    values = advantages.grpo(rewards.reshape(P, N)).reshape(-1)
    tokens = RolloutTokens(
        prompt=prompts.tokens[row], prompt_length=prompts.length[row],
        response=rollouts.tokens, length=rollouts.length,
        behaviour_logprobs=rollouts.logprobs)
    batch = rows_lib.learner_batch(
        tokens, np.arange(P * N), values, np.ones(P * N, bool))
    plan = learner.plan(row, batch.prompt_length, batch.response_length)
    state, _ = learner.update(state, batch, plan, hyper)
    means.append(rewards.mean())
    if step % 10 == 0:
      show(f'step {step}: reward {means[-1]:.2f}')
  return means


if __name__ == '__main__':
  main()
