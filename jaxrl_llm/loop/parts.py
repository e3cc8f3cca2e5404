"""Parts of a run, made once from its config: values that its steps read."""

from typing import Any, Callable, NamedTuple

import jax
import numpy as np

from jaxrl_llm import sharding, tasks
from jaxrl_llm.learner import advantages as advantages_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.loop import rollout
from jaxrl_llm.loop.rollout import SamplerProgram
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sharding import processes as processes_lib
from jaxrl_llm.sharding.processes import Processes
from jaxrl_llm.types import LearnerBatch, Rollouts, Stages


class Player(NamedTuple):
  """A model that samples or learns.

  Attributes:
    model: its architecture.
    policy: functions of its parameters.
  """
  model: ModelConfig
  policy: policy_lib.Policy


class RolloutSampler(NamedTuple):
  """Sampling of the responses that are trained on.

  Attributes:
    player: name of the player that writes them.
    sampler: `generate` and its sizes.
    weights: `Policy.sampling` of its parameters, which may be quantised.
  """
  player: str
  sampler: SamplerProgram
  weights: sharding.Resharder


class Programs(NamedTuple):
  """Device programs, and the parts they are made of.

  Attributes:
    config: the config, with the lengths to compile; steps read `Settings`.
    mesh: (data, fsdp, tensor), of the sampler.
    learner_mesh: of scores, updates and their parameters: the same devices;
      `mesh.learner_tensor` is its size of tensor, the rest joins fsdp.
    learner: `score` and `update` of the RL phase, of all players.
    players: by name: 'policy', which is evaluated and exported; 'actor', if it
      is another model; 'teacher' and 'reward', which are not trained.
    model, policy: parts of the policy.
    sampler: `generate` and its sizes, for evaluations of the policy.
    rollout_sampler: sampling of the responses that are trained on. Its sampler
      is that of evaluations, if only the use differs.
    stages: curriculum and selection; their capacities give all sizes.
    needs: quantities beside the rollouts that the loss needs.
    reward: program of the reward model; None without one.
  """
  config: Any
  mesh: jax.sharding.Mesh
  learner_mesh: jax.sharding.Mesh
  learner: learner_lib.LearnerPrograms
  players: dict[str, Player]
  sampler: SamplerProgram
  rollout_sampler: RolloutSampler
  stages: Stages
  reward: learner_lib.RewardPrograms | None = None

  model = property(lambda self: self.players[POLICY].model)
  policy = property(lambda self: self.players[POLICY].policy)
  needs = property(lambda self: self.stages.needs)

  @property
  def scored_rows(self) -> int:
    """Rows of a call of `score`: those of a step, padded."""
    shards = sharding.data_shards(self.learner_mesh)
    return -(-self.stages.curriculum.max_requests // shards) * shards


class Parts(NamedTuple):
  """The parts of a run.

  Attributes:
    task: problems and their verifier.
    kinds: kind of training problem to the indices of its problems.
    programs: device programs; their config has the choices that the
      run makes itself.
    sample: (params, prompts, requests, key, sampling, policy_step) ->
      (rollouts, counts); serves the requests of a training step.
    sample_policy: serves those of an evaluation, with the policy's parameters.
    sampling: (**changes) -> SamplingParams of the config on the device, with
      changes made to them. The temperature is the last of a schedule.
    advantages: programs from rewards to advantages and to the signal.
    key: PRNG key of the run, on the devices of the sampler.
    step_key: step [] uint32 on the device -> key of its noise, for `sample`.
    contents: 'problems', 'model' and 'actor' to digests of what the config
      names.
    user_config: the config without the choices that the run makes itself.
    processes: who holds which rows, and their channel.
    unrewarded: counter of the steps without a reward.
    needs: bytes that an update needs on each device, by the compiler; None if
      the run did not ask it.
  """
  task: tasks.Task
  kinds: dict[str, np.ndarray]
  programs: Programs
  sample: Callable[..., tuple[Rollouts, dict[str, int]]]
  sample_policy: Callable[..., tuple[Rollouts, dict[str, int]]]
  sampling: Callable[..., SamplingParams]
  advantages: advantages_lib.Program
  key: jax.Array
  step_key: Callable[[jax.Array], jax.Array]
  contents: dict[str, str]
  user_config: Any
  processes: Processes
  unrewarded: rollout.Unrewarded
  needs: int | None = None

  @property
  def config(self) -> Any:
    """The run's config."""
    return self.programs.config

  @property
  def stages(self) -> Stages:
    """The curriculum and the selection."""
    return self.programs.stages

  def close(self) -> None:
    """Ends the task's processes beside this one."""
    getattr(self.task, 'close', lambda: None)()

  def shard_rows(self, batch: LearnerBatch) -> LearnerBatch:
    """Puts a whole batch of NumPy arrays on the devices, split over data
    shards.
    """
    rows = len(batch.tokens)
    mine = self.processes.positions(rows)
    return self.processes.shard_rows(
        jax.tree.map(lambda x: x[mine], batch), rows)

  def replicate(self, tree: Any) -> Any:
    """Puts a tree of host values on every device of the learner, whole."""
    return processes_lib.replicate(tree, self.programs.learner_mesh)


class Fixed(NamedTuple):
  """Device values that are the same in every step.

  Attributes:
    sampling: SamplingParams, but for the temperature of a schedule.
    loss: LossParams.
    anchors: column of each frozen player's log-probs to its parameters.
    frozen: name of each player to its parameters that are not trained, or
      None.
    teacher, reward: parameters of the teacher and of the reward model, or None.
  """
  sampling: Any
  loss: Any
  anchors: dict[str, Any]
  frozen: dict[str, Any]
  teacher: Any = None
  reward: Any = None
