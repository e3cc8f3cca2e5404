"""Static choices of the sampler."""

import dataclasses

from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.ops import quantise
from jaxrl_llm.sampling import stops


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """Static settings of the sampler; each new value compiles a new program.

  Attributes:
    slots: S, requests decoded in parallel on each data shard.
    max_response: T, the longest response in tokens.
    stop_ids: tokens that end a response (they are part of it).
    stop_texts: texts that end a response, with the token that completes one.
    top_logprobs: K, likeliest tokens to record at each position, before
      truncation.
    record_experts: whether to record the experts of each token, of the prompt
      too.
    tempered: whether to record the tokens' tempered log-probs too. Without
      truncation they are `logprobs`, and a second array is a waste.
    steps_per_refill: decode steps between refills of ended slots.
    chunk: cache columns that attention reads at a time; None for all at once
      (faster while the cache is short).
    unroll: whether to unroll the layers, each with its own cache: faster steps,
      longer compiles and a second copy of the layers' weights.
    transpose: elements of a matrix from which a decode step multiplies by its
      transpose: faster on a CPU. That copy has the layers' transposes; the
      unembedding is one already. None for no matrix.
    kv: quantised type of the keys and values in the slots' caches and between
      prefill and refill, a key of `quantise.TYPES`; None for the compute type.
    attention: implementation for the prefill, from `attention.resolve`.
    prefill_prompts: W, prompts whose keys and values exist at a time, in
      addition to the slots' caches; None for all.
    buckets: lengths to compile the prefill for, in addition to that of the
      prompts' rows; a prefill runs at the shortest that holds its prompts.
    share_prompts: whether slots of the same prompt read its keys and values
      from one place, a seat of `prefixes.PrefixPool`; else each slot has a
      copy.
    continues: whether requests may have tokens that exist already, and the key
      is that of the run, see `queue.Lookup`.
    continue_chunk: of these tokens, how many to compute at a time.
  """
  slots: int
  max_response: int
  stop_ids: tuple[int, ...] = ()
  stop_texts: stops.StopTexts | None = None
  top_logprobs: int = 0
  record_experts: bool = False
  tempered: bool = False
  steps_per_refill: int = 2
  chunk: int | None = None
  unroll: bool = False
  transpose: int | None = None
  kv: str | None = None
  attention: str = 'xla'
  prefill_prompts: int | None = None
  buckets: tuple[int, ...] = ()
  share_prompts: bool = False
  continues: bool = False
  continue_chunk: int = 64

  def __post_init__(self):
    for name in ('slots', 'max_response', 'steps_per_refill', 'chunk',
                 'transpose', 'prefill_prompts', 'continue_chunk'):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f'sampler {name}={value}: use at least 1.')
    if self.kv not in (None, *quantise.TYPES):
      raise ValueError(
          f'sampler kv={self.kv!r} is not a quantised type: use None, '
          f'{" or ".join(map(repr, quantise.TYPES))}.')
    if self.continues and self.record_experts:
      raise ValueError(
          'sampler record_experts=True does not record the experts of tokens '
          'that exist already: use it without continues.')

  def check(self, cfg: ModelConfig) -> None:
    """Raises ValueError if a field does not fit the model."""
    if self.record_experts and cfg.experts is None:
      raise ValueError(
          'sampler record_experts=True needs a model with experts: leave it '
          'out.')
    for name, most in (
        ('stop_ids', cfg.vocab_size - 1), ('top_logprobs', cfg.vocab_size)):
      value = getattr(self, name)
      if max(value if name == 'stop_ids' else [value], default=0) > most:
        raise ValueError(
            f'sampler {name}={value} exceeds the vocabulary: use stop_ids '
            'below and top_logprobs up to '
            f'vocab_size={cfg.vocab_size}.')
