"""Descriptions of a run: for checkpoints, other processes and people."""

from typing import Any, Mapping

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm import sharding
from jaxrl_llm.base import plain
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.loop import carry, scores
from jaxrl_llm.loop import rows as rows_lib
from jaxrl_llm.loop.parts import Parts
from jaxrl_llm.prepare import build, methods
from jaxrl_llm.prepare import stages as stages_lib
from jaxrl_llm.storage import paths


def described(parts: Parts) -> dict[str, Any]:
  """Returns the config as a checkpoint keeps it, with `contents`."""
  return {**parts.config.to_dict(), 'contents': parts.contents}


def compared(parts: Parts) -> dict[str, Any]:
  """Returns the values that all processes of a run must share, by name."""
  return {
      **config_lib.flatten(described(parts)),
      'the held-out problems': build.digest(parts.task.heldout),
      'the training problems': build.digest(parts.task.train)}


def write(parts: Parts, folder: paths.Path) -> None:
  """Writes the files of a folder that a run needs beside its checkpoints."""
  user_config = parts.user_config.copy_and_resolve_references()
  user_config.workdir = str(folder)
  paths.write_whole(folder / 'choices.json', config_lib.choices(parts.config))
  paths.write_whole(folder / 'config.json', config_lib.to_json(user_config))


def of_player(parts: Parts, name: str) -> Parts:
  """Returns the parts in which a player is the policy."""
  if name == POLICY:
    return parts
  contents = {**parts.contents, 'model': parts.contents.get(name)}
  return parts._replace(
      programs=parts.programs._replace(
          config=config_lib.of_player(parts.config, name),
          players={POLICY: parts.programs.players[name]}),
      contents={k: v for k, v in contents.items() if v is not None},
      user_config=config_lib.of_player(parts.user_config, name))


def param_shardings(parts: Parts) -> Any:
  """Returns the layout of the whole model's parameters in training."""
  return sharding.shardings(
      parts.programs.policy.shapes, sharding.TRAIN_RULES,
      parts.programs.learner_mesh)


def large_programs(parts: Parts, training: bool = True) -> list[str]:
  """Returns the functions that take long to compile, in their order.

  Args:
    training: whether for a run; else for an evaluation. Either may have some
      of their results on disk.
  """
  config, programs = parts.config, parts.programs
  start = ['initial_params'] * (not config.model.hf)
  if config_lib.has_sft(config):
    start += ['score'] * bool(
        config.sft.heldout or config.sft.heldout_count) + ['update']
  if not training:
    return [*start, 'sharded_generate']
  samplers = {id(programs.sampler), id(programs.rollout_sampler.sampler)}
  return [
      *start * len(programs.players), *['sharded_generate'] * len(samplers),
      *['scores'] * bool(programs.reward),
      'wave_signal', 'batch_advantages', *['score'] * bool(
          scores.scoring(parts.stages.needs.columns, {}, {})), 'update']


def carry_conflicts(saved: Mapping[str, Any], parts: Parts) -> list[str]:
  """Compares whether responses are carried over.

  Numbers of the sampler, which are free else, may decide that.

  Returns:
    Lines of `config.difference` if a run and its checkpoint differ.
  """
  lines = config_lib.difference(saved, described(parts), [
      'sampling.slots', 'sampling.steps_per_refill'])
  if not lines:
    return []
  config = parts.config.copy_and_resolve_references()
  names = [name.removeprefix('sampling.') for name in lines]
  config.sampling.update({
      name: saved['sampling'].get(name, config.sampling[name])
      for name in names})
  ours, theirs = (
      stages.settings.carry is None
      for stages in (parts.stages, stages_lib.make_stages(config)))
  return [*lines.values()] if ours != theirs else []


def buffer(parts: Parts) -> str:
  """Describes the memory of rows held between steps; '' if there are none."""
  stages = parts.stages
  each = sum(x.nbytes for x in jax.tree.leaves(rows_lib.empty(1, stages)))
  said = lambda name, rows, each: (
      f'{name}: {rows:,} rollouts of {each:,} bytes each, '
      f'{rows * each / 1e6:,.1f} MB on the host.')
  most = stages.curriculum.max_requests
  rows = rows_lib.capacity(stages) + stages.settings.lag * most
  lines = [said('Rollout buffer', rows, each)] if rows else []
  if stages.settings.carry:
    lines.append(said(
        'Responses that are carried over', most, carry.row_bytes(parts)))
  return '\n'.join(lines)


def ends(parts: Parts) -> str:
  """Returns a line about the tokens and texts that end a response."""
  tokenizer = parts.task.tokenizer
  # A stop token is decoded where it is not the last one.
  said = [f'{plain.shown(tokenizer.decode([i, i]))} (token {i})'
          for i in tokenizer.stop_ids]
  said += [f'the text {plain.shown(text)}'
           for text in getattr(tokenizer, 'stop_texts', ())]
  return f'A response ends with {", ".join(said)}.\n'


def updates(parts: Parts) -> str:
  """Returns a line that says how an update is computed, and its memory."""
  learner = parts.config.learner
  sizes = {plan.sizes.columns for plan in parts.programs.learner.plans(
      methods.minibatch_rows(parts.config))}
  needs = f' and needs {parts.needs / 1e9:.1f} GB' if parts.needs else ''
  field = learner.skip_zero and methods.gradient_at_zero(parts.config)
  kept = (f'learner.skip_zero is off: rows without an advantage matter to '
          f'{field}.\n') if field else ''
  return kept + (
      f'An update takes lists of {" or ".join(map(str, sorted(sizes)))} '
      f'tokens with learner.remat={learner.remat}{needs} on each device.\n')


def layout(parts: Parts) -> str:
  """Returns the layouts of training and sampling weights as tables."""
  text = ''
  for name, player in parts.programs.players.items():
    of = '' if name == POLICY else f' of the {name}'
    text += f'Training{of}:\n' + sharding.table(
        player.policy.trained, sharding.TRAIN_RULES,
        parts.programs.learner_mesh)
    if name == parts.programs.rollout_sampler.player:
      text += f'Sampling{of}:\n' + sharding.table(
          parts.programs.rollout_sampler.weights.result,
          sharding.SAMPLE_RULES, parts.programs.mesh)
  return text
