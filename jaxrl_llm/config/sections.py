"""Sections of a config: the one declaration of each field.

A field is declared in one of three places:

  this file                     fields that only the host reads
  learner/options.py,           fields that device code takes; `loss.behaviour`,
  sampling/options.py           `optimizer.b2`, `sampling.top_p`
  the function of a plug        its hyperparameters; `loss.clip_high` is a
                                parameter of each objective, `task.path` a field
                                of each task's options

`SECTIONS` lists the dataclasses; `table` adds the plugs' hyperparameters and
the fields of models. `base.declared` explains the notes of a field.
"""

import dataclasses
import functools
from typing import Annotated, Any, Literal, NamedTuple

from jaxrl_llm.base.declared import (
    AUTO,
    EVALUATION,
    Field,
    of_class,
    ROUNDING,
    SFT,
    WEIGHTS,
)
from jaxrl_llm.base.own_code import Name, Path
from jaxrl_llm.learner import options
from jaxrl_llm.models.config import PRESETS
from jaxrl_llm.sampling.options import SamplingOptions

_COUNT, _SOME, _POSITIVE = '[0, inf)', '[1, inf)', '(0, inf)'
_FACTOR = '[-1e6, 1e6]'
_Preset = Literal[tuple(PRESETS)]  # type: ignore[valid-type]

# Values of `Field.affects`.
NOTHING: tuple[str, ...] = ()
EVERYTHING = (WEIGHTS, SFT, EVALUATION)
_LENGTH = (WEIGHTS, ROUNDING, EVALUATION)


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """The run: fields without a section.

  Attributes:
    seed: seed of parameters, data order and samples.
    workdir: folder of all that a run writes (none: runs/ and the config's
      name).
    steps: steps of sampling, verifying and updating.
    prompts_per_step: problems in a train batch; one may come twice where an
      epoch ends.
    curriculum: problems to sample, groups to train on.
    curriculum_prompts: new problems that a step samples (none:
      prompts_per_step).
    selection: rows to update on, once a batch is full.
    samples_per_prompt: responses to each problem: its group.
    max_prompt: tokens a prompt may have.
    max_response: tokens a response may have, stop token included; a longer one
      is truncated.
    off_policy: rollouts of another policy than the one in training: none (see
      loss.importance) or jackpot (rejects and weights their tokens).
    advantage: how rewards become advantages.
    drop_zero_advantage: leave rows whose advantage is 0 out of the update:
      faster, and no bonus or penalty acts on them.
    eval_k: k of the pass@k that every step reports of its own prompts; those
      above samples_per_prompt are left out.
    compilation_cache: folder that keeps compiled programs for the next start: a
      path, or auto (in the user's folder for caches); JAX's own option
      JAX_COMPILATION_CACHE_DIR comes first (none: off).
  """
  seed: Annotated[int, '[0, 4294967295]', EVERYTHING] = 0
  workdir: Annotated[Path | None, NOTHING] = None
  steps: Annotated[int, _COUNT] = 100
  prompts_per_step: Annotated[int, _SOME] = 32
  curriculum: Name = Name('uniform')
  curriculum_prompts: Annotated[int | None, _SOME] = None
  selection: Name = Name('all_rows')
  samples_per_prompt: Annotated[int, _SOME] = 8
  max_prompt: Annotated[int, _SOME, _LENGTH] = 64
  max_response: Annotated[int, _SOME, _LENGTH] = 64
  off_policy: Literal['none', 'jackpot'] = 'none'
  advantage: Name = Name('grpo')
  drop_zero_advantage: bool = False
  eval_k: Annotated[tuple[int, ...], _SOME, NOTHING] = (1, 2, 4, 8, 12, 16)
  compilation_cache: Annotated[Path | None, NOTHING] = Path(AUTO)


@dataclasses.dataclass(frozen=True)
class TaskOptions:
  """The task; its other fields are those of its own declaration.

  Attributes:
    name: problems and their verifier.
  """
  name: Name = Name('countdown')


