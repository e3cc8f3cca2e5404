"""Results of a check as tables, as JSON, and as a verdict."""

import collections
import io
from typing import Any

from rich import console, table

from jaxrl_llm.launch.aot import check, chips

# Scopes of the sampler's loops and their names in the table, inner loop first.
_PLACES = ('decode', 'decode loop'), ('serve', 'refills')

# Advice by the part of a phase that takes most memory.
_KNOBS = {
    'parameters': 'raise mesh.fsdp',
    'optimiser': 'raise mesh.fsdp',
    'anchor': 'raise mesh.fsdp',
    'frozen': 'raise mesh.tensor',
    'teacher': 'raise mesh.fsdp',
    'reward model': 'raise mesh.fsdp',
    'sampling weights': 'raise mesh.tensor',
    'prefix cache': 'lower sampling.prefill_prompts',
    'decode cache': 'lower sampling.slots',
    'program': 'raise mesh.fsdp',
}
_ACTIVATIONS = {
    'sft': 'lower learner.tokens_per_microbatch, or set learner.remat=full',
    'reshard': 'raise mesh.tensor',
    'sample': 'lower sampling.slots or sampling.prefill_prompts',
    'reward': 'lower learner.tokens_per_microbatch',
    'score': 'lower learner.tokens_per_microbatch',
    'update': 'lower learner.tokens_per_microbatch, or set '
              'learner.remat=full',
}


def verdict(report: check.Report) -> list[str]:
  """Returns a sentence for each reason not to launch the job."""
  return [*(fault for phase in report.phases for fault in phase.faults),
          *misfits(report)]


def misfits(report: check.Report) -> list[str]:
  """Returns a sentence if memory is short, and one per kernel that fails."""
  chip, lacks, found = report.topology.chip, [], []
  if chip is None:
    return found
  for phase in report.phases:
    if phase.needs and not check.bytes_of(phase.needs):
      found.append(
          f'{phase.name} does not compile: {phase.needs} If a kernel needs '
          'this memory, set learner.attention=xla, which uses no kernel.')
    elif phase.needs or phase.total > chip.memory * (1 - check.FREE):
      needs = phase.needs or f'{phase.total / chips.GIB:.2f}GiB'
      lacks.append(f'{phase.name} needs {needs}, {advice(report, phase)}')
  if lacks:
    found.insert(0, (
        f'The job does not fit {report.topology.name}, where a chip has '
        f'{chip.memory / chips.GIB:.2f}GiB and {check.FREE:.0%} should stay '
        f'free: {"; ".join(lacks)}.'))
  return found


def advice(report: check.Report, phase: check.Phase) -> str:
  """Names the parts that take most of a phase's memory, and the fix."""
  config, learner = report.config, report.config.learner
  field = 'tensor' if report.mesh is report.learner_mesh else 'learner_tensor'
  of_a_row = f'raise mesh.{field}, which splits the activations of a row'
  activations = _ACTIVATIONS[phase.name]
  if learner.tokens_per_microbatch <= config.max_prompt + config.max_response:
    if phase.name == 'score' or (
        phase.name == 'update' and learner.remat == 'full'):
      activations = of_a_row
    elif phase.name == 'update':
      activations = f'set learner.remat=full, or {of_a_row}'
  knobs = {
      **_KNOBS, 'activations': activations, 'buffers': activations}
  if phase.name == 'sample':
    knobs['buffers'] = 'raise mesh.data or mesh.fsdp'
  # Parts with the same advice count together.
  sums = collections.Counter()
  for part, size in phase.bytes.items():
    sums[knobs[part]] += size
  knob, _ = sums.most_common(1)[0]
  parts = sorted((p for p in phase.bytes if knobs[p] == knob),
                 key=phase.bytes.get, reverse=True)
  return f'most of it {" and ".join(parts)}, so {knob}'


def rates(report: check.Report, phase: check.Phase) -> dict[str, float]:
  """Computes the times and the utilisation of a phase in a step.

  Returns:
    'seconds' in total, and 'compute', 'HBM' and 'interconnect' seconds; 'TFLOP'
    and 'GB' per chip; and 'model-flops use', model FLOPs as a share of what the
    chips can do in this time.
  """
  cost, runs, chip = phase.cost, phase.runs, report.topology.chip
  peak = chip.flops * report.mesh.size
  seconds = cost.seconds * runs
  return {
      'seconds': seconds, 'compute': cost.compute * runs,
      'HBM': cost.memory * runs, 'interconnect': cost.interconnect * runs,
      'TFLOP': cost.flops * runs / 1e12, 'GB': cost.bytes * runs / 1e9,
      'model-flops use':
          phase.model_flops / (seconds * peak) if seconds else 0.0}


