"""The RL step that all libraries are timed on, and the protocol for turns.

This file uses only the standard library, so that every environment can import
it. Each library runs in its own process, which does one step for each line that
it reads, and answers with a line of JSON.
"""

import dataclasses
import json
import os
import string
import sys
import time

# Two tokens stop a response, as in Qwen3; the ids between are characters.
PAD, STOP, OTHER_STOP = 0, 1, 63
ALPHABET = (string.digits + '+=' + string.ascii_letters)[:61]
VOCAB_SIZE = 64

PROMPTS = [f'{i:03}+{999 - i:03}=' for i in range(1000)]  # 8 tokens each
MAX_PROMPT = 8


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
  learning_rate: float = 1e-6

  @property
  def rows(self) -> int:
    """Number of responses of a step."""
    return self.prompts * self.samples


TINY = Job(prompts=4, samples=4, max_response=16, width=32, layers=2,
           head_dim=8, mlp_width=64)


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
  loss counts; and `version` of the library.
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
               cpu=time.process_time() - self._start[1])
    self._answers.write(json.dumps(row) + '\n')
    self._answers.flush()
