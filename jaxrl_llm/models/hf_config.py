"""Conversion between Hugging Face's config.json and ModelConfig.

In both directions, a feature that the other side lacks is an error; no feature
is ignored. `FAMILIES` is the table of the differences between families.
"""

import copy
import dataclasses
import json
import pathlib
from typing import Any, Callable, Iterator, Mapping, NamedTuple

import numpy as np

from jaxrl_llm.base.tokenizer import transformers
from jaxrl_llm.models.config import MAX_LAYERS, ModelConfig, RopeScaling

STORED = ('float32', 'bfloat16', 'float16')  # types of weights in files

_ACTIVATIONS = {'silu': 'silu', 'gelu_pytorch_tanh': 'gelu_tanh'}
_TRAITS = (
    'norm_plus_one', 'qkv_bias', 'qk_norm', 'post_norms', 'scale_embeddings')
# Of a config.json that describes more than a text model, fields that are not
# in its `text_config` but concern it.
_OUTER = ('dtype', 'torch_dtype', 'quantization_config')


class Family(NamedTuple):
  """Differences of a family of models from the others.

  A field of config.json that transformers does not read in a family says
  nothing there.

  Attributes:
    architecture: class of transformers.
    scores: whether it has reward models, see `architectures`.
    traits: those of _TRAITS that its models have; they lack the others.
    activation: field with the activation of the MLP.
    absent: fields for features that our decoder lacks.
    full_every: in models with windows, one layer in so many has none, unless
      the file says otherwise; None for a family without windows.
    rope_by_layer: whether layers with a window have rotary frequencies of their
      own.
    sparse: whether its models have experts.
    read: f(hf) -> fields of ModelConfig that only some families have.
    write: f(cfg) -> the same as fields of config.json.
  """
  architecture: str
  traits: tuple[str, ...] = ()
  activation: str = 'hidden_act'
  absent: tuple[str, ...] = ('attention_bias',)
  full_every: int | None = None
  rope_by_layer: bool = False
  sparse: bool = False
  scores: bool = True
  read: Callable[[Any], dict[str, Any]] = lambda hf: {}
  write: Callable[[ModelConfig], dict[str, Any]] = lambda cfg: {}

  @property
  def architectures(self) -> tuple[str, ...]:
    """Classes of transformers: a language model, and perhaps a reward model."""
    own = self.architecture
    return own, *[
        own.replace('CausalLM', 'SequenceClassification')] * self.scores


def _read_gemma(hf: Any) -> dict[str, Any]:
  for name in ('query_pre_attn_scalar', 'attn_logit_softcapping',
               'final_logit_softcapping', 'sliding_window'):
    value = getattr(hf, name)
    if value is not None and value <= 0:
      raise ValueError(f'{name}={value} must be positive')
  return dict(
      query_scale=hf.query_pre_attn_scalar ** -0.5,
      attention_softcap=hf.attn_logit_softcapping,
      logit_softcap=hf.final_logit_softcapping)


def _write_gemma(cfg: ModelConfig) -> dict[str, Any]:
  return dict(
      query_pre_attn_scalar=round(cfg.scale ** -2),
      attn_logit_softcapping=cfg.attention_softcap,
      final_logit_softcapping=cfg.logit_softcap)


def _read_experts(hf: Any) -> dict[str, Any]:
  return dict(
      experts=hf.num_experts, experts_per_token=hf.num_experts_per_tok,
      expert_width=hf.moe_intermediate_size, norm_topk=hf.norm_topk_prob,
      sparse_step=hf.decoder_sparse_step,
      dense_layers=tuple(hf.mlp_only_layers))


def _write_experts(cfg: ModelConfig) -> dict[str, Any]:
  # transformers 5 reads either name of their number, and versions before it the
  # first one alone.
  return dict(
      num_experts=cfg.experts, num_local_experts=cfg.experts,
      num_experts_per_tok=cfg.experts_per_token,
      moe_intermediate_size=cfg.expert_width, norm_topk_prob=cfg.norm_topk,
      decoder_sparse_step=cfg.sparse_step,
      mlp_only_layers=[*cfg.dense_layers])


_GEMMA = Family(
    'Gemma2ForCausalLM', ('norm_plus_one', 'post_norms', 'scale_embeddings'),
    activation='hidden_activation',
    absent=('attention_bias', 'use_bidirectional_attention'), full_every=2,
    read=_read_gemma, write=_write_gemma)