def collectives_of(phase: check.Phase) -> list[dict[str, Any]]:
  """Returns the collectives of a phase, summed by kind, axes and place."""
  sums = collections.defaultdict(lambda: [0.0, 0.0, 0.0, 0])
  for c in phase.cost.collectives:
    scopes = c.scope.split('/')
    place = next((place for scope, place in _PLACES if scope in scopes), '')
    entry = sums[c.kind, ', '.join(c.axes), place]
    entry[0] += c.times * phase.runs
    entry[1] += c.times * c.bytes * phase.runs
    entry[2] += c.seconds * phase.runs
    entry[3] = max(entry[3], c.bytes)
  return [
      dict(kind=kind, axes=axes, place=place, times=times, bytes=total,
           seconds=seconds, largest=largest)
      for (kind, axes, place), (times, total, seconds, largest) in sorted(
          sums.items(), key=lambda item: -item[1][2])]


def to_json(report: check.Report) -> dict[str, Any]:
  """Returns all results in types that JSON has."""
  phases = {}
  for phase in report.phases:
    phases[phase.name] = dict(
        compile_seconds=phase.compile_seconds, bytes=phase.bytes,
        total_bytes=None if phase.needs else phase.total, needs=phase.needs,
        runs=phase.runs, model_flops=phase.model_flops, faults=phase.faults)
    if phase.cost is not None:
      phases[phase.name] |= dict(
          estimate=rates(report, phase), bound=phase.cost.bound,
          collectives=collectives_of(phase),
          loops_not_counted=phase.cost.unknown)
  return dict(
      topology=report.topology.name, mesh=dict(report.mesh.shape),
      learner_mesh=dict(report.learner_mesh.shape),
      slots=report.slots,
      tokens_per_microbatch=report.config.learner.tokens_per_microbatch,
      requests_per_shard=report.requests_per_shard,
      peak_bytes=report.peak, free=_free(report),
      seconds_per_step=report.seconds, seconds_per_step_if=report.seconds_if,
      tokens_per_second_per_chip=tokens_rate(report), phases=phases,
      verdict=verdict(report))


def at_lengths(report: check.Report) -> dict[str, float]:
  """Returns what a step takes with the lengths that `check.run` was given.

  Returns:
    'seconds' and 'seconds, measured', None for emulated devices; 'waves', steps
    until as many groups have left as one begins; 'decode_steps' of these waves;
    and 'tokens_again', existing tokens whose keys and values they compute.
  """
  use = report.cases['lengths'].use
  seconds = report.seconds_if or {}
  return {
      **{f'seconds{more}': seconds.get(f'lengths{more}')
         for more in ('', ', measured')},
      'waves': use.waves, 'decode_steps': use.waves * use.steps,
      'tokens_again': use.waves * use.again}


def compared(waiting: check.Report, carried: check.Report) -> str:
  """Says what a step takes without and with `sampling.carry_over`."""
  without, with_ = at_lengths(waiting), at_lengths(carried)
  say = lambda found: (
      f'{found["decode_steps"]:,.0f} decode steps' + (
          f', {found["seconds"]:.2f} s, or {found["seconds, measured"]:.2f} s '
          'with decoding as on a GPU' if found['seconds'] else ''))
  return (
      f'If responses are as long as {carried.cases["lengths"].lengths.name} '
      f'says, a step takes '
      f'{say(without)}. With sampling.carry_over and wave_steps='
      f'{carried.wave_steps or "enough for all responses"}, as '
      f'many groups take {say(with_)}, in {with_["waves"]:.1f} waves, which '
      f'compute {with_["tokens_again"]:,.0f} existing tokens again.')


def tokens_rate(report: check.Report) -> float | None:
  """Returns response tokens per second and chip, over a whole step."""
  if not report.seconds:
    return None
  return report.tokens / report.seconds / report.mesh.size


def _free(report: check.Report) -> float | None:
  """Returns the share of the HBM that stays free in the fullest phase."""
  if report.peak is None or report.topology.chip is None:
    return None
  return 1 - report.peak / report.topology.chip.memory


