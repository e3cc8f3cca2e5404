"""The architecture of a model: a frozen dataclass, and presets."""

import dataclasses
import numbers
import typing
from typing import Annotated, Any, Literal, Optional

from jaxrl_llm.base.declared import ROUNDING

# Positive normal numbers of float32: smaller ones are 0 on most devices.
_SMALLEST, _LARGEST = 2.0 ** -126, (2 - 2.0 ** -23) * 2.0 ** 127
MAX_LAYERS = 10_000
FULL = 1 << 30  # A window that hides nothing.


@dataclasses.dataclass(frozen=True)
class Execution:
  """Choices of `forward` that change its speed and memory, not its result.

  `forward` takes no 'auto' or None: `attention.resolve` and the learner choose.
  remat='attention' saves attention's output, but 'xla' and 'cudnn' still
  recompute its inner parts; 'matmuls' saves no products with experts; with
  'full', the inputs of the layers and the choice of experts are saved.

  Attributes:
    remat: what the backward pass recomputes to save memory: none, matmuls (all
      but matrix products and attention), attention (all but attention), full
      (all: a third more time) or auto (by the memory).
    attention: implementation in training and prefill: xla, splash (TPU), cudnn
      (NVIDIA, 16-bit) or auto (for rows of 256 tokens or more splash, of 1024
      or more cudnn, if it can, else xla).
    unroll: layers unrolled in the scan over layers: faster, but a slower
      compile if they are many (none: all of at most 4 on a CPU, else 1).
  """
  remat: Annotated[
      Literal['auto', 'none', 'matmuls', 'attention', 'full'],
      (ROUNDING,)] = 'auto'
  attention: Annotated[
      Literal['auto', 'xla', 'splash', 'cudnn'], (ROUNDING,)] = 'auto'
  unroll: Annotated[int | None, '[1, inf)', (ROUNDING,)] = None


class NotOnDisk(ValueError):
  """A model would have to be fetched, and may not be."""


