"""A loop of one's own in four calls: which number comes next?

  python notebooks/own_loop.py [MODEL]

MODEL is a Hugging Face folder or name, or a GGUF file, such as SmolLM2's.
Without one, a model of 0.4 million random parameters learns it in a minute.
"""

import sys

import numpy as np

import jaxrl_llm
from jaxrl_llm.ops import advantages
from jaxrl_llm.tokenizer import CharTokenizer

P, N = 16, 8  # prompts of a step, responses to each


def ask(number):
  """Returns a prompt for a chat model."""
  return [{'role': 'user', 'content': f'Which number comes after {number}? '
                                      'Answer with that number alone.'}]


def main(model='tiny', steps=31, folder=None, show=print, **fields):
  """Trains, and returns the mean reward of each step."""
  tiny = model == 'tiny'
  sampler = jaxrl_llm.Sampler(
      model, CharTokenizer('0123456789') if tiny else None,
      prompts_per_step=P, samples_per_prompt=N, max_prompt=1 if tiny else 64,
      max_response=1 if tiny else 16, **fields)
  learner = jaxrl_llm.Learner(sampler, learning_rate=5e-4 if tiny else 1e-5)
  done = folder and jaxrl_llm.load(folder, learner) or {'means': []}
  means = done['means']
  for step in range(len(means), steps):
    numbers = np.random.default_rng(step).integers(9 if tiny else 99, size=P)
    samples = sampler.sample([str(n) if tiny else ask(n) for n in numbers], N)
    rewards = np.array([
        text.strip() == str(numbers[p] + 1)
        for text, p in zip(samples.texts, samples.prompt)]).reshape(P, N)
    learner.step(samples.batch(advantages.grpo(rewards)))
    means.append(float(rewards.mean()))
    if step % 10 == 0:
      show(f'step {step}: reward {means[-1]:.2f}')
  if folder:
    jaxrl_llm.save(folder, learner, {'means': means})
  return means


if __name__ == '__main__':
  main(*sys.argv[1:])
