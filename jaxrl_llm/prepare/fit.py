"""Chooses tokens of a microbatch and rematerialisation by the memory.

The compiler says what memory an update needs. The first step needs that
compiled program in any case.
"""

from typing import Any, Callable, Iterator

import jax
from ml_collections import ConfigDict

from jaxrl_llm import config as config_lib
from jaxrl_llm.base.declared import AUTO
from jaxrl_llm.models import transformer
from jaxrl_llm.prepare import arguments, methods
from jaxrl_llm.prepare.programs import Programs

USED = 0.9  # Share of the memory that is used at most.
# Times that the tokens are halved at most. This costs less time than to compute
# anything again, until products of so few tokens leave an accelerator idle.
_HALVED = 3


class TooLargeError(ValueError):
  """No option fits. `least` are the programs of the last one."""

  def __init__(self, least: Programs, message: str):
    super().__init__(message)
    self.least = least


def fitted(
    make: Callable[[ConfigDict], Programs], config: ConfigDict,
    room: int | None) -> tuple[Programs, int | None]:
  """Makes the programs of a run whose updates fit into the memory.

  Args:
    make: (config) -> programs.
    config: with all sizes. Where `learner.tokens_per_microbatch` or
      `learner.remat` is AUTO, it is chosen: the first of `options` that fits.
    room: bytes of each device; None if they are not known.

  Returns:
    The programs, and the bytes of each device that an update needs. A small
    model has the defaults in any case, and the bytes are None.

  Raises:
    TooLargeError: none fits.
  """
  made = make(config)
  free = [name for name in ('tokens_per_microbatch', 'remat')
          if config.learner[name] == AUTO]
  if not free or room is None or not config_lib.is_large(config):
    return made, None
  for option in options(config.learner, made.config):
    needs = needed(made := make(option))
    if needs <= USED * room:
      return made, needs
  chosen = ' and '.join(
      f'learner.{name}={made.config.learner[name]}' for name in free)
  raise TooLargeError(
      made, f'With {chosen} an update still needs {needs / 1e9:.1f} GB, but a '
      f'device has {room / 1e9:.1f} GB, of which {1 - USED:.0%} should stay '
      'free: lower max_prompt or max_response, spread the model over more '
      'devices by mesh.fsdp, train with lora.rank, or choose a smaller model.')


def options(asked: Any, config: ConfigDict) -> Iterator[ConfigDict]:
  """Yields configs whose updates need less and less memory, the fastest first.

  Args:
    asked: the section `learner` as the user has it.
    config: with the defaults in place of AUTO.
  """
  tokens, remat = config.learner.tokens_per_microbatch, config.learner.remat
  # A list has a row at least, and all of a batch at most.
  least = methods.prompt_columns(config) + config.max_response - 1
  most = least * methods.minibatch_rows(config)
  sizes, kinds = [tokens], [remat]
  if asked.tokens_per_microbatch == AUTO:
    sizes += [tokens >> i for i in range(1, _HALVED + 1)
              if least <= tokens >> i < most]
  if asked.remat == AUTO:
    kinds = transformer.REMAT  # in the order of their cost in time
  pairs = [(size, kinds[0]) for size in sizes]
  pairs += [(sizes[-1], kind) for kind in kinds[1:]]
  for size, kind in pairs:
    option = config.copy_and_resolve_references()
    option.learner.tokens_per_microbatch, option.learner.remat = size, kind
    yield option


def needed(made: Programs) -> int:
  """Returns the bytes on each device during an update with the longest lists.

  Frozen players, which the run keeps beside it, are counted. A program that the
  compiler finds too large for the device needs more than there is.
  """
  x, learner = arguments.abstract(made), made.learner
  plan = arguments.on_devices(
      made, learner.plans(methods.minibatch_rows(made.config))[-1])
  try:
    program = learner.update.lower(
        x.state, x.batch, plan, x.loss, x.frozen, x.others).compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return 1 << 62
  memory = program.memory_analysis()
  return arguments.size((x.anchors, x.reward)) + (
      memory.argument_size_in_bytes + memory.output_size_in_bytes
      - memory.alias_size_in_bytes + memory.temp_size_in_bytes
      + memory.generated_code_size_in_bytes)