def text(report: check.Report) -> str:
  """Returns the tables as text."""
  out = io.StringIO()
  show = console.Console(file=out, width=130, highlight=False).print
  axes = ', '.join(f'{a}={n}' for a, n in report.mesh.shape.items())
  if report.learner_mesh is not report.mesh:
    axes += f' (learner {_sizes(report.learner_mesh)})'
  show(f'{report.topology.name}: {report.mesh.size} devices, {axes}; '
       f'{report.slots} slots for {report.requests_per_shard} requests on each '
       'data shard, learner.tokens_per_microbatch='
       f'{report.config.learner.tokens_per_microbatch}',
       soft_wrap=True)
  show(_memory(report))
  if any(phase.cost for phase in report.phases):
    show(_time(report))
    show(_collectives(report))
  if report.seconds:
    seconds = report.seconds_if
    longest = max(report.phases, key=lambda p: p.cost.seconds * p.runs)
    show(f'Estimate: {report.seconds:.2f} s per step, '
         f'{tokens_rate(report):,.0f} response tokens/s per chip if every '
         'response has the maximum length; without verification and host work. '
         f'{seconds["quarter"]:.2f} s if their mean is a quarter of it. '
         f'{seconds["measured"]:.2f} and {seconds["quarter, measured"]:.2f} s '
         'if decoding reaches the share of the bandwidth that it did on a GPU. '
         f'{longest.name} takes most of the time, bound by '
         f'{_bound(longest.cost)}.', soft_wrap=True)
  for scope in sorted({s for p in report.phases if p.cost
                       for s in p.cost.unknown}):
    show(f'Loop {scope} is counted once: its number of iterations is unknown.',
         soft_wrap=True)
  return out.getvalue()


def _sizes(mesh) -> str:
  return ', '.join(map(str, mesh.shape.values()))


def _bound(cost) -> str:
  return {'compute': 'arithmetic'}.get(cost.bound, cost.bound)


def _size(n: int) -> str:
  """Returns GiB, or MiB where that would be 0.00 GiB."""
  small = 0 < n < 0.005 * chips.GIB
  return f'{n / 2**20:.2f} MiB' if small else f'{n / chips.GIB:.2f}'


def _memory(report):
  out = table.Table(title='GiB per device', title_justify='left')
  out.add_column('')
  names = [p.name for p in report.phases]
  for name in names:
    out.add_column(name, justify='right')
  parts = dict.fromkeys(part for p in report.phases for part in p.bytes)
  for part in parts:
    out.add_row(part, *(
        _size(p.bytes[part]) if part in p.bytes else '' for p in report.phases))
  out.add_section()
  out.add_row('total', *(
      p.needs or _size(p.total) for p in report.phases))
  chip = report.topology.chip
  if chip is not None:
    out.add_row('free', *(
        'none' if p.needs else f'{1 - p.total / chip.memory:.0%}'
        for p in report.phases))
  out.add_row('seconds to compile', *(
      f'{p.compile_seconds:.0f}' for p in report.phases))
  return out


def _time(report):
  out = table.Table(
      title='Estimate of a step (roofline, not measured)',
      title_justify='left')
  columns = ('phase', 'runs', 'seconds', 'compute', 'HBM', 'interconnect',
             'bound by', 'TFLOP', 'GB', 'model-flops use')
  for name in columns:
    out.add_column(name, justify='left' if name in ('phase', 'bound by')
                   else 'right')
  for phase in report.phases:
    if phase.cost is None:
      out.add_row(phase.name, f'{phase.runs:g}')
      continue
    r = rates(report, phase)
    out.add_row(
        phase.name, f'{phase.runs:.3g}', *(
            f'{r[k]:.3f}' for k in ('seconds', 'compute', 'HBM',
                                    'interconnect')),
        _bound(phase.cost), f'{r["TFLOP"]:.1f}', f'{r["GB"]:.0f}',
        f'{r["model-flops use"]:.0%}' if phase.model_flops else '')
  return out


def _collectives(report):
  out = table.Table(title='Collectives of a step', title_justify='left')
  for name in ('phase', 'kind', 'axes', 'inside'):
    out.add_column(name)
  for name in ('times', 'largest MB', 'GB per chip', 'seconds'):
    out.add_column(name, justify='right')
  for phase in report.phases:
    for row in collectives_of(phase) if phase.cost else ():
      out.add_row(
          phase.name, row['kind'], row['axes'], row['place'],
          f'{row["times"]:,.0f}', f'{row["largest"] / 1e6:.3f}',
          f'{row["bytes"] / 1e9:.2f}', f'{row["seconds"]:.3f}')
  return out
