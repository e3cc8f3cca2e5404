"""Compiles a step's programs for a slice and computes what they need.

All of this works on shapes and needs no weights, no data and no TPU.
"""

import dataclasses
import functools
import re
import time
from typing import Any, Callable, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.launch.aot import chips, cost, faults, memory, waves
from jaxrl_llm.learner import packing
from jaxrl_llm.loop import scores
from jaxrl_llm.models import flops
from jaxrl_llm.models.config import HUB
from jaxrl_llm.prepare import (
  arguments,
  fit,
  methods,
  programs,
  sft_data,
  stages,
)
from jaxrl_llm.sampling.stops import Stops

FREE = 0.10  # Share of the HBM that should stay free.
# Shares of a GPU's bandwidth that decode reached, with all columns at once and
# in chunks, see benchmarks/results/gpu.md.
REACHED, REACHED_IN_CHUNKS = 0.48, 0.23
# Cases for which the time is estimated: the lengths of responses, and whether
# decoding is as measured, or reaches all of the bandwidth.
FULL, QUARTER = waves.power(1.0), waves.power(0.25)
CASES = {'full': (FULL, False), 'measured': (FULL, True),
         'quarter': (QUARTER, False), 'quarter, measured': (QUARTER, True)}
_OF_LEARNER = 'reward', 'score', 'update', 'sft'
_STOP_IDS = (0, 1)  # Placeholders; only their number affects the program.


class Case(NamedTuple):
  """A case for which the time is estimated.

  Attributes:
    lengths: of the responses.
    measured: whether decoding is as measured.
    use: of the decode slots, with these lengths.
  """
  lengths: waves.Lengths
  measured: bool
  use: waves.Use


@dataclasses.dataclass
class Phase:
  """A program of a step and the results of its check.

  Attributes:
    name: key in `arguments.lowered`.
    compile_seconds: seconds to lower and compile.
    bytes: part to bytes on each chip while the program runs.
    needs: the compiler's message about memory, if the program did not compile.
    cost: cost of one run; None for emulated devices, or if the program did not
      compile.
    runs: number of runs for the groups that a step begins.
    model_flops: model FLOPs over all chips and runs.
    faults: sentences about faults of the decode loop.
    seconds: seconds of all runs, by the name of the case.
  """
  name: str
  compile_seconds: float
  bytes: dict[str, int]
  needs: str | None
  cost: cost.Cost | None
  runs: float
  model_flops: float
  faults: list[str]
  seconds: dict[str, float] = dataclasses.field(default_factory=dict)

  @property
  def total(self) -> int:
    """Bytes on each chip while the program runs."""
    return sum(self.bytes.values())


class Report(NamedTuple):
  """Result of a check.

  Attributes:
    config: the checked config, with the choices of a run.
    topology: the slice.
    mesh: the sampler's mesh on the slice.
    learner_mesh: the learner's.
    slots: decode slots on each data shard.
    requests_per_shard: requests that these slots serve.
    phases: programs in the order of a step.
    tokens: response tokens of a step, with all responses at full length.
    cases: name to case.
    wave_steps: decode steps after which a step ends; None if it waits.
  """
  config: ConfigDict
  topology: chips.Topology
  mesh: jax.sharding.Mesh
  learner_mesh: jax.sharding.Mesh
  slots: int
  requests_per_shard: int
  phases: list[Phase]
  tokens: int
  cases: dict[str, Case]
  wave_steps: int | None = None

  @property
  def seconds(self) -> float | None:
    """Estimated seconds of a step, without verification and host work."""
    return self.seconds_if and self.seconds_if['full']

  @property
  def seconds_if(self) -> dict[str, float] | None:
    """Estimated seconds of a step, by the name of the case.

    With `sampling.carry_over`, of as many steps as let as many groups leave as
    one begins.
    """
    if any(p.cost is None for p in self.phases):
      return None
    return {case: sum(p.seconds[case] for p in self.phases)
            for case in self.cases}

  @property
  def peak(self) -> int | None:
    """Largest bytes per chip of all phases; None if one is unknown."""
    if any(p.needs for p in self.phases):
      return None
    return max(p.total for p in self.phases)


