"""Containers that move through the loop, in the order they are made.

Axis letters, used everywhere: P prompts, L prompt tokens, R requests, T
response tokens, K top-k entries, B rows of a learner batch, S = L + T tokens
of a row, N samples of a group, D width, V vocabulary, H heads.

Every probability names its distribution. `tempered` is softmax(logits /
temperature), as the sampler computes it. `behaviour` is the distribution that a
token was drawn from: `tempered` after truncation (top-k, top-p, min-p). Without
truncation both are one array. In a learner's batch, `loss.behaviour` chooses
which of the two `behaviour` is. `old` is the policy at the step of the rollout,
as the trainer computes it: with the temperature, without truncation. `anchor`
is the frozen model of a KL penalty.
"""

from typing import Optional

from flax import struct
import jax

Array = jax.Array


@struct.dataclass
class Prompts:
  """Distinct prompts of one step.

  Attributes:
    tokens: [P, L] int32, right-padded.
    length: [P] int32, tokens of each row without padding, at least 1. 0 marks
      a filler row, which no request may name.
    problem_id: [P] int32, stable id of the problem within its task.
  """
  tokens: Array
  length: Array
  problem_id: Array


@struct.dataclass
class Requests:
  """Requests to the sampler; only the first `count` rows are served.

  Attributes:
    prompt: [R] int32, row of `Prompts`.
    sample: [R] int32, number of the sample within its group. With the problem
      id and the step's key it fixes the sample's noise.
    budget: [R] int32, response tokens allowed, 1 to T.
  """
  prompt: Array
  sample: Array
  budget: Array


@struct.dataclass
class Rollouts:
  """Responses, in the order of their requests.

  Attributes:
    tokens: [R, T] int32, the response, ending with its stop token if it has
      one. 0 after `length`.
    length: [R] int32, tokens of the response, stop token included; 0 for a
      request that was not served.
    logprobs: [R, T] float32, behaviour log-prob of each token; 0 past `length`.
    entropy: [R, T] float32, nats, of the tempered policy before truncation
      (top-k, top-p, min-p), at the position that drew the token.
    truncated: [R] bool, ended by the budget, not by a stop token.
    problem_id: [R] int32.
    sample: [R] int32.
    policy_step: [R] int32, optimiser step of the policy that wrote it.
    tempered_logprobs: [R, T] float32 or None, tempered log-prob of each token;
      0 past `length`. None where nothing truncates: `logprobs` are these too.
    top_ids: [R, T, K] int32 or None, likeliest tokens of the behaviour
      distribution, descending.
    top_logprobs: [R, T, K] float32 or None, their behaviour log-probs; -inf
      where truncation left fewer than K.
  """
  tokens: Array
  length: Array
  logprobs: Array
  entropy: Array
  truncated: Array
  problem_id: Array
  sample: Array
  policy_step: Array
  tempered_logprobs: Optional[Array] = None
  top_ids: Optional[Array] = None
  top_logprobs: Optional[Array] = None


@struct.dataclass
class LearnerBatch:
  """Rows to train on: the prompt, directly followed by the response.

  Token t of row b's response is in column `prompt_length[b] + t` of `tokens`,
  and is predicted by the column before.

  Attributes:
    tokens: [B, S] int32, prompt then response, right-padded.
    prompt_length: [B] int32.
    response_length: [B] int32; 0 for a filler row.
    mask: [B, T] bool, response tokens that count in the loss.
    behaviour_logprobs: [B, T] float32, as the sampler recorded them: before
      truncation with `loss.behaviour='tempered'`, after it with 'sampled'.
    advantages: [B] float32.
    old_logprobs: [B, T] float32 or None, from `Learner.score`. With None the
      update uses its own log-probs, which is exact for the first update after
      a rollout.
    anchor_logprobs: [B, T] float32 or None.
  """
  tokens: Array
  prompt_length: Array
  response_length: Array
  mask: Array
  behaviour_logprobs: Array
  advantages: Array
  old_logprobs: Optional[Array] = None
  anchor_logprobs: Optional[Array] = None
