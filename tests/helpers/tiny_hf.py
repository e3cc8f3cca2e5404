"""Small Hugging Face models, saved as folders with their own tokeniser."""

import gzip
import json
import pathlib
from typing import Any, Sequence

import tokenizers
import torch
import transformers

from tests.helpers import devices

# Public data sets, which need not be there.
DATA = devices.ROOT.parent / 'shared' / 'data'
SPECIAL = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
CHAT = (
    '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>'
    '\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n'
    '{% endif %}')


def gsm8k(count: int) -> list[dict[str, str]]:
  """Returns problems and answers of GSM8K if found, else `word_problems`."""
  path = DATA / 'gsm8k_train.jsonl.gz'
  if not path.exists():
    return word_problems(count)
  with gzip.open(path, 'rt') as file:
    rows = [json.loads(line) for line, _ in zip(file, range(count))]
  return [{name: row[name] for name in ('problem', 'answer')} for row in rows]


def word_problems(count: int) -> list[dict[str, str]]:
  """Returns made-up problems and answers, from short to long."""
  names, things = ('Ann', 'Ben', 'Eve'), ('apples', 'books', 'cards', 'pens')
  rows = []
  for i in range(count):
    text, total = f'{names[i % 3]} has {i + 3} {things[i % 4]}.', i + 3
    for j in range(i % 5):
      text += f' Then {names[(i + j) % 3]} finds {i % 7 + j} more.'
      total += i % 7 + j
    rows.append(dict(
        problem=f'{text} How many are there now?', answer=str(total)))
  return rows


def write(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> pathlib.Path:
  """Writes a file of JSON lines."""
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return path


def make(
    folder: pathlib.Path, rows: Sequence[dict[str, Any]], family: str = 'qwen3',
    dtype: torch.dtype = torch.float32, shard: str = '1GB',
    **config: Any) -> pathlib.Path:
  """Saves a random model and a BPE tokeniser trained on the rows.

  Args:
    folder: folder to write.
    rows: problems that the tokeniser is trained on.
    family: model_type of transformers.
    dtype: dtype of the weights.
    shard: size limit of a file of weights.
    **config: sizes that replace the small defaults.

  Returns:
    The folder.
  """
  tok = tokenizers.Tokenizer(tokenizers.models.BPE())
  tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
      add_prefix_space=False)
  tok.decoder = tokenizers.decoders.ByteLevel()
  tok.train_from_iterator(
      [str(row) for row in rows], tokenizers.trainers.BpeTrainer(
          vocab_size=400, special_tokens=list(SPECIAL), show_progress=False,
          initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
  own = transformers.PreTrainedTokenizerFast(
      tokenizer_object=tok, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
  own.chat_template = CHAT
  own.save_pretrained(folder)
  torch.manual_seed(0)
  # Models have more rows than their tokenisers have tokens.
  model = transformers.AutoModelForCausalLM.from_config(
      transformers.AutoConfig.for_model(family, **{
          **dict(vocab_size=420, hidden_size=32, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                 intermediate_size=48, max_position_embeddings=1024,
                 bos_token_id=None, eos_token_id=2, pad_token_id=0),
          **config}))
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.mul_(4)  # far from uniform
  model.to(dtype).save_pretrained(folder, max_shard_size=shard)
  return folder


def scoring(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Saves a random reward model with the tokeniser of a model of `make`."""
  config = transformers.AutoConfig.from_pretrained(model)
  config.num_labels = 1
  torch.manual_seed(1)
  found = transformers.AutoModelForSequenceClassification.from_config(config)
  with torch.no_grad():
    for parameter in found.parameters():
      parameter.mul_(4)
  found.float().save_pretrained(folder)
  transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)
  return folder