def load(spec: str, overrides: dict[str, Any]) -> ConfigDict:
  """Loads a config without the files of its model.

  A known name on the hub is replaced by a preset. For an unknown name,
  config.json is downloaded.
  """
  flat = config_lib.flatten(config_lib.load(spec, overrides))
  changes = {}
  for player, section in config_lib.MODELS.items():
    preset = HUB.get(flat[f'{section}.hf'])
    if preset and player != 'reward':  # which none of them is
      changes.update({
          name: value for name, value in flat.items()
          if name.startswith(f'{section}.') and value is not None})
      changes.update({
          f'{section}.hf': None, f'{section}.preset': preset,
          f'{section}.dtype': flat[f'{section}.dtype'] or 'bfloat16'})
  config = config_lib.load(spec, {**overrides, **changes})
  stages.validate(config)
  return config


def other_way(config: ConfigDict) -> ConfigDict:
  """Returns a config with the other value of `sampling.carry_over`.

  Raises:
    ValueError: its method samples no responses, or cannot carry them over.
  """
  if not config.steps:
    raise ValueError('steps=0 samples no responses: leave --lengths out.')
  changed = _without_carry(config)
  changed.sampling.carry_over = not config.sampling.carry_over
  stages.validate(changed)
  return changed


def _without_carry(config: ConfigDict) -> ConfigDict:
  """Returns a copy of a config whose steps wait for all responses."""
  changed = config.copy_and_resolve_references()
  changed.sampling.update(
      carry_over=False, wave_steps=None, carry_groups=None)
  return changed


def topology_of(spec: str) -> str:
  """Returns the slice that a config file is made for.

  It is TOPOLOGIES[ARG] for `FILE.py:ARG`, or else TOPOLOGY.

  Raises:
    ValueError: the file does not define TOPOLOGY.
  """
  path, _, arg = spec.partition(':')
  found = None
  if not path.endswith('.json'):
    module = config_lib.load_file(path)
    found = getattr(module, 'TOPOLOGIES', {}).get(
        arg, getattr(module, 'TOPOLOGY', None))
  if found is None:
    raise ValueError(
        f'{path} defines no TOPOLOGY: give the slice on the command line, such '
        'as --topology=v5e:16x8.')
  return found


def build(config: ConfigDict, topology: chips.Topology) -> programs.Programs:
  """Makes the programs of a config on a slice.

  What the run would choose by the memory of a device is chosen here too.
  """
  mesh = sharding.make_mesh(
      *(config.mesh[axis] for axis in sharding.AXES), topology.devices,
      config.mesh.learner_tensor)
  make = functools.partial(
      programs.make_programs, models=config_lib.models(config), mesh=mesh,
      stops=Stops(_STOP_IDS), stages=stages.make_stages(config))
  try:
    return fit.fitted(
        make, config, topology.chip and topology.chip.memory)[0]
  except fit.TooLargeError as error:
    return error.least  # The report says what it lacks.


