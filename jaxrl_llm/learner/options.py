"""Choices of the learner, each a section of the config or a part of one.

`base.declared` has the notes of their fields.
"""

import dataclasses
from typing import Annotated, Collection, Literal

from jaxrl_llm.base import own_code
from jaxrl_llm.base.declared import AUTO, Automatic, ROUNDING
from jaxrl_llm.models.config import Execution

# Names of the models with a state. A checkpoint has them in this order.
POLICY, ACTOR = PLAYERS = 'policy', 'actor'
# These stay as they start: they have no state.
TEACHER, REWARD = FROZEN = 'teacher', 'reward'


def writer(players: Collection[str]) -> str:
  """Returns the name of the player that writes the responses."""
  return ACTOR if ACTOR in players else POLICY


_COUNT, _SOME, _POSITIVE = '[0, inf)', '[1, inf)', '(0, inf)'
_LAYOUT = (ROUNDING,)


@dataclasses.dataclass(frozen=True)
class LoraOptions:
  """LoRA: matrices that are trained in place of the weights.

  Attributes:
    rank: rank of the matrices that are trained in place of the weights; use 10
      to 100 times the learning rate (0: no LoRA, all weights are trained).
    alpha: scale of LoRA: alpha / rank times the product.
    targets: regular expression of the weights that get LoRA; experts get none.
  """
  rank: Annotated[int, _COUNT] = 0
  alpha: Annotated[float, _POSITIVE] = 16.0
  targets: str = 'q|k|v|o|gate|up|down'


@dataclasses.dataclass(frozen=True)
class LossChoices:
  """Functions of the loss. Each choice compiles a program of its own.

  Attributes:
    objective: surrogate loss of a token.
    aggregation: how token losses are averaged: sequence_mean (GRPO), token_mean
      (DAPO) or constant (Dr. GRPO).
    kl_estimator: estimator of the KL of kl_coef: k1, k2 or k3.
    importance: weight of a token by the ratio of old to behaviour probability.
    term: further loss of a token, which is added.
  """
  objective: own_code.Name = own_code.Name('clip')
  aggregation: Literal['sequence_mean', 'token_mean', 'constant'] = 'token_mean'
  kl_estimator: Literal['k1', 'k2', 'k3'] = 'k3'
  importance: own_code.Name = own_code.Name('none')
  term: own_code.Name = own_code.Name('none')


@dataclasses.dataclass(frozen=True)
class LossWeights:
  """Weights of the loss's terms, which are traced.

  Attributes:
    entropy_bonus: weight of the entropy, in nats per token.
    kl_coef: weight of the KL to the policy that RL started from (0: it is not
      computed).
  """
  entropy_bonus: Annotated[float, '(-inf, inf)'] = 0.0
  kl_coef: Annotated[float, _COUNT] = 0.0


