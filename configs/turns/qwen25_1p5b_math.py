"""GRPO on mathematics with turns: Qwen2.5 1.5B Instruct calls Python.

  python -m jaxrl_llm.train --config=configs/turns/qwen25_1p5b_math.py \
      --config.task.path=problems.jsonl --config.task.heldout=math500.jsonl

The model may run Python programs in the sandbox (docs/sandbox.md), seven times
at most, before its answer. A trajectory has 16,384 tokens at most, what the
programs print included; a turn has 4,096, an output 1,024. 64 problems with 8
trajectories each, 2 updates of 32 problems per step. The data files must have
the fields `problem` and `answer`. launch/FITS.md has the memory and the
estimated time on 128 chips of v5e. Not run at this size yet.
"""

from jaxrl_llm import config

TOPOLOGY = 'v5e:16x8'  # v5litepod-128


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 300
  c.prompts_per_step = 64
  c.samples_per_prompt = 8
  c.max_prompt = 1024
  c.max_response = 16384

  c.model.hf = 'Qwen/Qwen2.5-1.5B-Instruct'
  c.task.name = 'tools'
  c.task.tools = ('jaxrl_llm.environments.python_tool:python',)
  c.task.path = ('problems.jsonl',)
  c.task.heldout = ('math500.jsonl',)
  c.task.max_turns = 8
  c.task.max_turn = 4096
  c.task.max_observation = 1024

  c.advantage = 'grpo'
  c.drop_zero_advantage = True
  c.loss.clip_high = 0.28
  c.learner.updates = 2
  c.optimizer.learning_rate = 1e-6

  c.mesh.data = 4
  c.mesh.fsdp = 16
  c.mesh.tensor = 2
  c.mesh.learner_tensor = 1
  # Half of the rows on a data shard: tools run while the others decode.
  c.sampling.slots = 4
  c.sampling.chunk = 1024
  c.learner.tokens_per_microbatch = 17408  # one trajectory with its prompt
  c.learner.remat = 'full'
  c.eval.every = 20
  c.eval.samples = 4
  c.eval.k = (1, 4)
  c.checkpoint.every = 10
  return c


def get_hyper(hyper):
  """Returns a sweep: at most 4 turns, and 8, three seeds each."""
  return hyper.product([
      hyper.sweep('task.max_turns', [4, 8]), hyper.sweep('seed', [0, 1, 2])])