def run(config: ConfigDict, topology: chips.Topology,
        only: tuple[str, ...] = (),
        say: Callable[[str], None] = lambda line: None,
        lengths: waves.Lengths | None = None) -> Report:
  """Compiles every program of a step, or those in `only`.

  Args:
    config: from `load`.
    topology: the slice.
    only: names of phases; empty means all.
    say: gets a line before and after each phase is compiled.
    lengths: of responses, for the cases 'lengths' and 'lengths, measured'.

  Returns:
    The report.

  Raises:
    ValueError: the mesh does not fit the slice or the model.
  """
  made = build(config, topology)
  compiled = {}
  for name, lower in arguments.lowered(made).items():
    if not only or name in only:
      say(f'{name}: compiling')
      compiled[name] = _compile(lower)
      say(f'{name}: {compiled[name][1]:.0f} s')
  code = sum(
      program.memory_analysis().generated_code_size_in_bytes
      for program, _, _ in compiled.values() if program is not None)
  cases = cases_of(made, {**CASES, **({} if lengths is None else {
      'lengths': (lengths, False), 'lengths, measured': (lengths, True)})})
  phases = [
      _phase(made, topology, cases, name, *result, code)
      for name, result in compiled.items()]
  return Report(
      made.config, topology, made.mesh, made.learner_mesh,
      made.rollout_sampler.sampler.sampler.slots,
      made.rollout_sampler.sampler.requests_per_shard, phases,
      _wave(made)[1] * config.max_response if config.steps
      else config.sft.batch * sft_data.limits_of(config).max_response, cases,
      carry.steps if (carry := made.stages.settings.carry) else None)


def _wave(made: programs.Programs) -> tuple[int, int]:
  """Returns the groups and the samples that a step begins, at most."""
  carry, sampler = (
      made.stages.settings.carry, made.rollout_sampler.sampler)
  if carry:
    return carry.groups, carry.requests
  return sampler.max_prompts, sampler.max_requests


def cases_of(
    made: programs.Programs,
    cases: dict[str, tuple[waves.Lengths, bool]]) -> dict[str, Case]:
  """Simulates the decode slots for lengths of responses, see CASES."""
  carry, sampler = (
      made.stages.settings.carry, made.rollout_sampler.sampler.sampler)
  sizes = waves.Sizes(
      *_wave(made), sharding.data_shards(made.mesh), sampler.slots,
      made.config.max_response, sampler.chunk or 1,
      *(carry.steps, made.stages.curriculum.max_prompts) if carry else ())
  simulate = functools.cache(functools.partial(waves.simulate, sizes=sizes))
  return {name: Case(lengths, measured, simulate(lengths))
          for name, (lengths, measured) in cases.items()}


def _compile(lower) -> tuple[Any, float, str | None]:
  """Compiles a program.

  Returns:
    The compiled program or None; the seconds; and, if memory ran out, the
    compiler's message about it.
  """
  start = time.monotonic()
  program, needs = None, None
  try:
    program = lower().compile()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    needs = _needs(str(error))
  return program, time.monotonic() - start, needs


def _needs(error: str) -> str:
  """Extracts the memory that was asked for from a compiler error."""
  for pattern in (r'Used ([\d.]+[KMGT]) of \S+ hbm',
                  r'required[^(]*\(([\d.]+[KMGT])\)'):
    found = re.search(pattern, error)
    if found:
      return found[1] + 'iB'
  return error.splitlines()[0][:200]


def bytes_of(needs: str) -> int:
  """Converts `Phase.needs` to a number of bytes, 0 if it has no number."""
  found = re.fullmatch(r'([\d.]+)([KMGT])iB', needs)
  return int(float(found[1]) * 1024 ** ('KMGT'.index(found[2]) + 1)
             ) if found else 0


def _phase(
    made, topology, cases, name, program, seconds, needs, code) -> Phase:
  phase = Phase(name, seconds, {}, needs, None,
                _runs(made, name) * _times(name, cases['full']),
                _model_flops(made, name), [])
  if program is None:
    phase.bytes = memory.lacking(made, name, bytes_of(needs))
    return phase
  phase.bytes = memory.parts(made, name, program, code)
  text = program.as_text()
  if name == 'sample':
    phase.faults = faults.find(text, made)
  if topology.chip is not None:
    found: dict[Any, cost.Cost] = {}
    for key, case in cases.items():
      known = case.lengths, case.measured and name == 'sample'
      if known not in found:
        found[known] = _estimate(made, topology.chip, name, text, case)
      phase.seconds[key] = found[known].seconds * (
          _runs(made, name) * _times(name, case))
    phase.cost = found[FULL, False]
  return phase


