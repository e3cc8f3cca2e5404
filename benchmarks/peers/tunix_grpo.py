"""Timed GRPO steps of google-tunix on a CPU; see `job.py`.

The settings are Tunix's defaults with its own sampler ('vanilla'), except for
sizes and no KL. So the loss is a mean over the tokens of each response, with
one update per rollout on the whole batch at once. The sampler cuts off stop
tokens, so they are not trained on, and uses the same noise at every step;
neither changes the time of a step.
"""

import importlib.metadata
import sys
import time

from flax import nnx
import jax
from jax.sharding import Mesh
import numpy as np
import optax
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

from benchmarks.peers import job as job_lib


class CharTokenizer:
  """Tokeniser with one token per character and the ids of `job.py`."""
  bos_id = staticmethod(lambda: None)
  eos_id = staticmethod(lambda: job_lib.STOP)
  pad_id = staticmethod(lambda: job_lib.PAD)

  def encode(self, text):
    return [2 + job_lib.ALPHABET.index(c) for c in text]

  def decode(self, ids):
    return ''.join((job_lib.ALPHABET + '?')[max(i - 2, -1)] for i in ids)


def make_cluster(job: job_lib.Job, mesh: Mesh) -> rl_cluster.RLCluster:
  """Makes the model with random weights, its trainer and its sampler."""
  with mesh:
    model = qwen3.Qwen3(
        qwen3.ModelConfig(
            num_layers=job.layers, vocab_size=job.vocab_size,
            embed_dim=job.width, hidden_dim=job.mlp_width,
            num_heads=job.heads, head_dim=job.head_dim,
            num_kv_heads=job.kv_heads, rope_theta=10_000, norm_eps=1e-6,
            use_tied_embedding=True),
        rngs=nnx.Rngs(0))
  roles = rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, (
      rl_cluster.Role.ROLLOUT)
  length = job.max_prompt + job.max_response
  return rl_cluster.RLCluster(
      actor=model, reference=None, tokenizer=CharTokenizer(),
      cluster_config=rl_cluster.ClusterConfig(
          role_to_mesh=dict.fromkeys(roles, mesh), rollout_engine='vanilla',
          offload_to_cpu=False,
          training_config=rl_cluster.RLTrainingConfig(
              actor_optimizer=optax.adamw(job.learning_rate),
              eval_every_n_steps=10 ** 6, max_steps=10 ** 6),
          rollout_config=base_rollout.RolloutConfig(
              max_tokens_to_generate=job.max_response,
              max_prompt_length=job.max_prompt, kv_cache_size=length,
              temperature=1.0, top_p=1.0, top_k=None,
              eos_tokens=[job_lib.STOP, job_lib.OTHER_STOP],
              return_logprobs=True)))


def main() -> None:
  """Does steps until no more are requested."""
  job = job_lib.from_argument(sys.argv[1])
  turns = job_lib.Turns()
  mesh = Mesh(np.array(jax.devices()).reshape(-1, 1), ('fsdp', 'tp'))
  cluster = make_cluster(job, mesh)
  learner = grpo_learner.GRPOLearner(
      rl_cluster=cluster,
      algo_config=grpo_learner.GRPOConfig(
          num_generations=job.samples, num_iterations=1, beta=0.0),
      reward_fns=lambda prompts, completions, **kwargs: [
          job_lib.reward(text) for text in completions])
  row = {'version': importlib.metadata.version('google-tunix')}
  generate, update = cluster.generate, cluster.update_actor

  def timed_generate(*args, **kwargs):
    start = time.perf_counter()
    out = generate(*args, **kwargs)
    lengths = np.array([len(tokens) for tokens in out.tokens])
    row.update(
        sample=time.perf_counter() - start, trained=int(lengths.sum()),
        # A response shorter than the limit had its stop token cut off.
        sampled=int((lengths + (lengths < job.max_response)).sum()))
    return out

  def timed_update(*args, **kwargs):
    start = time.perf_counter()
    update(*args, **kwargs)
    jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
    row.update(update=time.perf_counter() - start)

  cluster.generate, cluster.update_actor = timed_generate, timed_update

  def batches():
    """Yields the prompts of each step.

    The training loop does a step between two requests for a batch.
    """
    step = 0
    while turns.wait():
      chosen = [job_lib.PROMPTS[(step * job.prompts + i) % 1000]
                for i in range(job.prompts)]
      yield {'prompts': np.array(chosen)}
      turns.answer(**row)
      step += 1

  with mesh:
    learner.train(batches())


if __name__ == '__main__':
  main()
