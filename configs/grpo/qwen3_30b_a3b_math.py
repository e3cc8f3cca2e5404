"""GRPO on mathematics with Qwen3 30B-A3B Base, a mixture of experts.

  python -m jaxrl_llm.train --config=configs/grpo/qwen3_30b_a3b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

As configs/grpo/qwen3_1p7b_math.py, with 4 updates of 32 prompts per step, whose
rows divide over the mesh of 256 chips. A quarter of the weights for sampling
takes 14 GiB in bfloat16, and half of that in int8: responses are sampled with
int8 weights and an int8 cache, and their tokens weighted by the ratio of the
policies (`tis`).
--config.loss.replay_experts=True trains with the experts that the sampler
chose: 384 bytes more for each token of a rollout.
launch/FITS.md has the memory and the estimated time. Not run at this size yet.
"""

from jaxrl_llm.configs.grpo import qwen3_1p7b_math

TOPOLOGY = 'v5e:16x16'  # v5litepod-256
get_hyper = qwen3_1p7b_math.get_hyper


def get_config():
  """Returns the config."""
  c = qwen3_1p7b_math.get_config()
  c.model.hf = 'Qwen/Qwen3-30B-A3B-Base'
  # The vocabulary divides over 128 devices at most, and heads over 4.
  c.mesh.data = 2
  c.mesh.fsdp = 32
  c.mesh.tensor = 4
  c.mesh.learner_tensor = 1
  c.learner.updates = 4
  c.sampling.weights = c.sampling.kv = 'int8'
  c.loss.importance = 'tis'
  c.learner.remat = 'full'
  return c