def _times(name: str, case: Case) -> float:
  """Returns the steps for which the runs of a program count, see `Phase`."""
  return 1.0 if name in ('update', 'sft') else case.use.waves


def _estimate(made, chip, name, text, case) -> cost.Cost:
  """Estimates the cost of one run of a program in a case."""
  if case.measured and name == 'sample':
    chip = chip._replace(bandwidth=chip.bandwidth * (
        REACHED_IN_CHUNKS if made.rollout_sampler.sampler.sampler.chunk
        else REACHED))
  mesh = made.learner_mesh if name in _OF_LEARNER else made.mesh
  return cost.estimate(text, cost.Machine(chip, mesh), _turns(
      made, name, case), _chances(made, name, case))


def _runs(made: programs.Programs, name: str) -> int:
  """Returns how often a program runs in a step, at most.

  With `sampling.carry_over`, the updates are those of a step that waits: all
  groups that are begun may leave at once, but not in each step.
  """
  if name == 'update':
    return stages.make_stages(
        _without_carry(made.config)).needs.updates_per_step
  if name == 'score':
    return len(scores.scoring(made.needs.columns, {}, {}))
  return int(name != 'sft' or not made.config.steps)  # it is no part of one


def _rows(made: programs.Programs, name: str) -> int:
  """Returns the rows of a program of the learner."""
  if name == 'sft':
    return made.config.sft.batch
  return methods.minibatch_rows(made.config) if name == 'update' else (
      made.scored_rows)


def _lengths(made: programs.Programs, name: str, case: Case) -> np.ndarray:
  """Returns the tokens of the responses in a program of the learner.

  They are 0 for rows that are not needed: with `sampling.carry_over`, 'score'
  takes those that have new tokens, and 'reward' as many as end in a step.
  """
  rows, carries = _rows(made, name), made.stages.settings.carry
  if name == 'score' and carries:
    return np.pad(case.use.lengths, (0, rows - len(case.use.lengths)))
  if name == 'reward':
    some = round(_wave(made)[1] / case.use.waves) if carries else rows
    return np.pad(case.lengths.draw(some, made.config.max_response) + 1,
                  (0, rows - some))
  return case.lengths.draw(rows, made.config.max_response)