def _check_numbers(cfg: Any):
  """Raises ValueError if a size or number of a dataclass cannot be used."""
  for field in dataclasses.fields(cfg):
    value, kinds = getattr(cfg, field.name), typing.get_args(field.type) or (
        field.type,)
    if value is None and type(None) in kinds or (
        typing.get_origin(field.type) is tuple):
      continue
    if int in kinds:
      kind, low, high = numbers.Integral, 1, 2 ** 31 - 1
      text = 'a whole number from 1 to 2147483647'
    elif float in kinds:
      kind, low, high = numbers.Real, _SMALLEST, _LARGEST
      text = 'a positive number that float32 can hold'
    else:
      continue
    if isinstance(value, bool) or not (
        isinstance(value, kind) and low <= value <= high):
      raise ValueError(f'{field.name}={value!r} is not usable: give {text}.')


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Llama 3's scaling of the low rotary frequencies."""
  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_length: int

  def __post_init__(self):
    _check_numbers(self)
    if self.high_freq_factor <= self.low_freq_factor:
      raise ValueError(
          f'high_freq_factor={self.high_freq_factor} is not above '
          f'low_freq_factor={self.low_freq_factor}: use a larger one.')


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A decoder-only transformer.

  Attributes:
    vocab_size: V, size of the vocabulary; at least the tokeniser's.
    width: D, width of the residual stream.
    layers: number of blocks.
    heads: query heads, H.
    kv_heads: key and value heads; divides `heads`.
    head_dim: width of one head; `heads * head_dim` need not be `width`.
    mlp_width: hidden width of the gated MLP; with experts, of the layers that
      have none.
    activation: activation of the MLP's gate, 'silu' or 'gelu_tanh'.
    rope_theta: base of the rotary frequencies.
    rope_scaling: Llama 3's frequency scaling, or None.
    rope_divisor: positions are divided by it before RoPE (linear scaling), but
      not where `window_rope_theta` is used.
    window_rope_theta: base of the rotary frequencies in layers with a window,
      which then have no scaling; None for that of all layers (Gemma 3).
    norm_eps: epsilon of RMSNorm.
    norm_plus_one: whether RMSNorm multiplies by 1 + w (Gemma).
    qkv_bias: whether query, key and value have biases (Qwen2, Qwen2.5).
    qk_norm: whether each query and key head has RMSNorm before RoPE (Qwen3,
      Gemma 3).
    post_norms: whether the outputs of attention and MLP have RMSNorm too
      (Gemma).
    tie_embeddings: whether the unembedding is the embedding.
    scale_embeddings: whether embeddings are multiplied by sqrt(width) (Gemma).
    query_scale: factor of query-key products; None for head_dim ** -0.5.
    attention_softcap: cap in cap * tanh(scores / cap), or None (Gemma 2).
    logit_softcap: the same for the logits (Gemma 2).
    window: length of the sliding window in layers that have one; None for full
      attention in all layers (Gemma).
    full_every: with a window, layers full_every - 1, 2 * full_every - 1, ...
      have full attention: 2 in Gemma 2, 6 in Gemma 3.
    experts: number of gated MLPs that a router chooses from for each token;
      None for a dense MLP in all layers (Qwen3-MoE).
    experts_per_token: how many it chooses.
    expert_width: hidden width of an expert.
    norm_topk: whether the weights of a token's experts sum to 1; else they are
      its probabilities among all experts.
    sparse_step: layers sparse_step - 1, 2 * sparse_step - 1, ... have experts.
    dense_layers: of these, numbers of layers, from 0, that have none.
    scores: whether a score [1, D] of a token takes the place of the
      unembedding: a reward model.
    dtype: compute type of activations and matmuls; parameters are float32.
  """
  vocab_size: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp_width: int
  activation: str = 'silu'
  rope_theta: float = 10_000.0
  rope_scaling: Optional[RopeScaling] = None
  rope_divisor: float = 1.0
  window_rope_theta: Optional[float] = None
  norm_eps: float = 1e-6
  norm_plus_one: bool = False
  qkv_bias: bool = False
  qk_norm: bool = False
  post_norms: bool = False
  tie_embeddings: bool = True
  scale_embeddings: bool = False
  query_scale: Optional[float] = None
  attention_softcap: Optional[float] = None
  logit_softcap: Optional[float] = None
  window: Optional[int] = None
  full_every: int = 2
  experts: Optional[int] = None
  experts_per_token: Optional[int] = None
  expert_width: Optional[int] = None
  norm_topk: bool = True
  sparse_step: int = 1
  dense_layers: tuple[int, ...] = ()
  scores: bool = False
  dtype: str = 'float32'

  def __post_init__(self):
    _check_numbers(self)
    if self.layers > MAX_LAYERS:
      raise ValueError(
          f'layers={self.layers} are too many: use at most {MAX_LAYERS}.')
    if self.heads % self.kv_heads:
      raise ValueError(
          f'kv_heads={self.kv_heads} does not divide heads={self.heads}: use '
          'a divisor, so that each key/value head serves as many query heads.')
    if self.head_dim % 2:
      raise ValueError(
          f'head_dim={self.head_dim} is odd: use an even one, because RoPE '
          'rotates pairs.')
    if self.dtype not in ('float32', 'bfloat16', 'float16'):
      raise ValueError(
          f"dtype={self.dtype!r} is not a compute type: use 'float32', "
          "'bfloat16' or 'float16'.")
    if self.full_every < 2:
      raise ValueError(
          f'full_every={self.full_every} leaves no layer with a window: use at '
          'least 2, or window=None.')
    if self.window_rope_theta is not None and self.window is None:
      raise ValueError(
          f'window_rope_theta={self.window_rope_theta} is of layers with a '
          'window, and there are none: set window too, or leave it out.')
    if self.activation not in ('silu', 'gelu_tanh'):
      raise ValueError(
          f"activation={self.activation!r} is not known: use 'silu' or "
          "'gelu_tanh'.")
    self._check_experts()

  def _check_experts(self):
    """Raises ValueError if the fields of experts do not fit together."""
    if self.experts is None:
      for name, default in (
          ('experts_per_token', None), ('expert_width', None),
          ('sparse_step', 1), ('dense_layers', ())):
        if getattr(self, name) != default:
          raise ValueError(
              f'{name}={getattr(self, name)} is of layers with experts, and '
              'there are none: set experts too, or leave it out.')
      return
    for name in ('experts_per_token', 'expert_width'):
      if getattr(self, name) is None:
        raise ValueError(
            f'experts={self.experts} needs {name}: set it too, or leave out '
            'experts.')
    if self.experts_per_token > self.experts:
      raise ValueError(
          f'experts_per_token={self.experts_per_token} is above experts='
          f'{self.experts}: use at most as many.')
    for layer in self.dense_layers:
      if type(layer) is not int or not 0 <= layer < self.layers:
        raise ValueError(
            f'dense_layers={self.dense_layers} names {layer!r}, which is no '
            f'layer: give numbers from 0 to {self.layers - 1}.')
    if not any(self.sparse_layers()):
      raise ValueError(
          f'dense_layers={self.dense_layers} and sparse_step='
          f'{self.sparse_step} leave no layer with experts: change one of '
          'them, or leave out experts.')

  @property
  def scale(self) -> float:
    """Factor of query-key products."""
    return self.head_dim ** -0.5 if self.query_scale is None else (
        self.query_scale)

  def layer_windows(self) -> tuple[int, ...]:
    """Positions a query may look back in each layer, itself included."""
    return tuple(
        self.window if self.window and (i + 1) % self.full_every else FULL
        for i in range(self.layers))

  def sparse_layers(self) -> tuple[bool, ...]:
    """Returns whether each layer has experts."""
    return tuple(
        self.experts is not None and (i + 1) % self.sparse_step == 0
        and i not in self.dense_layers for i in range(self.layers))

  def parameter_count(self) -> int:
    """Returns the number of parameters; a tied unembedding counts once."""
    d, h = self.width, self.head_dim
    qkv = (self.heads + 2 * self.kv_heads) * h
    layer = d * qkv + self.heads * h * d + 2 * d
    layer += qkv * self.qkv_bias + 2 * h * self.qk_norm
    layer += 2 * d * self.post_norms
    head = 1 if self.scores else self.vocab_size * (not self.tie_embeddings)
    return self.layers * layer + self.mlps(self.experts) + d * (
        self.vocab_size + head + 1)

  def mlps(self, experts: Optional[int]) -> int:
    """Returns the weights of MLPs and routers, with so many experts each.

    With `experts_per_token`, they are those that a token is multiplied by.
    """
    d, sparse = self.width, sum(self.sparse_layers())
    count = (self.layers - sparse) * 3 * d * self.mlp_width
    if sparse:
      count += sparse * d * (self.experts + 3 * experts * self.expert_width)
    return count


_QWEN25 = dict(rope_theta=1e6, norm_eps=1e-6, qkv_bias=True)
_QWEN25_MATH = {**_QWEN25, 'rope_theta': 1e4}
_QWEN3 = dict(rope_theta=1e6, norm_eps=1e-6, qk_norm=True)
_GEMMA2 = dict(
    activation='gelu_tanh', norm_plus_one=True, post_norms=True,
    scale_embeddings=True, attention_softcap=50.0, logit_softcap=30.0,
    window=4096, query_scale=256 ** -0.5)
_GEMMA3 = dict(
    activation='gelu_tanh', norm_plus_one=True, qk_norm=True, post_norms=True,
    scale_embeddings=True, rope_theta=1e6, window_rope_theta=1e4, full_every=6,
    query_scale=256 ** -0.5)

# Fields that determine the shapes of the parameters, so of a checkpoint.
SHAPING = (
    'vocab_size', 'width', 'layers', 'heads', 'kv_heads', 'head_dim',
    'mlp_width', 'qkv_bias', 'qk_norm', 'post_norms', 'tie_embeddings',
    'experts', 'expert_width', 'sparse_step', 'dense_layers')

# The numbers are vocab_size, width, layers, heads, kv_heads, head_dim and
# mlp_width.
PRESETS = {
    'tiny': ModelConfig(
        24, 128, 3, 4, 2, 32, 256, rope_theta=1000.0, qk_norm=True),
    'qwen2.5-0.5b': ModelConfig(151_936, 896, 24, 14, 2, 64, 4864, **_QWEN25),
    'qwen2.5-1.5b': ModelConfig(151_936, 1536, 28, 12, 2, 128, 8960, **_QWEN25),
    'qwen2.5-3b': ModelConfig(151_936, 2048, 36, 16, 2, 128, 11_008, **_QWEN25),
    'qwen2.5-math-1.5b': ModelConfig(
        151_936, 1536, 28, 12, 2, 128, 8960, **_QWEN25_MATH),
    'qwen2.5-math-7b': ModelConfig(
        152_064, 3584, 28, 28, 4, 128, 18_944, tie_embeddings=False,
        **_QWEN25_MATH),
    'qwen3-1.7b': ModelConfig(151_936, 2048, 28, 16, 8, 128, 6144, **_QWEN3),
    'qwen3-4b': ModelConfig(151_936, 2560, 36, 32, 8, 128, 9728, **_QWEN3),
    'qwen3-8b': ModelConfig(
        151_936, 4096, 36, 32, 8, 128, 12_288, tie_embeddings=False, **_QWEN3),
    'qwen3-30b-a3b': ModelConfig(
        151_936, 2048, 48, 32, 4, 128, 6144, tie_embeddings=False, experts=128,
        experts_per_token=8, expert_width=768, **_QWEN3),
    'llama3.1-8b': ModelConfig(
        128_256, 4096, 32, 32, 8, 128, 14_336, rope_theta=500_000.0,
        norm_eps=1e-5, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
        tie_embeddings=False),
    'gemma2-2b': ModelConfig(256_000, 2304, 26, 8, 4, 256, 9216, **_GEMMA2),
    'gemma2-9b': ModelConfig(256_000, 3584, 42, 16, 8, 256, 14_336, **_GEMMA2),
    'gemma3-270m': ModelConfig(
        262_144, 640, 18, 4, 1, 256, 2048, window=512, **_GEMMA3),
    'gemma3-1b': ModelConfig(
        262_144, 1152, 26, 4, 1, 256, 6912, window=512, **_GEMMA3),
    'gemma3-4b': ModelConfig(
        262_208, 2560, 34, 8, 4, 256, 10_240, window=1024, rope_divisor=8.0,
        **_GEMMA3),
}

# Checkpoints on the hub with the architecture of a preset: a name, and the
# endings with which others have it.
HUB = {
    name + ending: preset for preset, name, endings in (
        ('qwen2.5-0.5b', 'Qwen/Qwen2.5-0.5B', ('', '-Instruct')),
        ('qwen2.5-1.5b', 'Qwen/Qwen2.5-1.5B', ('', '-Instruct')),
        ('qwen2.5-3b', 'Qwen/Qwen2.5-3B', ('', '-Instruct')),
        ('qwen2.5-math-1.5b', 'Qwen/Qwen2.5-Math-1.5B', ('',)),
        ('qwen2.5-math-7b', 'Qwen/Qwen2.5-Math-7B', ('',)),
        ('qwen3-1.7b', 'Qwen/Qwen3-1.7B', ('', '-Base')),
        ('qwen3-4b', 'Qwen/Qwen3-4B', ('', '-Base')),
        ('qwen3-8b', 'Qwen/Qwen3-8B', ('', '-Base')),
        ('qwen3-30b-a3b', 'Qwen/Qwen3-30B-A3B', ('', '-Base')),
        ('llama3.1-8b', 'meta-llama/Llama-3.1-8B', ('', '-Instruct')),
        ('gemma2-2b', 'google/gemma-2-2b', ('', '-it')),
        ('gemma2-9b', 'google/gemma-2-9b', ('', '-it')),
        ('gemma3-270m', 'google/gemma-3-270m', ('', '-it')),
        ('gemma3-1b', 'google/gemma-3-1b', ('-pt', '-it')),
        ('gemma3-4b', 'google/gemma-3-4b', ('-pt', '-it')))
    for ending in endings}
