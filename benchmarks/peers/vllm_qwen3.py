"""Timed decoding of a Qwen3 in vLLM, on a GPU.

The argument is JSON: the fields of `gpu.Sizes`, and a `jaxrl_llm` ModelConfig
under 'model'. Prints a line of JSON for each measurement. As in our sampler,
all samples of a prompt share its keys and values (prefix caching), and every
response has all its tokens (`ignore_eos`). CUDA graphs are vLLM's default. It
returns no log-probs, which ours computes in addition.
"""

import json
import statistics
import sys
import tempfile
import time
import types

import numpy as np
import transformers
import vllm


def answer(**row) -> None:
  """Prints a measurement as a line of JSON."""
  print(json.dumps(row), flush=True)


def save_config(model: types.SimpleNamespace, length: int, folder: str) -> None:
  """Writes the config.json of a Qwen3; vLLM makes up the weights."""
  transformers.Qwen3Config(
      architectures=['Qwen3ForCausalLM'], vocab_size=model.vocab_size,
      hidden_size=model.width, intermediate_size=model.mlp_width,
      num_hidden_layers=model.layers, num_attention_heads=model.heads,
      num_key_value_heads=model.kv_heads, head_dim=model.head_dim,
      rms_norm_eps=model.norm_eps, tie_word_embeddings=model.tie_embeddings,
      max_position_embeddings=length, bos_token_id=None, eos_token_id=None,
      pad_token_id=0, dtype=model.dtype).save_pretrained(folder)


def main() -> None:
  """Runs the measurements."""
  sizes = types.SimpleNamespace(**json.loads(sys.argv[1]))
  model = types.SimpleNamespace(**sizes.model)
  length = sizes.prompt + sizes.response
  with tempfile.TemporaryDirectory() as folder:
    save_config(model, length, folder)
    engine = vllm.LLM(
        model=folder, load_format='dummy', skip_tokenizer_init=True,
        dtype=model.dtype, max_model_len=length, max_num_seqs=max(sizes.slots),
        enable_prefix_caching=True, enforce_eager=False)
  answer(kind='version', version=f'vLLM {vllm.__version__}')
  rng = np.random.default_rng(0)
  prompts = [
      vllm.TokensPrompt(prompt_token_ids=tokens.tolist())
      for tokens in rng.integers(
          model.vocab_size, size=(sizes.prompts, sizes.prompt))]

  for slots in sizes.slots:

    def decode(slots, tokens):
      found = engine.generate(prompts, vllm.SamplingParams(
          n=slots // sizes.prompts, temperature=1.0, max_tokens=tokens,
          ignore_eos=True, detokenize=False), use_tqdm=False)
      made = [len(out.token_ids) for row in found for out in row.outputs]
      assert made == [tokens] * slots

    decode(slots, min(8, sizes.response))
    taken = []
    for _ in range(sizes.repeats):
      start = time.perf_counter()
      decode(slots, sizes.response)
      taken.append(time.perf_counter() - start)
    answer(kind='decode', slots=slots, tokens=slots * sizes.response,
           seconds=statistics.median(taken))


if __name__ == '__main__':
  main()
