"""A start for a model and problems of your own.

  python -m jaxrl_llm.train --config=configs/own.py \
      --config.model.hf=HuggingFaceTB/SmolLM2-135M-Instruct \
      --config.task.path=train.jsonl --config.task.heldout=test.jsonl

GRPO with one update for each 8 prompts x 8 responses of up to 256 tokens. The
files have the fields `problem` and `answer`. On 2 cores a step of SmolLM2 takes
about 155 s, the run an hour. Short answers take less: sums, with
--config.max_response=32 --config.task.take=number and the request to reply with
the number only (--config.task.template), 22 s a step.

The learning rate suits small models; for billions of parameters take 1e-6, or
LoRA (--config.lora.rank=16) with 1e-5. For one large accelerator raise
prompts_per_step; several are used by --config.mesh.fsdp=-1.
"""

from jaxrl_llm import config


def get_config():
  """Returns the config."""
  c = config.base()
  c.steps = 20
  c.prompts_per_step = 8
  c.samples_per_prompt = 8
  c.max_prompt = 256
  c.max_response = 256

  c.model.hf = 'HuggingFaceTB/SmolLM2-135M-Instruct'
  c.task.name = 'math'
  c.task.template = 'auto'
  c.task.heldout_count = 32  # of task.path, if task.heldout names no files

  c.optimizer.learning_rate = 1e-5
  c.eval.every = 10
  c.eval.samples = 1
  c.eval.k = (1,)
  c.eval.problems = 32  # at most
  c.eval.slots = 32
  c.checkpoint.every = 10
  return c


def get_hyper(hyper):
  """Returns a sweep: two learning rates, three seeds each."""
  return hyper.product([
      hyper.sweep('optimizer.learning_rate', [3e-6, 1e-5]),
      hyper.sweep('seed', [0, 1, 2])])