def _plan(made: programs.Programs, name: str, case: Case) -> packing.Plan:
  """Plans the microbatches of a program of the learner; see `_lengths`."""
  rows, config = _rows(made, name), made.config
  if name == 'sft':
    limits = sft_data.limits_of(config)
    return programs.sft_learner(made, limits).plan(
        np.arange(rows), np.full(rows, limits.max_prompt),
        np.full(rows, limits.max_response))
  group, lengths = (
      np.arange(rows) // config.samples_per_prompt, _lengths(made, name, case))
  if name == 'reward':
    return made.reward.plan(group, np.full(rows, config.max_prompt), lengths)
  return made.learner.plan(
      group, np.full(rows, methods.prompt_columns(config)), lengths)


def _chances(
    made: programs.Programs, name: str, case: Case,
) -> dict[str, float | tuple[float, ...]]:
  """Returns how often data-dependent conditionals take which branch.

  Prompts are full, see `cost.estimate`; for responses see `_lengths`.
  """
  # The expensive branch of truncation sorts; min p alone does not need it.
  sampling = made.config.sampling
  found = {'truncation': float(sampling.top_k > 0 or sampling.top_p < 1),
           'windowed': 1.0}
  if name not in _OF_LEARNER:
    return found
  plan = _plan(made, name, case)
  columns = plan.count * plan.owner.shape[0] * packing.head_columns(
      plan.sizes, made.config.max_response)
  lists = plan.rows[plan.rows > 0]
  firm = getattr(plan.sizes.layout, 'firm', None) or plan.sizes.places
  return {**found, 'further_rows': float(np.mean(lists > firm)), 'needed': min(
          _lengths(made, name, case).sum() / columns, 1.0)}


def _turns(
    made: programs.Programs, name: str, case: Case) -> dict[str, float]:
  """Returns the iterations of data-dependent loops; see `_lengths`."""
  config, sampler = made.config, made.rollout_sampler.sampler.sampler
  if name in _OF_LEARNER:
    plan = _plan(made, name, case)
    full = plan if name == 'sft' else arguments.full_plan(
        made, _rows(made, name), name == 'reward')
    # Shorter lists are another program, of as much less arithmetic.
    return dict(microbatches=int(plan.count)
                * plan.sizes.columns / full.sizes.columns)
  use, chunk = case.use, sampler.chunk or 1
  refills = -(-use.steps // sampler.steps_per_refill)
  carries = made.stages.settings.carry is not None
  prompts = use.prompts if carries else (
      made.rollout_sampler.sampler.prompts_per_shard)
  prefills = -(-prompts // sampler.prefill_prompts)
  prompt = -(-config.max_prompt // chunk)
  in_use = _prompts_in_use(made)
  return dict(
      prefixes=in_use * prompt, new_prompt=prompts / use.requests,
      prefills=prefills, serve=refills / prefills,
      decode=sampler.steps_per_refill, refill=use.requests / refills,
      chunks=use.chunks + (0 if sampler.share_prompts else prompt),
      continued=use.continued, unfinished=use.unfinished,
      continued_chunks=-(-use.existing // sampler.continue_chunk))


def _prompts_in_use(made: programs.Programs) -> float:
  """Returns the distinct prompts of a shard's slots, averaged over the steps.

  All responses are full, so slots serve waves of adjacent requests. Groups have
  equal sizes, and the shard is the one with the most prompts.
  """
  sampler = made.rollout_sampler.sampler
  groups, requests = _wave(made)
  size, slots = (
      -(-requests // sharding.data_shards(made.mesh)), sampler.sampler.slots)
  group = -(-requests // groups)
  first = np.arange(0, requests, size)[:, None] + np.arange(0, size, slots)
  end = np.minimum(np.minimum(first + slots, (first[:, :1] // size + 1) * size),
                   requests)
  prompts = np.maximum((end - 1) // group - first // group + 1, 0)
  return float(prompts.mean(-1).max())


def _model_flops(made: programs.Programs, name: str) -> float:
  """Returns model FLOPs of all runs in a step, for rows of maximum length.

  A prompt counts once for all of its responses.
  """
  config = made.config
  groups, rows = _wave(made)
  if name == 'update':
    rows = made.stages.selection.rows * made.stages.curriculum.max_rounds
  prompt = np.full(rows, config.max_prompt)
  forward = lambda player, prompts: flops.sample(
      player.model, prompt[:prompts], prompt,
      np.full(rows, config.max_response))
  if name == 'sft':
    limits, rows = sft_data.limits_of(config), config.sft.batch
    prompt = np.full(rows, limits.max_prompt)
    return (2 if config_lib.sft_of_lora(config) else 3) * flops.sample(
        made.model, prompt, prompt, np.full(rows, limits.max_response))
  if name in ('sample', 'reward'):
    of = name if name == 'reward' else made.rollout_sampler.player
    return forward(made.players[of], groups)
  total, own = 0.0, methods.teacher(config) and 'teacher' not in made.players
  for of, player in made.players.items():
    if of == 'reward':
      continue
    runs = dict(
        score=_runs(made, 'score') if of == 'policy' else (
            'old_logprobs' in made.needs.columns and of != 'teacher'),
        # A backward pass is two, or one with LoRA; one as its own teacher.
        update=config.learner.epochs * (1 if of == 'teacher' else (
            2 if of == 'policy' and config.lora.rank else 3) + bool(
                own and of == 'policy')))
    total += runs.get(name, 0) * forward(
        player, -(-rows // config.samples_per_prompt))
  return total
