"""Makes the Hugging Face folder that all libraries load; see `job.py`.

Arguments: the job as JSON, then --model, --tokenizer and --problems. With a
model, its files are linked, and the prompts are in its chat format, if it has
one. Else a Qwen3 is made up; without a tokeniser, one is trained on the
problems. Without problems, sums are made up.
"""

import argparse
import gzip
import json
import pathlib
import shutil

import tokenizers
import torch
import transformers

from benchmarks.peers import job as job_lib


def read(path: str | None) -> list[str]:
  """Returns the problems of a file of JSON lines, or made-up ones."""
  if not path:
    return [
        ' '.join(f'Add {i + 7 * j} to the sum.' for j in range(3 + i % 20))
        for i in range(1000)]
  opened = gzip.open(path, 'rt') if path.endswith('.gz') else open(path)
  with opened as file:
    return [json.loads(line)['problem'] for line in file]


def trained(texts: list[str]) -> transformers.PreTrainedTokenizerFast:
  """Returns a tokeniser trained on texts."""
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
  bpe.decoder = tokenizers.decoders.ByteLevel()
  bpe.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
      vocab_size=4000, special_tokens=['<pad>', '<stop>'], show_progress=False,
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=bpe, pad_token='<pad>', eos_token='<stop>')


def write_prompts(folder: pathlib.Path, texts: list[str], most: int) -> None:
  """Writes prompts.json, of the texts of at most so many tokens."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  if tokenizer.chat_template:
    texts = [tokenizer.apply_chat_template(
        [dict(role='user', content=text)], add_generation_prompt=True,
        tokenize=False) for text in texts]
  lengths = [len(ids) for ids in tokenizer(texts)['input_ids']]
  (folder / 'prompts.json').write_text(json.dumps(
      [text for text, n in zip(texts, lengths) if n <= most]))


def main() -> None:
  """Writes the folder."""
  parser = argparse.ArgumentParser()
  parser.add_argument('job')
  parser.add_argument('--model')
  parser.add_argument('--tokenizer')
  parser.add_argument('--problems')
  args = parser.parse_args()
  job = job_lib.from_argument(args.job)
  folder, texts = pathlib.Path(job.folder), read(args.problems)
  if args.model:
    for path in pathlib.Path(args.model).iterdir():
      (folder / path.name).symlink_to(path.absolute())
    write_prompts(folder, texts, job.max_prompt)
    return
  if args.tokenizer:
    for path in pathlib.Path(args.tokenizer).glob('tokenizer*.json'):
      shutil.copy(path, folder / path.name)
  else:
    trained(texts).save_pretrained(folder)
  write_prompts(folder, texts, job.max_prompt)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  torch.manual_seed(0)
  config = transformers.Qwen3Config(
      **job_lib.qwen3(job), max_position_embeddings=job.max_prompt * 4,
      pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
  transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(
      folder)


if __name__ == '__main__':
  main()