@dataclasses.dataclass(frozen=True)
class ModelOptions:
  """Source of a model; its other fields are those of `ModelConfig`.

  Attributes:
    hf: Hugging Face model, a folder or a name on the hub, or a GGUF file: its
      weights, tokeniser and type, in place of the preset; other fields of
      model: none keeps its value, 0 switches off.
    preset: which model.
  """
  hf: Path | None = None
  preset: _Preset = 'tiny'


@dataclasses.dataclass(frozen=True)
class ActorModelOptions:
  """Source of another model that writes the responses.

  Attributes:
    hf: another model that writes the responses: a folder or a name on the hub,
      with the vocabulary of the policy.
    preset: the same by preset; it starts as the policy would (none, and no
      actor.model.hf: the policy is the actor).
  """
  hf: Path | None = None
  preset: _Preset | None = None


@dataclasses.dataclass(frozen=True)
class TeacherModelOptions:
  """Source of a teacher, which is not trained.

  Attributes:
    hf: a model that the policy is distilled from: a folder or a name on the
      hub, with the vocabulary of the policy.
    preset: the same by preset; it starts as the policy would (none, and no
      teacher.model.hf: there is no teacher, or see teacher.hint).
  """
  hf: Path | None = None
  preset: _Preset | None = None


@dataclasses.dataclass(frozen=True)
class RewardModelOptions:
  """Source of a reward model, which is not trained.

  Attributes:
    hf: a model that scores responses: a folder or a name on the hub, of a
      sequence classifier with one label and the vocabulary of the policy.
    preset: the same by preset, with random weights (none, and no
      reward.model.hf: the verifier alone makes the reward).
  """
  hf: Path | None = None
  preset: _Preset | None = None


@dataclasses.dataclass(frozen=True)
class RewardOptions:
  """Reward of a response, with a reward model.

  Attributes:
    coef: factor of the reward model's score in the reward.
    verifier: factor of the verifier's reward, which is added to it.
  """
  coef: Annotated[float, _FACTOR] = 1.0
  verifier: Annotated[float, _FACTOR] = 0.0


@dataclasses.dataclass(frozen=True)
class HintOptions:
  """Text that a teacher reads.

  Attributes:
    hint: FILE.py:NAME, a function from a Problem to the text that the teacher
      reads in place of its prompt, as with a hint; without teacher.model.hf or
      preset, the policy teaches itself.
  """
  hint: Name = Name('')


@dataclasses.dataclass(frozen=True)
class LagOptions:
  """Time between sampling and training.

  Attributes:
    lag: steps between the sampling of responses and their use, as if sampling
      and training ran side by side; those of the last ones are not used.
  """
  lag: Annotated[int, _COUNT] = 0


@dataclasses.dataclass(frozen=True)
class MeshOptions:
  """Devices.

  Attributes:
    data: shards of the responses (-1: all devices that are left).
    fsdp: shards of responses, parameters and vocabulary.
    tensor: shards of heads, MLP or experts, and vocabulary.
    learner_tensor: mesh.tensor of updates, a divisor of the sampler's: the rest
      of it joins mesh.fsdp there (none: the same mesh).
    cpu_devices: devices that a CPU counts as; one per core is fastest while
      matrices are small (none: 1, or what the environment says).
    keep_memory: whether the program keeps memory that it frees: faster with a
      large model on a CPU, slower with a small one (none: if JAX can only use a
      CPU, and a model has 20 million parameters or an hf).
  """
  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  learner_tensor: Annotated[int | None, _SOME] = None
  cpu_devices: Annotated[int | None, '[1, 4096]'] = None
  keep_memory: bool | None = None


