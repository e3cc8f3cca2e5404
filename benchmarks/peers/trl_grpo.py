"""Timed GRPO steps of TRL on a CPU; see `job.py`.

The settings are TRL's defaults, except for sizes, float32 instead of bfloat16,
no reports, and Adam's learning rate. So the loss type is 'dapo' (mean over
tokens), there is no KL and one update per rollout, and transformers' `generate`
samples the whole batch (the alternative, vLLM, needs a GPU).
"""

import sys
import tempfile
import time

from datasets import Dataset
from tokenizers import decoders, models, pre_tokenizers, Tokenizer
import torch
from transformers import (
  AutoModelForCausalLM,
  AutoTokenizer,
  PreTrainedModel,
  PreTrainedTokenizerFast,
  Qwen3Config,
  Qwen3ForCausalLM,
  TrainerCallback,
)
import trl

from benchmarks.peers import job as job_lib


def make_tokenizer(job: job_lib.Job) -> PreTrainedTokenizerFast:
  """Loads the tokeniser, or makes one with a token per character."""
  if job.folder:
    return AutoTokenizer.from_pretrained(job.folder, padding_side='left')
  words = ['<pad>', '<stop>', *job_lib.ALPHABET, '<other stop>']
  tokenizer = Tokenizer(models.WordLevel(
      {word: i for i, word in enumerate(words)}, unk_token='<pad>'))
  tokenizer.pre_tokenizer = pre_tokenizers.Split('', 'isolated')
  tokenizer.decoder = decoders.Fuse()
  return PreTrainedTokenizerFast(
      tokenizer_object=tokenizer, pad_token='<pad>', eos_token='<stop>',
      padding_side='left')


def make_model(job: job_lib.Job) -> PreTrainedModel:
  """Loads the model, or makes one with random weights."""
  if job.folder:
    return AutoModelForCausalLM.from_pretrained(
        job.folder, dtype=torch.float32)
  torch.manual_seed(0)
  return Qwen3ForCausalLM(Qwen3Config(
      **job_lib.qwen3(job), max_position_embeddings=512,
      pad_token_id=job_lib.PAD,
      eos_token_id=[job_lib.STOP, job_lib.OTHER_STOP]))


class Timing(TrainerCallback):
  """Callback that waits for a turn before each step and reports the step."""

  def __init__(self):
    self.turns = job_lib.Turns()
    self.sampled, self.sample, self.scored = 0, 0.0, 0.0

  def on_step_begin(self, args, state, control, **kwargs):
    if not self.turns.wait():
      sys.exit()

  def on_step_end(self, args, state, control, **kwargs):
    self.turns.answer(
        version=trl.__version__, sample=self.sample,
        update=time.perf_counter() - self.scored, sampled=self.sampled,
        trained=self.sampled)

  def rewards(self, completions, completion_ids, **kwargs):
    self.sampled = sum(map(len, completion_ids))
    return [job_lib.reward(text) for text in completions]


def main() -> None:
  """Does steps until no more are requested."""
  job = job_lib.from_argument(sys.argv[1])
  timing = Timing()
  trainer = trl.GRPOTrainer(
      model=make_model(job), reward_funcs=timing.rewards,
      processing_class=make_tokenizer(job), callbacks=[timing],
      train_dataset=Dataset.from_list(
          [{'prompt': prompt} for prompt in job_lib.prompts(job)]),
      args=trl.GRPOConfig(
          output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False,
          per_device_train_batch_size=job.rows, num_generations=job.samples,
          max_completion_length=job.max_response, max_steps=10 ** 6,
          learning_rate=job.learning_rate, shuffle_dataset=not job.folder,
          gradient_checkpointing=False,
          dataloader_pin_memory=False, save_strategy='no', report_to=[],
          disable_tqdm=True))

  # The first returns completions of prompts; the second calls it and adds
  # rewards and advantages.
  generate, score = trainer._generate, trainer._generate_and_score_completions

  def timed_generate(*args, **kwargs):
    start = time.perf_counter()
    out = generate(*args, **kwargs)
    timing.sample = time.perf_counter() - start
    return out

  def timed_score(*args, **kwargs):
    out = score(*args, **kwargs)
    timing.scored = time.perf_counter()
    return out

  trainer._generate = timed_generate
  trainer._generate_and_score_completions = timed_score
  trainer.train()


if __name__ == '__main__':
  main()