@dataclasses.dataclass(frozen=True)
class OverlongOptions:
  """Responses that are too long.

  Attributes:
    mode: truncated responses: none (judged like others), mask (not trained on)
      or penalty (soft, of DAPO).
    window: tokens before max_response over which the penalty grows from 0 to 1.
  """
  mode: Literal['none', 'mask', 'penalty'] = 'none'
  window: Annotated[int, _COUNT] = 0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW and its learning rate.

  Attributes:
    learning_rate: peak learning rate of AdamW.
    schedule: after the warm-up: constant, linear or cosine (both to 0).
    decay_steps: optimiser steps at which linear and cosine reach 0, warm-up
      included (none: all of the run, if every step fills its batches).
    warmup_steps: optimiser steps of linear warm-up.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the second moment's root.
    weight_decay: decoupled decay, times the learning rate; not on norms and
      biases.
    max_grad_norm: longest global norm of a gradient; longer ones are scaled
      down (none: no limit).
  """
  learning_rate: Annotated[float, _COUNT] = 1e-6
  schedule: Literal['constant', 'linear', 'cosine'] = 'constant'
  decay_steps: Annotated[int | None, _SOME] = None
  warmup_steps: Annotated[int, _COUNT] = 0
  b1: Annotated[float, '[0, 1)'] = 0.9
  b2: Annotated[float, '[0, 1)'] = 0.99
  eps: Annotated[float, _POSITIVE] = 1e-8
  weight_decay: Annotated[float, _COUNT] = 0.0
  max_grad_norm: Annotated[float | None, _POSITIVE] = 1.0


@dataclasses.dataclass(frozen=True)
class PassOptions(Execution):
  """Forward and backward passes: memory and speed.

  Attributes:
    vocab_chunk: tokens whose logits are computed at a time (none: as many as
      fit in 512 MB, or a 32nd of the memory of a GPU).
  """
  vocab_chunk: Annotated[int | None, _SOME, _LAYOUT] = None


@dataclasses.dataclass(frozen=True)
class RejectionChoices:
  """Choices of the rejection. Each compiles a program of its own.

  Attributes:
    target: policy to learn from: p_new (the one in training) or p_ref (the one
      at the step of the rollout).
    mask: what is kept: sampled (tokens, at random), expected (each, times its
      probability of being kept) or none (all).
    weight: weight the kept tokens by target over kept probability.
    z: normaliser of the kept probabilities: topk (over the likeliest tokens,
      times kappa) or exact (with p_new, one more forward pass and a copy of the
      weights).
    top_k: likeliest tokens recorded at each position (0, with jackpot.z=exact:
      none).
    alpha: mean acceptance in kappa: of the probabilities (acceptance) or of the
      sampled mask (mask).
    two_pass: with p_new, compute kappa of the batch itself in one more forward
      pass, not of the update before.
    denominator: tokens that the loss divides by: accepted or all.
  """
  target: Literal['p_new', 'p_ref'] = 'p_new'
  mask: Literal['sampled', 'expected', 'none'] = 'sampled'
  weight: bool = True
  z: Literal['topk', 'exact'] = 'topk'
  top_k: Annotated[int, _COUNT] = 20
  alpha: Literal['acceptance', 'mask'] = 'acceptance'
  two_pass: bool = False
  denominator: Literal['accepted', 'all'] = 'accepted'


@dataclasses.dataclass(frozen=True)
class RejectionBounds:
  """Numbers of the rejection, which are traced.

  Attributes:
    lam: a token is kept with probability target / (lam behaviour), at most 1; a
      smaller one keeps more.
    c1: bound of the weight of jackpot.weight; loss.importance, if it is set,
      bounds the weight instead.
    c2: bound of old over new probability, with jackpot.target=p_new: just above
      1 + loss.clip_high.
  """
  lam: Annotated[float, _POSITIVE] = 1.0
  c1: Annotated[float, '(0, inf]'] = 3.0
  c2: Annotated[float, '(0, inf]'] = 1.3


@dataclasses.dataclass(frozen=True)
class ActorChoices:
  """Learning of an actor that is another model.

  Attributes:
    ppo: train the actor by PPO on its responses; without this and actor.distill
      it stays as it starts.
    distill: lambda_distill: weight of KL(policy || actor) in the actor's loss.
    distill_top_k: the policy's likeliest tokens that this KL tells apart; the
      rest counts as one (0: all tokens).
  """
  ppo: bool = True
  distill: Annotated[float, _COUNT] = 1.0
  distill_top_k: Annotated[int, _COUNT] = 0


@dataclasses.dataclass(frozen=True)
class ActorNumbers:
  """Numbers of the actor's loss, which are traced.

  Attributes:
    clip_low: the actor's ratios below 1 minus this are clipped, with actor.ppo.
    clip_high: the actor's ratios above 1 plus this are clipped, with actor.ppo.
    kl_target: nats per token: a controller changes lambda_distill, from
      actor.distill on, to hold KL(policy || actor) there (none: it is
      constant).
  """
  clip_low: Annotated[float, '[0, 1]'] = 0.2
  clip_high: Annotated[float, '[0, inf]'] = 0.2
  kl_target: Annotated[float | None, _POSITIVE] = None


@dataclasses.dataclass(frozen=True)
class TeacherChoices:
  """Form of the KL to a teacher.

  Attributes:
    kl: KL(policy || teacher) in the loss: all (over the vocabulary), top_k (of
      the teacher's likeliest tokens, with all others as one) or sampled (of the
      sampled token: the gradient of all on average).
    top_k: tokens of teacher.kl=top_k.
  """
  kl: Literal['all', 'top_k', 'sampled'] = 'all'
  top_k: Annotated[int, _SOME] = 20


@dataclasses.dataclass(frozen=True)
class TeacherNumbers:
  """Numbers of the KL to a teacher, which are traced.

  Attributes:
    coef: weight of KL(policy || teacher) in the loss; with advantage=none it is
      all of the loss.
    temperature: divides the logits of both in this KL (none:
      sampling.temperature).
  """
  coef: Annotated[float, _COUNT] = 1.0
  temperature: Annotated[float | None, _POSITIVE] = None


# Sections of the config.


@dataclasses.dataclass(frozen=True)
class LossOptions(LossWeights, LossChoices):
  """Loss of the policy.

  Attributes:
    behaviour: the sampler's log-prob in the ratio of importance: tempered
      (before top-k, top-p and min-p, as in training: equal policies have weight
      1) or sampled (after them: at most 1).
    replay_experts: record the experts that the sampler chooses, and use them in
      training in place of the routers' own choice: rounding and quantised
      weights then change no choice; for models with experts.
  """
  behaviour: Literal['tempered', 'sampled'] = 'tempered'
  replay_experts: bool = False


@dataclasses.dataclass(frozen=True)
class JackpotOptions(RejectionBounds, RejectionChoices):
  """Rejection of another policy's tokens."""


@dataclasses.dataclass(frozen=True)
class ActorOptions(ActorNumbers, ActorChoices):
  """Actor that is another model.

  Attributes:
    learning_rate: the actor's peak learning rate, where it is another model
      (none: optimizer.learning_rate).
  """
  learning_rate: Annotated[float | None, _COUNT] = None


@dataclasses.dataclass(frozen=True)
class TeacherOptions(TeacherNumbers, TeacherChoices):
  """Distillation from a teacher.

  Attributes:
    max_tokens: most tokens of teacher.hint (none: max_prompt); training
      problems with more are left out.
  """
  max_tokens: Annotated[int | None, _SOME] = None


@dataclasses.dataclass(frozen=True)
class LearnerOptions(PassOptions):
  """Updates, and their microbatches.

  Attributes:
    epochs: passes over the rows of a round.
    updates: optimiser steps of each pass over a batch: a mini-batch has
      prompts_per_step x samples_per_prompt / this rows.
    tokens_per_microbatch: most tokens of one forward and backward pass on each
      data shard, each prompt counted once: a number (at least one row) or auto
      (by the device, the model and the memory).
    skip_zero: do not compute rows whose advantage is 0, which have no gradient;
      unlike drop_zero_advantage, they count in the denominators of the loss. A
      run says so where its rows have a gradient from elsewhere.
  """
  epochs: Annotated[int, _SOME] = 1
  updates: Annotated[int, _SOME] = 1
  tokens_per_microbatch: Annotated[Automatic, _SOME, _LAYOUT] = AUTO
  skip_zero: bool = False
