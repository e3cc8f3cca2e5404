"""Static choices of the sampler."""

import dataclasses

from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import stops
from jaxrl_llm.sampling.options import DecodeOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerConfig(DecodeOptions):
  """Static settings of the sampler; each new value compiles a new program.

  Attributes:
    max_response: T, the longest response in tokens.
    stop_ids: tokens that end a response (they are part of it).
    stop_texts: texts that end a response, with the token that completes one.
    top_logprobs: K, likeliest tokens to record at each position, before
      truncation.
    record_experts: whether to record the experts of each token, of the prompt
      too. With a beginning of the response, only of its last token and of what
      follows: the call that drew a token records those of the one before.
    tempered: whether to record the tokens' tempered log-probs too. Without
      truncation they are `logprobs`, and a second array is a waste.
    transpose: elements of a matrix from which a decode step multiplies by its
      transpose: faster on a CPU. That copy has the layers' transposes; the
      unembedding is one already. None for no matrix.
    prefill_attention: implementation for it, from `attention.resolve`.
    prefill_lengths: lengths to compile the prefill for, in addition to that of
      the prompts' rows; a prefill runs at the shortest that holds its prompts.
    continues: whether requests may have tokens that exist already, and the key
      is that of the run, see `queue.Lookup`.
    continue_chunk: of these tokens, how many to compute at a time.
  """
  max_response: int
  stop_ids: tuple[int, ...] = ()
  stop_texts: stops.StopTexts | None = None
  top_logprobs: int = 0
  record_experts: bool = False
  tempered: bool = False
  transpose: int | None = None
  prefill_attention: str = 'xla'
  prefill_lengths: tuple[int, ...] = ()
  continues: bool = False
  continue_chunk: int = 64

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
