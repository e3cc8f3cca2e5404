"""A loop of one's own in four calls: the next digit, or sums in a chat.

  python notebooks/own_loop.py [MODEL]

Without MODEL, 0.4 million random parameters learn in a minute to answer a digit
with the next one. A chat model, named by its folder, its name on the hub or a
GGUF file, learns sums.
"""

import re
import sys

import numpy as np

import jaxrl_llm
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.ops import advantages

P, N = 16, 8  # prompts of a step, responses to each


def problems(step, tiny):
  """Returns the prompts of a step, and their answers."""
  pairs = np.random.default_rng(step).integers(9, size=(P, 2))
  if tiny:
    return [f'{a}' for a, _ in pairs], [a + 1 for a, _ in pairs]
  return [[{'role': 'user', 'content': f'What is {a} + {b}? Reply with the '
            'number only.'}] for a, b in pairs], pairs.sum(1)


def right(text, answer):
  """Returns whether the last number of a response is the answer."""
  return re.findall(r'\d+', text)[-1:] == [str(answer)]


def main(model='tiny', steps=41, folder=None, show=print, **options):
  """Trains, and returns the mean reward of each step."""
  tiny = model == 'tiny'
  sampler = jaxrl_llm.Sampler(
      model, CharTokenizer('0123456789') if tiny else None,
      prompts_per_step=P, samples_per_prompt=N,
      max_prompt=1 if tiny else 48, max_response=1 if tiny else 32,
      temperature=1.0 if tiny else 0.8, **options)
  learner = jaxrl_llm.Learner(sampler, learning_rate=5e-4 if tiny else 1.5e-5)
  saved = folder and jaxrl_llm.load(folder, learner)
  means = saved['means'] if saved else []
  for step in range(len(means), steps):
    prompts, answers = problems(step, tiny)
    samples = sampler.sample(prompts, N)
    rewards = np.array([
        right(text, answers[p])
        for text, p in zip(samples.texts, samples.prompt)]).reshape(P, N)
    metrics = learner.step(samples.batch(advantages.grpo(rewards)))
    means.append(float(rewards.mean()))
    if step % 10 == 0:
      show(f'step {step}: reward {means[-1]:.2f}, '
           f'entropy {metrics["update/entropy"]:.2f}')
  if folder:
    jaxrl_llm.save(folder, learner, {'means': means})
  return means


if __name__ == '__main__':
  main(*sys.argv[1:])