# Of several families that fit a model equally well, the first is named.
FAMILIES = {
    'qwen2': Family('Qwen2ForCausalLM', ('qkv_bias',), absent=()),
    'qwen3': Family('Qwen3ForCausalLM', ('qk_norm',)),
    'qwen3_moe': Family(
        'Qwen3MoeForCausalLM', ('qk_norm',), sparse=True,
        absent=('attention_bias', 'use_sliding_window'), read=_read_experts,
        write=_write_experts),
    'llama': Family('LlamaForCausalLM', absent=('attention_bias', 'mlp_bias')),
    'gemma2': _GEMMA,
    'gemma3_text': _GEMMA._replace(
        architecture='Gemma3ForCausalLM', traits=(*_GEMMA.traits, 'qk_norm'),
        full_every=6, rope_by_layer=True, scores=False,
        # transformers has the field, but does not apply it here.
        read=lambda hf: _read_gemma(hf) | dict(attention_softcap=None)),
}
# Models of texts and images: type, architecture, and type of the text's part.
_AROUND = {'gemma3': ('Gemma3ForConditionalGeneration', 'gemma3_text')}


def read(folder: pathlib.Path) -> dict[str, Any]:
  """Reads the fields of the text model from a folder's config.json.

  Raises:
    ValueError: the file is missing or damaged, or of an unknown family.
  """
  path = folder / 'config.json'
  try:
    raw = json.loads(path.read_text())
    kind = raw.get('model_type')
    raw = text_config(raw)
  except FileNotFoundError:
    raise ValueError(
        f'{folder} has no config.json: it is not the folder of a Hugging Face '
        'model.') from None
  except (OSError, AttributeError, TypeError, ValueError) as error:
    raise ValueError(
        f'{path} cannot be read ({error}): fetch it again.') from None
  if kind not in [*FAMILIES, *_AROUND]:
    raise ValueError(
        f'{path}: model_type={kind} is not supported; choose a model of type '
        f'{", ".join([*FAMILIES, *_AROUND])}.')
  return raw


