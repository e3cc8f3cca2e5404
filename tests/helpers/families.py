"""Tiny models of every family: our config, transformers' model, and files."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from jaxrl_llm.models.config import ModelConfig, RopeScaling
from tests.reference import transformers_params

NAMES = ('qwen2', 'qwen3', 'qwen3_moe', 'llama3', 'gemma2', 'gemma3')

# Odd sizes on purpose: heads * head_dim is not the width, nothing is a power
# of two, and 3 layers see both kinds of a sliding-window pattern.
_SIZES = dict(vocab_size=37, width=30, layers=3, heads=6, kv_heads=2,
              head_dim=10, mlp_width=45)
_HF_SIZES = dict(
    vocab_size=37, hidden_size=30, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=10, intermediate_size=45,
    max_position_embeddings=512, pad_token_id=0, bos_token_id=None,
    eos_token_id=None, attn_implementation='eager')
_LLAMA3_ROPE = dict(
    rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32)


def _rope(theta, **scaling):
  return dict(rope_parameters=dict(
      dict(rope_type='default', rope_theta=theta), **scaling))


def family(name):
  """Returns (our config, transformers' class, its config) of a tiny model."""
  hf = transformers
  if name == 'qwen2':
    # Qwen2's head width is always hidden_size / heads.
    return (ModelConfig(**{**_SIZES, 'width': 60}, qkv_bias=True,
                        rope_theta=1e6),
            hf.Qwen2ForCausalLM, hf.Qwen2Config(
                **{**_HF_SIZES, 'hidden_size': 60}, tie_word_embeddings=True,
                rms_norm_eps=1e-6, **_rope(1e6)))
  if name == 'qwen3':
    return (ModelConfig(**_SIZES, qk_norm=True, rope_theta=1e6,
                        tie_embeddings=False),
            hf.Qwen3ForCausalLM, hf.Qwen3Config(
                **_HF_SIZES, tie_word_embeddings=False, rms_norm_eps=1e-6,
                **_rope(1e6)))
  if name == 'qwen3_moe':
    # Layers with experts on both sides of one without. torch's products of
    # experts refuse rows that are not multiples of 16 bytes.
    return (ModelConfig(**{**_SIZES, 'width': 32}, qk_norm=True, rope_theta=1e6,
                        tie_embeddings=False, experts=6, experts_per_token=2,
                        expert_width=16, dense_layers=(1,)),
            hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig(
                **{**_HF_SIZES, 'hidden_size': 32}, tie_word_embeddings=False,
                rms_norm_eps=1e-6, num_experts=6, num_experts_per_tok=2,
                moe_intermediate_size=16, norm_topk_prob=True,
                mlp_only_layers=[1], **_rope(1e6)))
  if name == 'llama3':
    return (ModelConfig(**_SIZES, rope_theta=10_000.0, norm_eps=1e-5,
                        tie_embeddings=False,
                        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32)),
            hf.LlamaForCausalLM, hf.LlamaConfig(
                **_HF_SIZES, tie_word_embeddings=False, rms_norm_eps=1e-5,
                **_rope(10_000.0, **_LLAMA3_ROPE)))
  if name == 'gemma3':
    # Every third layer is full, so that 3 layers see both bases.
    return (ModelConfig(**_SIZES, activation='gelu_tanh', norm_plus_one=True,
                        qk_norm=True, post_norms=True, scale_embeddings=True,
                        window=13, full_every=3, rope_theta=1e6,
                        window_rope_theta=100.0, rope_divisor=8.0,
                        query_scale=7.0 ** -0.5),
            hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(
                **_HF_SIZES, tie_word_embeddings=True, rms_norm_eps=1e-6,
                hidden_activation='gelu_pytorch_tanh', sliding_window=13,
                query_pre_attn_scalar=7, sliding_window_pattern=3, layer_types=[
                    *['sliding_attention'] * 2, 'full_attention'],
                rope_parameters=dict(
                    full_attention=dict(
                        rope_type='linear', factor=8.0, rope_theta=1e6),
                    sliding_attention=dict(
                        rope_type='default', rope_theta=100.0))))
  return (ModelConfig(**_SIZES, activation='gelu_tanh', norm_plus_one=True,
                      post_norms=True, scale_embeddings=True,
                      attention_softcap=2.0, logit_softcap=3.0, window=13,
                      query_scale=7.0 ** -0.5),
          hf.Gemma2ForCausalLM, hf.Gemma2Config(
              **_HF_SIZES, tie_word_embeddings=True, rms_norm_eps=1e-6,
              hidden_activation='gelu_pytorch_tanh', sliding_window=13,
              query_pre_attn_scalar=7, attn_logit_softcapping=2.0,
              final_logit_softcapping=3.0, **_rope(10_000.0)))


@functools.lru_cache(None)
def torch_model(name, dtype=torch.float32):
  """Makes transformers' model with random weights, rounded to `dtype`."""
  _, cls, hf_cfg = family(name)
  return random_model(cls, hf_cfg, dtype)


def random_model(cls, hf_cfg, dtype=torch.float32):
  """Makes a model of a class, as `torch_model`."""
  torch.manual_seed(0)
  model = cls(hf_cfg).eval().float()
  with torch.no_grad():
    for parameter in model.parameters():
      # Wide enough that norms, biases and soft caps all matter.
      std = 0.5 if parameter.ndim == 1 else 2 * parameter.shape[-1] ** -0.5
      parameter.add_(std * torch.randn_like(parameter))
      # Not model.to(dtype), which would round the frequencies of RoPE too.
      parameter.data = parameter.data.to(dtype)
  return model


@functools.lru_cache(None)
def pair(name):
  """Returns our config and parameters, and the torch model they come from."""
  cfg, model = family(name)[0], torch_model(name)
  params = jax.tree.map(jnp.asarray, transformers_params.params(model, cfg))
  return cfg, params, model


def save(name, folder, dtype=torch.float32, **options) -> pathlib.Path:
  """Saves a model with transformers; `options` are for `save_pretrained`."""
  torch_model(name, dtype).save_pretrained(folder, **options)
  return pathlib.Path(folder)


def tokens(rows=2, length=70, seed=0):
  """Returns random tokens that are in every family's vocabulary."""
  return np.random.default_rng(seed).integers(
      0, _SIZES['vocab_size'], (rows, length), dtype=np.int32)


def torch_logits(model, rows):
  """Returns float32 logits of transformers' model."""
  with torch.no_grad():
    return model(torch.from_numpy(rows).long()).logits.float().numpy()
