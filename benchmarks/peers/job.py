"""The RL step that all libraries are timed on, and the protocol for turns.

This file uses only the standard library, so that every environment can import
it. Each library runs in its own process, which does one step for each line that
it reads, and answers with a line of JSON.
"""

import dataclasses
import json
import os
import pathlib
import resource
import string
import sys
import time
from typing import Any

# Two tokens stop a response, as in Qwen3; the ids between are characters.
PAD, STOP, OTHER_STOP = 0, 1, 63
ALPHABET = (string.digits + '+=' + string.ascii_letters)[:61]
VOCAB_SIZE = 64

PROMPTS = [f'{i:03}+{999 - i:03}=' for i in range(1000)]  # 8 tokens each


@dataclasses.dataclass(frozen=True)
class Job:
  """Sizes of the step: one GRPO update of a Qwen3 with random weights.

  Attributes:
    prompts: distinct prompts of a step.
    samples: responses to each prompt.
    max_response: limit of a response's tokens.
    width: width of the residual stream.
    layers: number of layers.
    heads: number of query heads.
    kv_heads: number of key and value heads.
    head_dim: width of a head.
    mlp_width: width of the gated MLP.
    vocab_size: size of the vocabulary.
    max_prompt: limit of a prompt's tokens.
    folder: Hugging Face folder with model, tokeniser and `prompts.json`; '' for
      prompts of eight characters and a model made by each library.
    devices: CPU devices of jaxrl_llm, which share the same number of slots;
      0 for one per core.
    learning_rate: learning rate of AdamW. It is so small that the policy, and
      thus the length of the responses, stays nearly constant.
  """
  prompts: int = 16
  samples: int = 16
  max_response: int = 64
  width: int = 128
  layers: int = 4
  heads: int = 4
  kv_heads: int = 2
  head_dim: int = 32
  mlp_width: int = 512
  vocab_size: int = VOCAB_SIZE
  max_prompt: int = 8
  folder: str = ''
  devices: int = 0
  learning_rate: float = 1e-6

  @property
  def rows(self) -> int:
    """Number of responses of a step."""
    return self.prompts * self.samples


TINY = Job(prompts=4, samples=4, max_response=16, width=32, layers=2,
           head_dim=8, mlp_width=64)
# The shape of Qwen3-0.6B.
LARGE = Job(
    prompts=2, samples=4, max_response=32, width=1024, layers=28, heads=16,
    kv_heads=8, head_dim=128, mlp_width=3072, vocab_size=151_936,
    max_prompt=256)
# A model of the user, with four problems a step.
OWN = Job(prompts=4, samples=8, max_response=96, max_prompt=256)


def qwen3(job: Job) -> dict[str, Any]:
  """Returns the job's sizes as arguments of transformers' Qwen3Config."""
  return dict(
      vocab_size=job.vocab_size, hidden_size=job.width,
      intermediate_size=job.mlp_width, num_hidden_layers=job.layers,
      num_attention_heads=job.heads, num_key_value_heads=job.kv_heads,
      head_dim=job.head_dim, tie_word_embeddings=True, bos_token_id=None)


def prompts(job: Job) -> list[str]:
  """Returns the training prompts, in the order in which they are used."""
  if not job.folder:
    return PROMPTS
  return json.loads(pathlib.Path(job.folder, 'prompts.json').read_text())


def to_argument(job: Job) -> str:
  """Encodes the job as a command-line argument."""
  return json.dumps(dataclasses.asdict(job))


def from_argument(text: str) -> Job:
  """Decodes the job from a command-line argument."""
  return Job(**json.loads(text))


def reward(response: str) -> float:
  """Returns the reward: the number of characters that are 1."""
  return float(response.count('1'))


class Turns:
  """Protocol of a library's process for taking turns.

  Every answer has these fields: `seconds` and processor seconds (`cpu`) of the
  step; `sample` and `update`, the seconds of these two parts; `sampled`, the
  tokens of the responses, stop tokens included; `trained`, the tokens that the
  loss counts; `peak`, the most bytes of memory that the process had; and
  `version` of the library.
  """

  def __init__(self):
    # Output printed by a library must not mix with the answers.
    self._answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)

  def wait(self) -> bool:
    """Waits for the request of a step; returns False if there are no more."""
    asked = bool(sys.stdin.readline())
    self._start = time.perf_counter(), time.process_time()
    return asked

  def answer(self, **row) -> None:
    """Sends the row of the step since `wait`."""
    row.update(seconds=time.perf_counter() - self._start[0],
               cpu=time.process_time() - self._start[1],
               peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    self._answers.write(json.dumps(row) + '\n')
    self._answers.flush()