def text_config(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of the text model in those of a config.json.

  Raises:
    TypeError: `text_config` is not a dictionary.
  """
  around = raw.get('model_type')
  if not isinstance(around, str) or around not in _AROUND:
    return dict(raw)
  architecture, kind = _AROUND[around]
  fields = {'model_type': kind, **(raw.get('text_config') or {})}
  fields |= {name: raw[name] for name in _OUTER if name in raw}
  if raw.get('architectures') not in (None, [], [architecture]):
    fields['architectures'] = raw['architectures']
  return fields


def read_config(folder: pathlib.Path) -> ModelConfig:
  """Reads the model config from a folder's config.json.

  Raises:
    ValueError: the file is missing or damaged, or it has a feature that our
      decoder lacks.
  """
  return from_hf(read(folder), str(folder / 'config.json'))


def from_hf(raw: Mapping[str, Any], where: str = 'config.json') -> ModelConfig:
  """Converts the contents of a config.json to a ModelConfig.

  Args:
    raw: fields of the text model, as written by any version of transformers.
    where: name of the file in error messages.

  Returns:
    The model; its `dtype` is the type of the stored weights.

  Raises:
    ValueError: a field is not valid, or our decoder lacks a feature; the
      message names the first one.
  """
  def invalid(error):
    reason = ' '.join(str(error).split()).rstrip('.')
    return ValueError(f'{where} is not valid ({reason}): fetch it again.')

  try:
    layers = raw.get('num_hidden_layers', 1)
    if isinstance(layers, int) and layers > MAX_LAYERS:
      # transformers would make a list of the types of all layers.
      raise ValueError(f'num_hidden_layers={layers} is above {MAX_LAYERS}')
    # A copy, because transformers modifies the nested dictionaries.
    hf = transformers().AutoConfig.for_model(**copy.deepcopy(
        {k: v for k, v in raw.items() if k != 'quantization_config'}))
  except Exception as error:  # transformers raises errors of many types
    raise invalid(error) from None
  family = FAMILIES[raw['model_type']]
  for supported, feature in _features(raw, hf, family):
    if not supported:
      raise ValueError(
          f'{where}: {feature} is not supported; choose a model without it.')
  stored = str(raw.get('dtype') or raw.get('torch_dtype') or 'float32')
  if stored not in STORED:
    raise ValueError(
        f'{where}: weights stored in {stored} are not supported; save them in '
        'bfloat16, float16 or float32.')
  try:
    return dataclasses.replace(
        _converted(hf, family, stored), scores=_scores(raw, family))
  except (ArithmeticError, TypeError, ValueError) as error:
    raise invalid(error) from None


def _rope(
    hf: Any, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the rotary parameters for full attention, and for a window."""
  rope = hf.rope_parameters
  if family.rope_by_layer:
    return dict(rope['full_attention']), dict(rope['sliding_attention'])
  return dict(rope), {}


def _features(
    raw: Mapping[str, Any], hf: Any, family: Family,
) -> Iterator[tuple[bool, str]]:
  """Yields (whether a feature is as our decoder has it, its name)."""
  yield (raw.get('architectures') in (
      None, [], *([name] for name in family.architectures)),
         f'architectures={raw.get("architectures")} '
         f'(not {" or ".join(family.architectures)})')
  yield (not _scores(raw, family) or hf.num_labels == 1,
         f'{family.architectures[-1]} with {hf.num_labels} labels')
  yield not raw.get('quantization_config'), 'quantization_config'
  yield (family.rope_by_layer or 'rope_theta' in hf.rope_parameters,
         'rope_parameters for each type of layer')
  full, local = _rope(hf, family)
  for rope, kinds in ((full, ('default', 'linear', 'llama3')),
                      (local, ('default',))):
    kind = rope.get('rope_type', 'default')
    yield kind in kinds, f'rope_type={kind}'
    factor = rope.get('partial_rotary_factor', 1.0)
    yield factor == 1.0, f'partial_rotary_factor={factor}'
  activation = getattr(hf, family.activation)
  yield activation in _ACTIVATIONS, f'hidden activation {activation}'
  for name in family.absent:
    yield not getattr(hf, name), f'{name}=true'
  pattern = getattr(hf, 'layer_types', None) or []
  yield ({*pattern} <= {'full_attention', 'sliding_attention'},
         f'layer_types={sorted({*pattern})}')
  sliding = _windowed_layers(hf)
  yield (not sliding or family.full_every and _full_every(hf, family),
         f'sliding windows in layers {sliding}')


def _scores(raw: Mapping[str, Any], family: Family) -> bool:
  """Returns whether it is a reward model."""
  return family.scores and (
      raw.get('architectures') == [family.architectures[-1]])


def _windowed_layers(hf: Any) -> list[int]:
  """Returns the numbers of the layers with a sliding window."""
  pattern = getattr(hf, 'layer_types', None) or []
  return [i for i, t in enumerate(pattern) if t != 'full_attention']


def _full_every(hf: Any, family: Family) -> int | None:
  """Returns n if layers n - 1, 2n - 1, ... alone have no window, or None."""
  layers, windowed = len(hf.layer_types), _windowed_layers(hf)
  for n in (family.full_every, *range(2, layers + 2)):
    if windowed == [i for i in range(layers) if (i + 1) % n]:
      return n
  return None


def _number(value: Any) -> Any:
  """Returns a whole number as a float, and anything else as it is."""
  return float(value) if type(value) is int else value


def _converted(hf: Any, family: Family, stored: str) -> ModelConfig:
  """Converts a config of which all features are supported.

  Raises:
    ArithmeticError, TypeError, ValueError: a field is not valid.
  """
  heads, (rope, local) = hf.num_attention_heads, _rope(hf, family)
  sizes = dict(
      vocab_size=hf.vocab_size, width=hf.hidden_size,
      layers=hf.num_hidden_layers, heads=heads,
      kv_heads=hf.num_key_value_heads, mlp_width=hf.intermediate_size)
  if min(sizes.values()) < 1:
    raise ValueError(f'sizes must be positive: {sizes}')
  particular, kind = family.read(hf), rope.get('rope_type')
  if _windowed_layers(hf):
    if hf.sliding_window is None:
      raise ValueError('sliding_window=null, but layers have a window')
    particular.update(
        window=hf.sliding_window, full_every=_full_every(hf, family))
    if local:
      particular.update(window_rope_theta=_number(local['rope_theta']))
  if kind == 'llama3':
    particular.update(rope_scaling=RopeScaling(*(rope[name] for name in (
        'factor', 'low_freq_factor', 'high_freq_factor',
        'original_max_position_embeddings'))))
  if kind == 'linear':
    particular.update(rope_divisor=_number(rope['factor']))
  head_dim = getattr(hf, 'head_dim', None)
  return ModelConfig(
      **sizes,
      head_dim=hf.hidden_size // heads if head_dim is None else head_dim,
      activation=_ACTIVATIONS[getattr(hf, family.activation)],
      rope_theta=_number(rope['rope_theta']), norm_eps=hf.rms_norm_eps,
      tie_embeddings=bool(hf.tie_word_embeddings), dtype=stored, **particular,
      **{trait: trait in family.traits for trait in _TRAITS})


def to_hf(
    cfg: ModelConfig, source: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """Converts a ModelConfig to the contents of a config.json.

  Args:
    cfg: the model; its `dtype` becomes the type of the stored weights.
    source: fields of the model's original text model; others are kept.

  Returns:
    The fields, readable by transformers 4 and 5 and by vLLM.

  Raises:
    ValueError: no supported family has the model's combination of features.
  """
  sparse = cfg.experts is not None
  # The family that the model is most like.
  kind = max(FAMILIES, key=lambda kind: (FAMILIES[kind].sparse == sparse) + sum(
      getattr(cfg, trait) == (trait in FAMILIES[kind].traits)
      for trait in _TRAITS))
  family = FAMILIES[kind]
  activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[
      cfg.activation]
  scaling = cfg.rope_scaling and dict(
      rope_type='llama3', factor=cfg.rope_scaling.factor,
      low_freq_factor=cfg.rope_scaling.low_freq_factor,
      high_freq_factor=cfg.rope_scaling.high_freq_factor,
      original_max_position_embeddings=cfg.rope_scaling.original_length)
  if cfg.rope_divisor != 1 and not scaling:
    scaling = dict(rope_type='linear', factor=cfg.rope_divisor)
  longest = max(32_768, 8 * (
      cfg.rope_scaling.original_length if cfg.rope_scaling else 0))
  out = {
      'max_position_embeddings': longest,
      'bos_token_id': None, 'eos_token_id': None, 'pad_token_id': None,
      **(source or {}),
      'model_type': kind, 'architectures': [family.architecture],
      'vocab_size': cfg.vocab_size, 'hidden_size': cfg.width,
      'num_hidden_layers': cfg.layers, 'num_attention_heads': cfg.heads,
      'num_key_value_heads': cfg.kv_heads, 'head_dim': cfg.head_dim,
      'intermediate_size': cfg.mlp_width, 'hidden_act': activation,
      family.activation: activation,
      'rms_norm_eps': cfg.norm_eps, 'tie_word_embeddings': cfg.tie_embeddings,
      'dtype': cfg.dtype, 'torch_dtype': cfg.dtype,
      **_rope_fields(cfg, family, scaling), **family.write(cfg)}
  if family.full_every:
    every = cfg.full_every if cfg.window else 1
    out.update(
        sliding_window=cfg.window or longest,
        layer_types=['sliding_attention' if (i + 1) % every else
                     'full_attention' for i in range(cfg.layers)])
  _check(out, cfg)
  return out


def _rope_fields(
    cfg: ModelConfig, family: Family, scaling: dict[str, Any] | None,
) -> dict[str, Any]:
  """Returns the rotary parameters as fields of config.json."""
  both = {**(scaling or {'rope_type': 'default'}), 'rope_theta': cfg.rope_theta}
  # transformers before version 5 reads all but `rope_parameters`.
  fields = {'rope_theta': cfg.rope_theta, 'rope_scaling': scaling,
            'rope_parameters': both}
  if family.rope_by_layer:
    local = cfg.window_rope_theta or cfg.rope_theta
    fields.update(
        rope_local_base_freq=local,
        sliding_window_pattern=cfg.full_every if cfg.window else 1,
        rope_parameters=dict(full_attention=both, sliding_attention=dict(
            rope_type='default', rope_theta=local)))
  return fields


def _check(out: Mapping[str, Any], cfg: ModelConfig):
  """Raises ValueError if a config.json does not describe a model."""
  back = from_hf(out)
  # The first is compared below; without a window, the second says nothing.
  aside = ['query_scale', *([] if cfg.window else ['full_every'])]
  lost = [name for name, value in vars(cfg).items()
          if name not in aside and getattr(back, name) != value]
  if lost or not np.isclose(back.scale, cfg.scale):
    raise ValueError(
        f'A Hugging Face {out["model_type"]} model cannot have '
        + ', '.join(f'{n}={getattr(cfg, n)}' for n in lost or ['query_scale'])
        + ': this model cannot be exported, because no supported family '
        'combines these features.')
