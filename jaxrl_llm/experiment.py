"""From a config to the parts of a run: task, mesh, model, learner, sampler.

`build` is the only place that reads most of the config; `train.py` and
`evaluate.py` both start from what it returns.
"""

import copy
import functools
import hashlib
import pathlib
from typing import Any, Callable, NamedTuple, Sequence

from absl import logging
import jax
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import credit as credit_lib
from jaxrl_llm import learner as learner_lib
from jaxrl_llm import loss as loss_lib
from jaxrl_llm import optimizer as optimizer_lib
from jaxrl_llm import policy as policy_lib
from jaxrl_llm import sharding, tasks
from jaxrl_llm.models import hf
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling import plan as plan_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.tokenizer import ModelTokenizer
from jaxrl_llm.types import LearnerBatch, Prompts, Requests, Rollouts


class Parts(NamedTuple):
  """What a run is made of.

  Attributes:
    config: the run's config.
    task: problems and their verifier.
    kinds: of training problem, each with its problems' indices.
    mesh: (data, fsdp, tensor).
    model: the policy's architecture.
    learner: `score` and `update` of the RL phase.
    policy: what to do with its parameters.
    sample: serves requests; see `make_sample`.
    sampling: keyword overrides to SamplingParams on the device.
    credit: see `credit.make`.
    step_key: step [] uint32 on the device to the key of its noise.
    contents: of what the config names, the problems and the model: digests.
  """
  config: ConfigDict
  task: tasks.Task
  kinds: dict[str, np.ndarray]
  mesh: jax.sharding.Mesh
  model: ModelConfig
  learner: learner_lib.Learner
  policy: policy_lib.Policy
  sample: Callable[..., tuple[Rollouts, dict[str, int]]]
  sampling: Callable[..., SamplingParams]
  credit: Callable[..., credit_lib.Credit]
  step_key: Callable[[jax.Array], jax.Array]
  contents: dict[str, str]

  def described(self) -> dict[str, Any]:
    """The config as a checkpoint keeps it, with the contents of its files."""
    return {**self.config.to_dict(), 'contents': self.contents}

  def close(self) -> None:
    """Ends what the task has running beside this process."""
    getattr(self.task, 'close', lambda: None)()

  def put_rows(self, batch: LearnerBatch) -> LearnerBatch:
    """A batch of NumPy arrays, its rows split over the data shards."""
    return jax.device_put(batch, sharding.rows(self.mesh))

  def put(self, tree: Any) -> Any:
    """A tree of host values, whole on every device."""
    return jax.device_put(tree, sharding.replicated(self.mesh))

  def param_shardings(self) -> Any:
    """Layout of the whole model's parameters in training."""
    return sharding.shardings(
        self.policy.shapes, sharding.TRAIN_RULES, self.mesh)

  def layout(self) -> str:
    """Layouts of what is trained and of what samples, as printable tables."""
    return 'Training:\n{}Sampling:\n{}'.format(
        sharding.table(self.policy.trained, sharding.TRAIN_RULES, self.mesh),
        sharding.table(
            jax.eval_shape(
                self.policy.compose, self.policy.trained, self.policy.shapes),
            sharding.SAMPLE_RULES, self.mesh, self.model.dtype))


