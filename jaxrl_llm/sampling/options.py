"""Choices of the sampler: the config's section `sampling`, and its parts.

`base.declared` has the notes of their fields.
"""

import dataclasses
from typing import Annotated, Literal

from jaxrl_llm.base import schedules
from jaxrl_llm.base.declared import AUTO, Lengths, Texts, WEIGHTS

_SOME = '[1, inf)'


@dataclasses.dataclass(frozen=True)
class DrawNumbers:
  """Numbers of the distribution that tokens are drawn from; they are traced.

  Attributes:
    temperature: divides the logits: a number, or a schedule such as
      0:1.2,500:1 (evaluations take its last value).
    top_k: draw from this many likeliest tokens (0: all).
    top_p: draw from the likeliest tokens that hold this much probability (1:
      all).
    min_p: draw from tokens at least this fraction as likely as the likeliest
      (0: all).
  """
  temperature: Annotated[schedules.Floats, '(0, inf)'] = 1.0
  top_k: Annotated[int, '[0, 2147483647]'] = 0
  top_p: Annotated[float, '(0, 1]'] = 1.0
  min_p: Annotated[float, '[0, 1]'] = 0.0


@dataclasses.dataclass(frozen=True)
class DecodeOptions:
  """Choices of decoding. Each compiles a program of its own.

  Attributes:
    kv: type of the keys and values that decoding keeps for a step's responses:
      int8 or float8, see sampling.weights (none: the compute type, which
      evaluations always use).
    slots: responses decoded at the same time on each data shard.
    steps_per_refill: decode steps between two refills of free slots.
    chunk: cache positions per block of decode attention (none: all at once).
    share_prompts: keep a prompt's keys and values once for all its responses in
      decode, not a copy for each (none: with many times as many slots as
      prompts on a TPU or GPU).
    unroll: unroll the layers of a decode step: faster, but a slower compile and
      a second copy of the weights (none: on a CPU or GPU).
    prefill_prompts: prompts whose keys and values each data shard keeps at a
      time, in addition to those of its slots: less memory, but more and smaller
      prefills (none: all).
  """
  kv: Annotated[Literal['int8', 'float8'] | None, (WEIGHTS,)] = None
  slots: Annotated[int, _SOME, 'free'] = 64
  steps_per_refill: Annotated[int, _SOME, 'free'] = 2
  chunk: Annotated[int | None, _SOME, 'free'] = None
  share_prompts: Annotated[bool | None, 'free'] = None
  unroll: Annotated[bool | None, 'free'] = None
  prefill_prompts: Annotated[int | None, _SOME, 'free'] = None


@dataclasses.dataclass(frozen=True)
class SamplingOptions(DecodeOptions, DrawNumbers):
  """Sampling of responses.

  Attributes:
    stop: texts that end a response, beside the model's stop tokens and the end
      of a turn in the template: one text as it is, or a JSON list such as
      ["\\n\\nQuestion:"].
    weights: type of the weights that sample a step's responses: int8 or float8;
      off_policy=jackpot corrects the mismatch (none: the compute type, which
      evaluations always use).
    carry_over: do not wait for the longest response: a wave ends after
      sampling.wave_steps, and the next one goes on with what is unfinished.
    wave_steps: with carry_over, decode steps of a wave on a data shard (none:
      a quarter of max_response).
    carry_groups: with carry_over, most groups that are begun and not complete;
      then none begins (none: those of as many waves as a response may take).
    buckets: prompt lengths to compile the prefill for in addition to
      max_prompt: lengths, auto (a few, chosen by the training prompts' lengths
      and kept for the run) or none.
  """
  stop: Texts = Texts()
  weights: Annotated[Literal['int8', 'float8'] | None, (WEIGHTS,)] = None
  carry_over: Annotated[bool, (WEIGHTS,)] = False
  wave_steps: Annotated[int | None, _SOME, (WEIGHTS,)] = None
  carry_groups: Annotated[int | None, _SOME, (WEIGHTS,)] = None
  buckets: Annotated[Lengths, _SOME, 'free'] = AUTO
