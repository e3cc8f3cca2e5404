"""Timed decoding and gradients of a Qwen3 in Hugging Face's transformers.

The argument is JSON: the fields of `gpu.Sizes`, and a `jaxrl_llm` ModelConfig
under 'model'. Prints a line of JSON for each measurement. Runs on the GPU if
there is one.
"""

import json
import statistics
import sys
import time
import types

import torch
import transformers


def seconds(run, repeats: int) -> float:
  """Returns the median seconds of run()."""
  taken = []
  for _ in range(repeats):
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
      torch.cuda.synchronize()
    taken.append(time.perf_counter() - start)
  return statistics.median(taken)


def answer(**row) -> None:
  """Prints a measurement as a line of JSON."""
  print(json.dumps(row), flush=True)


def main() -> None:
  """Runs the measurements."""
  sizes = types.SimpleNamespace(**json.loads(sys.argv[1]))
  model = types.SimpleNamespace(**sizes.model)
  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  torch.manual_seed(0)
  with torch.device(device):
    net = transformers.AutoModelForCausalLM.from_config(
        transformers.Qwen3Config(
            vocab_size=model.vocab_size, hidden_size=model.width,
            intermediate_size=model.mlp_width, num_hidden_layers=model.layers,
            num_attention_heads=model.heads, num_key_value_heads=model.kv_heads,
            head_dim=model.head_dim, rms_norm_eps=model.norm_eps,
            tie_word_embeddings=model.tie_embeddings,
            max_position_embeddings=sizes.row, bos_token_id=None,
            eos_token_id=None, pad_token_id=0),
        dtype=getattr(torch, model.dtype),
        attn_implementation='sdpa')
  answer(kind='version', version=f'transformers {transformers.__version__} '
         f'(torch {torch.__version__})')

  def tokens(*shape):
    return torch.randint(model.vocab_size, shape, device=device)

  net.eval()
  for slots in sizes.slots:
    prompts = tokens(slots, sizes.prompt)

    @torch.inference_mode()
    def decode(length=sizes.response):
      out = net.generate(
          prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
          top_k=0, max_new_tokens=length)
      assert out.shape[1] == sizes.prompt + length

    decode(8)  # A short warm-up is enough, since nothing is compiled.
    answer(kind='decode', slots=slots, seconds=seconds(decode, 1),
           tokens=slots * sizes.response)

  rows = tokens(sizes.rows, sizes.row)
  net.gradient_checkpointing_enable()
  net.train()

  def backward():
    net.zero_grad()
    for part in rows.split(sizes.microbatch[0]):
      net(input_ids=part, labels=part, use_cache=False).loss.backward()

  backward()
  answer(kind='update', seconds=seconds(backward, sizes.repeats),
         tokens=rows.numel())


if __name__ == '__main__':
  main()
