"""The RL step that every library is timed on, and how libraries take turns.

Nothing but the standard library, so that it can be imported in any of their
environments. Each library runs in a process of its own; a process does one
step for each line that it reads, and answers with a line of JSON.
"""

import dataclasses
import json
import os
import string
import sys
import time

# Two tokens stop a response, as in Qwen3; those between are characters.
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
    samples: responses to each.
    max_response: tokens a response may have.
    width: of the residual stream.
    layers: of the model.
    heads: query heads.
    kv_heads: key and value heads.
    head_dim: width of a head.
    mlp_width: of the gated MLP.
    learning_rate: of AdamW; so small that the policy, and with it the length
      of the responses, stays the same over the steps.
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
    """Responses of a step."""
    return self.prompts * self.samples


TINY = Job(prompts=4, samples=4, max_response=16, width=32, layers=2,
           head_dim=8, mlp_width=64)


def to_argument(job: Job) -> str:
  """The job as a command-line argument."""
  return json.dumps(dataclasses.asdict(job))


def from_argument(text: str) -> Job:
  """The job out of a command-line argument."""
  return Job(**json.loads(text))


def reward(response: str) -> float:
  """What the policy is to maximise: how many characters are a 1."""
  return float(response.count('1'))


class Turns:
  """A library's side of taking turns.

  Every answer says `seconds` and processor seconds (`cpu`) of the step;
  `sample` and `update`, seconds of these two parts; `sampled` tokens of the
  responses, stop tokens included; `trained` tokens, that the loss counts; and
  the library's `version`.
  """

  def __init__(self):
    # What libraries print must not come between the answers.
    self._answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)

  def wait(self) -> bool:
    """Until a step is asked for; False if no more will be."""
    asked = bool(sys.stdin.readline())
    self._start = time.perf_counter(), time.process_time()
    return asked

  def answer(self, **row) -> None:
    """Reports the step since `wait`."""
    row.update(seconds=time.perf_counter() - self._start[0],
               cpu=time.process_time() - self._start[1])
    self._answers.write(json.dumps(row) + '\n')
    self._answers.flush()