def make_sample(
    config: ConfigDict, mesh: jax.sharding.Mesh, model: ModelConfig,
    stop_ids: tuple[int, ...]) -> Callable[..., tuple[Rollouts, dict]]:
  """The sampler at the sizes of one training step.

  Returns:
    sample(params, prompts, requests, key, sampling, policy_step): at most
    `prompts_per_step` prompts and `prompts_per_step * samples_per_prompt`
    requests, all NumPy but `params`, `key` and `sampling`; gives Rollouts of
    NumPy arrays in the order of the requests, and counts: decode 'steps', and
    'busy' and 'slots', each summed over the steps and shards. One program
    serves every mix of requests.
  """
  shards = sharding.data_shards(mesh)
  rows = config.prompts_per_step * config.samples_per_prompt
  per_shard = -(-rows // shards)
  # A contiguous run of requests may begin and end inside a group.
  prompts_per_shard = min(
      config.prompts_per_step, per_shard,
      (per_shard - 2) // config.samples_per_prompt + 2)
  if shards == 1:
    prompts_per_shard = config.prompts_per_step
  slots = min(config.sampling.slots, per_shard)
  rounds = min(
      config.sampling.prompts_per_round or prompts_per_shard,
      prompts_per_shard)
  sampler = generate_lib.SamplerConfig(
      slots=slots, max_response=config.max_response, stop_ids=stop_ids,
      steps_per_refill=config.sampling.steps_per_refill,
      chunk=config.sampling.chunk, unroll=config.sampling.unroll,
      prompts_per_round=rounds)
  generate = jax.jit(functools.partial(
      generate_lib.sharded_generate, mesh, cfg=model, sampler=sampler))
  split, whole = sharding.rows(mesh), sharding.replicated(mesh)

  def sample(params, prompts: Prompts, requests: Requests, key, sampling,
             policy_step: int):
    plan = plan_lib.plan(
        prompts, requests, shards=shards, requests_per_shard=per_shard,
        prompts_per_shard=prompts_per_shard)
    rollouts, stats = generate(
        params, *jax.device_put(
            (plan.prompts, plan.requests, plan.count), split),
        key, sampling, jax.device_put(np.int32(policy_step), whole))
    rollouts, stats = jax.device_get((rollouts, stats))
    counts = dict(
        steps=int(stats.steps.max()), busy=int(stats.busy.sum()),
        slots=int(stats.steps.sum()) * slots)
    return plan_lib.undo(rollouts, plan), counts

  sample.cache_size = generate._cache_size
  return sample


def by_kind(problems: Sequence[tasks.Problem]) -> dict[str, np.ndarray]:
  """Indices of the problems of each kind, in the order of their names."""
  names, index = np.unique([p.kind for p in problems], return_inverse=True)
  return {
      str(name): np.flatnonzero(index == i) for i, name in enumerate(names)}


def learner_config(
    config: ConfigDict, **changes: Any) -> learner_lib.LearnerConfig:
  """The learner's static choices, with `changes` made to them."""
  loss, learner = config.loss, config.learner
  return learner_lib.LearnerConfig(**{**dict(
      microbatch=learner.microbatch, max_prompt=config.max_prompt,
      max_response=config.max_response, buckets=tuple(learner.buckets),
      objective=loss.objective, aggregation=loss.aggregation,
      importance=loss.importance, kl_estimator=loss.kl_estimator,
      vocab_chunk=learner.vocab_chunk, remat=learner.remat,
      attention=learner.attention, unroll=learner.unroll), **changes})


def loss_params(config: ConfigDict) -> loss_lib.LossParams:
  """The loss's numbers, as NumPy scalars."""
  loss = config.loss
  number = lambda x: None if x is None else np.float32(x)
  return loss_lib.LossParams(
      temperature=number(config.sampling.temperature),
      clip_low=number(loss.clip_low), clip_high=number(loss.clip_high),
      entropy_bonus=number(loss.entropy_bonus), kl_coef=number(loss.kl_coef),
      importance_low=number(loss.importance_low),
      importance_cap=number(loss.importance_cap),
      budget=number(config.max_response), dual_clip=number(loss.dual_clip))


def fitting(
    problems: Sequence[tasks.Problem], tokenizer: Any, config: ConfigDict,
    name: str) -> Sequence[tasks.Problem]:
  """The problems whose prompts have at most `max_prompt` tokens.

  A warning counts the others: a prompt is never cut.

  Args:
    problems: any number.
    tokenizer: see `tokenizer.py`.
    config: of the run.
    name: of the set, for the warning.

  Returns:
    The problems that fit, in their order.

  Raises:
    ValueError: there are no problems, none that fits, or one without a token.
  """
  if not len(problems):
    raise ValueError(
        f'The task {config.task.name} has no problems in its set {name!r}, and '
        'some are needed: the fields of config.task say where they come from, '
        '--help lists them.')
  lengths = [len(tokenizer.encode(p.prompt)) for p in problems]
  if not min(lengths):
    raise ValueError(
        f'The tokeniser makes no token of the prompt '
        f'{problems[lengths.index(0)].prompt[:60]!r} of the set {name!r}.')
  kept = [p for p, n in zip(problems, lengths) if n <= config.max_prompt]
  if not kept:
    raise ValueError(
        f'No prompt of the set {name!r} has at most max_prompt='
        f'{config.max_prompt} tokens, the shortest has {min(lengths)}: raise '
        'config.max_prompt.')
  if len(kept) < len(problems):
    logging.warning(
        'Left out of the set %r: %d of %d problems, whose prompts have more '
        'than max_prompt=%d tokens (the longest %d).', name,
        len(problems) - len(kept), len(problems), config.max_prompt,
        max(lengths))
  return kept


def _task(
    config: ConfigDict, model: ModelConfig, tokenizer: Any,
    training: bool) -> tasks.Task:
  """The task; in training, less what does not fit."""
  task = copy.copy(tasks.get(
      config.task.name, tokenizer, **config_lib.task_options(config)))
  tokenizer = task.tokenizer
  needed = max(tokenizer.vocab_size, *(i + 1 for i in tokenizer.stop_ids))
  if model.vocab_size < needed:
    raise ValueError(
        f'model.vocab_size={model.vocab_size} is less than the {needed} tokens '
        'of the tokeniser: raise it, or take the tokeniser of the model.')
  for name in ('train', 'heldout') if training else ():
    setattr(task, name, fitting(
        getattr(task, name), tokenizer, config, name))
  return task


def _contents(
    task: tasks.Task, folder: pathlib.Path | None) -> dict[str, str]:
  """See `Parts.contents`."""
  problems = hashlib.sha256(
      repr([(p.id, p.prompt, p.info) for p in task.train]).encode(
          'utf8', 'replace'))
  model = {'model': hf.digest(folder)} if folder else {}
  return {'problems': problems.hexdigest()[:16], **model}


def build(config: ConfigDict, training: bool = True) -> Parts:
  """Makes the parts of a run. Nothing is compiled yet.

  Args:
    config: checked by `config.validate`.
    training: False leaves the task's sets of problems as they are: they may
      be empty, or have prompts that are too long.

  Returns:
    The parts.

  Raises:
    ValueError: values that do not go together, in one sentence.
  """
  model = config_lib.model_config(config)
  folder = checkpoint = tokenizer = None
  if config.model.hf:
    folder = hf.fetch(config.model.hf)
    checkpoint, tokenizer = hf.open_checkpoint(folder), ModelTokenizer(folder)
  task = _task(config, model, tokenizer, training)
  if config.learner.attention == 'cudnn' and jax.default_backend() != 'gpu':
    raise ValueError(
        'learner.attention=cudnn needs an NVIDIA GPU, but this is a '
        f'{jax.default_backend()}: use learner.attention=xla.')
  if config.mesh.cpu_devices is not None:
    sharding.split_cpu(config.mesh.cpu_devices)
  mesh = sharding.make_mesh(*(config.mesh[axis] for axis in sharding.AXES))
  if model.kv_heads % mesh.shape['tensor']:
    # Rotary embeddings of half a head would move it to and fro, in a loop
    # whose length differs between data shards: they would wait for ever.
    raise ValueError(
        f'mesh.tensor={mesh.shape["tensor"]} does not divide model.kv_heads='
        f'{model.kv_heads}: no head can be split, use a divisor of it.')
  policy = policy_lib.make(config, model, mesh, checkpoint)
  updates = config.steps * config.learner.epochs * config.learner.updates
  optimizer = optimizer_lib.make(
      steps=max(updates, 1), **config.optimizer)
  learner = learner_lib.make(
      model, learner_config(config), optimizer, mesh=mesh,
      trained=policy.trained, compose=policy.compose)
  whole = sharding.replicated(mesh)

  def sampling(**changes):
    values = {
        name: config.sampling[name]
        for name in ('temperature', 'top_k', 'top_p', 'min_p')}
    return jax.device_put(SamplingParams(**{**values, **changes}), whole)

  base_key = jax.device_put(jax.random.key(config.seed), whole)
  fold_in = jax.jit(jax.random.fold_in)
  return Parts(
      config=config, task=task, kinds=by_kind(task.train),
      mesh=mesh, model=model, learner=learner, policy=policy,
      sample=make_sample(config, mesh, model, task.tokenizer.stop_ids),
      sampling=sampling,
      credit=credit_lib.make(config),
      step_key=lambda step: fold_in(base_key, step),
      contents=_contents(task, folder))
