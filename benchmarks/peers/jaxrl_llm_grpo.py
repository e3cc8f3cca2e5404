"""Timed GRPO steps of jaxrl_llm on a CPU; see `job.py`.

Calls `train.take_step`, as `train.train` does. Except for sizes, the settings
are those of `config.base()`: mean over tokens, no KL, one update per rollout.
The small job has settings that make it fast, a model in a folder has none.
"""

import os
import sys
import time
from unittest import mock

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from benchmarks.peers import job as job_lib
from jaxrl_llm import config as config_lib
from jaxrl_llm import rewards, tasks, train
from jaxrl_llm.base import tokenizer as tokenizer_lib
from jaxrl_llm.base.tokenizer import CharTokenizer
from jaxrl_llm.curriculum import order
from jaxrl_llm.loop import flops
from jaxrl_llm.loop import state as state_lib
from jaxrl_llm.loop.parts import Fixed
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, choices, stages
from jaxrl_llm.sharding import cpu


class Tokenizer(CharTokenizer):
  """One token per character, with the ids of `job.py`."""
  stop_ids = (job_lib.STOP, job_lib.OTHER_STOP)


class Task:
  """The job's prompts and reward, as a `tasks.Task`."""

  def __init__(self, job: job_lib.Job, tokenizer: tokenizer_lib.Tokenizer):
    self.tokenizer = tokenizer or Tokenizer(job_lib.ALPHABET)
    self.train = [
        tasks.Problem(i, prompt, 'sum')
        for i, prompt in enumerate(job_lib.prompts(job))]
    self.heldout = self.train[:1]
    if job.folder:  # the peers take the prompts in this order
      places = order.indices(
          len(self.train), seed=0, position=0, count=len(self.train))
      self.train = [self.train[i] for i in np.argsort(places)]

  def verify(self, problem, text, truncated):
    return rewards.Verdict(job_lib.reward(text), 'counted')


def make_config(job: job_lib.Job) -> ConfigDict:
  """Returns our config of the job."""
  c = config_lib.base()
  c.prompts_per_step, c.samples_per_prompt = job.prompts, job.samples
  c.max_prompt, c.max_response = job.max_prompt, job.max_response
  c.optimizer.learning_rate = job.learning_rate
  if job.folder:
    c.model.hf = job.folder
    stages.validate(c)
    return c
  c.model.vocab_size = job.vocab_size
  for name in ('width', 'layers', 'heads', 'kv_heads', 'head_dim',
               'mlp_width'):
    c.model[name] = getattr(job, name)
  cores = len(os.sched_getaffinity(0))
  c.mesh.cpu_devices = job.devices or cores
  c.sampling.slots = max(8 * cores // c.mesh.cpu_devices, 1)
  c.sampling.unroll = True
  stages.validate(c)
  return c


def main() -> None:
  """Does steps until no more are requested."""
  turns = job_lib.Turns()
  job = job_lib.from_argument(sys.argv[1])
  config = make_config(job)
  with mock.patch.object(
      tasks, 'get', lambda name, tokenizer, **_: Task(job, tokenizer)):
    cpu.keep_memory(
        config.mesh.keep_memory, large=config_lib.is_large(config))
    parts = build.parts(config)
  params = parts.programs.policy.init(
      parts.step_key(parts.replicate(np.uint32(0))))
  if not job.folder:
    # transformers' standard deviation, so that the initial policy is as close
    # to uniform as the peers'.
    params['embed'] *= 0.02 / jnp.std(params['embed'])
  state = state_lib.init_state(
      parts, parts.programs.learner.init({'policy': params}))
  fixed = Fixed(
      sampling=parts.sampling(),
      loss=parts.replicate(choices.loss_params(config)), anchors={},
      frozen={'policy': None})
  # Not the kept one: the machine may have been busy when it was measured.
  rate = flops.measured_rate(parts.programs.model.dtype)
  timer = timing.Timer()
  while turns.wait():
    timer.take()
    # This thread sleeps while a device program runs, so its processor time is
    # the host's work.
    host = time.thread_time()
    with jax.transfer_guard('disallow'):
      state, outcome = train.take_step(parts, state, fixed, timer)
    cpu.return_memory()
    host = time.thread_time() - host
    seconds = timer.take()
    turns.answer(
        version=f'(jax {jax.__version__})', sample=seconds['seconds/sample'],
        update=seconds['seconds/update'], sampled=outcome.tokens,
        trained=int(outcome.row['update/tokens']), host=host,
        slot_use=outcome.row['sampler/slot_use'], rate=rate,
        flops=outcome.flops)


if __name__ == '__main__':
  main()