@dataclasses.dataclass(frozen=True)
class SFTOptions:
  """Supervised fine-tuning.

  Attributes:
    path: rows of supervised fine-tuning, before RL or by jaxrl_llm.sft: files
      or data sets, as in task.path, and demonstrations for those of the task
      (none: demonstrations alone).
    weights: share of each of sft.path in the rows (none: each by its number of
      rows).
    heldout: rows for the held-out loss: files or data sets.
    heldout_count: rows of sft.path to hold out, in place of sft.heldout.
    steps: supervised steps (0: those of sft.epochs).
    epochs: passes over the rows, in place of sft.steps.
    batch: rows in a step.
    batch_tokens: tokens in a step at most, prompts included, in place of
      sft.batch.
    turns: turns of the assistant that are learned: all or last.
    max_length: tokens a row may have (none: max_prompt before the first one
      that is learned, and max_response from it on).
    too_long: rows with more tokens: drop, or cut behind the limit.
    learning_rate: peak learning rate (none: 2e-5 with model.hf, 2e-4 if LoRA
      alone is trained, else 3e-3).
    schedule: after the warm-up: constant, linear or cosine (both to 0).
    warmup_steps: steps of linear warm-up (none: a twentieth).
    weight_decay: decoupled decay, times the learning rate; not on norms and
      biases.
    lora: with lora.rank, train LoRA alone here too, not all weights (none: with
      model.hf).
    eval_every: steps between held-out losses, each with a checkpoint; the best
      is kept (0: only before and after).
    cache: folder that keeps the result for runs with the same SFT (none: off).
  """
  path: tuple[str, ...] = ()
  weights: Annotated[tuple[float, ...], _POSITIVE] = ()
  heldout: tuple[str, ...] = ()
  heldout_count: Annotated[int, _COUNT] = 0
  steps: Annotated[int, _COUNT] = 0
  epochs: Annotated[float | None, _POSITIVE] = None
  batch: Annotated[int, _SOME] = 64
  batch_tokens: Annotated[int | None, _SOME] = None
  turns: Literal['all', 'last'] = 'all'
  max_length: Annotated[int | None, '[2, inf)'] = None
  too_long: Literal['drop', 'cut'] = 'drop'
  learning_rate: Annotated[float | None, _COUNT] = None
  schedule: Literal['constant', 'linear', 'cosine'] = 'cosine'
  warmup_steps: Annotated[int | None, _COUNT] = None
  weight_decay: Annotated[float, _COUNT] = 0.1
  lora: bool | None = None
  eval_every: Annotated[int, _COUNT] = 0
  cache: Annotated[Path | None, NOTHING] = Path('runs/sft-cache')


@dataclasses.dataclass(frozen=True)
class EvalOptions:
  """Evaluations.

  Attributes:
    every: steps between evaluations (0: only before and after).
    problems: held-out problems (0: all).
    samples: responses to each, and a greedy one.
    slots: responses decoded at the same time in an evaluation, on each data
      shard, by a sampler of its own that takes many problems in a call (none:
      by that of training, which takes those of a step).
    k: k of the pass@k to report.
  """
  every: Annotated[int, _COUNT] = 50
  problems: Annotated[int, _COUNT] = 0
  samples: Annotated[int, _SOME] = 8
  slots: Annotated[int | None, _SOME] = None
  k: Annotated[tuple[int, ...], _SOME] = (1, 8)


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
  """Checkpoints.

  Attributes:
    every: steps between checkpoints (0: only before the first and at the end).
    keep: newest checkpoints kept, beside the best.
    grace: seconds that a run takes at most to save and end after SIGTERM or
      Ctrl-C.
    timeout: seconds that writing a checkpoint takes at most; then it is given
      up.
  """
  every: Annotated[int, _COUNT] = 50
  keep: Annotated[int, _SOME] = 2
  grace: Annotated[float, _POSITIVE] = 120.0
  timeout: Annotated[int, _SOME] = 600


@dataclasses.dataclass(frozen=True)
class ProcessesOptions:
  """Runs of several processes.

  Attributes:
    patience: seconds without an answer after which a process counts as stopped,
      which ends the run; at the start, the others may take four times as long
      to come.
  """
  patience: Annotated[float, '[2, inf)'] = 30.0


@dataclasses.dataclass(frozen=True)
class LogOptions:
  """Files, displays and services that a run reports to.

  Attributes:
    every: steps between rows of metrics.
    samples: groups written to samples.jsonl with each row: all responses to a
      problem; with each evaluation, the first one is shown as a table.
    report: write report.html at the end: curves, samples and flags as one page.
    tensorboard: write TensorBoard event files.
    wandb: Weights & Biases project to send metrics to (none: off).
    mlflow: MLflow experiment to send metrics to (none: off);
      MLFLOW_TRACKING_URI names the server.
    trackio: Trackio project to send metrics to (none: off); TRACKIO_SPACE_ID
      names a Space.
    display: show live progress, layouts and results; else only the folder, and
      a line after half a minute without one.
  """
  every: Annotated[int, _SOME] = 1
  samples: Annotated[int, _COUNT] = 1
  report: bool = True
  tensorboard: bool = True
  wandb: str | None = None
  mlflow: str | None = None
  trackio: str | None = None
  display: bool = True


class Section(NamedTuple):
  """A section, or a part of one.

  Attributes:
    name: its name in the config; '' for fields without one.
    declared: dataclass of its fields.
    affects: effects of another value, for fields without a note about it.
    choice: choice of the config that adds the section, such as
      'off_policy=jackpot'; '' for a section of every config.
  """
  name: str
  declared: type
  affects: tuple[str, ...] = (WEIGHTS,)
  choice: str = ''

  def fields(self) -> list[Field]:
    """Returns its fields."""
    return _fields(self)


@functools.cache
def _fields(section: Section) -> list[Field]:
  prefix = f'{section.name}.' if section.name else ''
  return [field._replace(name=f'{prefix}{field.name}') for field in of_class(
      section.declared, affects=section.affects)]


# Name of each player to the section of its model. Its other fields and its
# digest in a checkpoint have its name: `actor.learning_rate`, `contents.actor`.
MODELS = {options.POLICY: 'model', options.ACTOR: 'actor.model',
          options.TEACHER: 'teacher.model', options.REWARD: 'reward.model'}
# Name of each player but the policy to the fields of which one adds it.
SOURCES = {name: (f'{section}.hf', f'{section}.preset')
           for name, section in MODELS.items() if name != options.POLICY}
SECTIONS = (
    Section('', RunOptions),
    Section('task', TaskOptions, EVERYTHING),
    Section('model', ModelOptions, EVERYTHING),
    Section('lora', options.LoraOptions, (WEIGHTS, EVALUATION)),
    Section('sampling', SamplingOptions, (WEIGHTS, EVALUATION)),
    Section('loss', options.LossOptions),
    Section('overlong', options.OverlongOptions),
    Section('optimizer', options.OptimizerConfig),
    Section('learner', options.LearnerOptions),
    Section('actor', LagOptions),
    Section('actor.model', ActorModelOptions),
    Section('actor', options.ActorOptions,
            choice=' or '.join(SOURCES[options.ACTOR])),
    Section('teacher.model', TeacherModelOptions),
    Section('teacher', HintOptions),
    Section('teacher', options.TeacherOptions,
            choice=' or '.join([*SOURCES[options.TEACHER], 'teacher.hint'])),
    Section('reward.model', RewardModelOptions),
    Section('reward', RewardOptions,
            choice=' or '.join(SOURCES[options.REWARD])),
    Section('mesh', MeshOptions, NOTHING),
    Section('sft', SFTOptions, (WEIGHTS, SFT)),
    Section('eval', EvalOptions, NOTHING),
    Section('checkpoint', CheckpointOptions, NOTHING),
    Section('processes', ProcessesOptions, NOTHING),
    Section('log', LogOptions, NOTHING),
    Section('jackpot', options.JackpotOptions, choice='off_policy=jackpot'),
)


def as_section(cls: type, *sections: Any, **more: Any) -> Any:
  """Fills a dataclass with the fields of the same names in a config.

  Args:
    cls: the dataclass: a part of a section, or a class that inherits from one.
    *sections: sections of the config.
    **more: fields that no section has, and values to use in place of the
      config's.
  """
  names = [one.name for one in dataclasses.fields(cls) if one.name not in more]
  return cls(**more, **{
      name: section[name] for section in sections for name in names
      if name in section})
