"""Hugging Face checkpoints of Qwen2/2.5, Qwen3, Qwen3-MoE, Llama 3, Gemma 2, 3.

`open_checkpoint` checks a folder (config.json and the headers of its files)
and rejects models that this decoder does not compute exactly. `load` reads the
weights into sharded arrays, one tensor at a time, or one matrix of all experts
of a layer. `save` writes such a folder.
Loading and saving preserve the values: types of 16 bits convert to float32 and
back without a change. Of a model of texts and images (Gemma 3 from 4B on), the
part for texts is read.
"""

import dataclasses
import functools
import gc
import hashlib
import json
import os
import pathlib
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.base import phases
from jaxrl_llm.models import hf_config, tensor_files
from jaxrl_llm.models.config import ModelConfig, NotOnDisk
from jaxrl_llm.models.gguf import folder as gguf_folder
from jaxrl_llm.models.gguf import header as gguf_header
from jaxrl_llm.models.gguf import tensors as gguf_tensors
from jaxrl_llm.storage import paths

# Files to fetch from a repository on the hub; no weights in other formats.
_TEXTS = ('*.json', '*.model', '*.txt', '*.jinja')
_WEIGHTS = ('*.safetensors',)
_TYPES = ('F32', 'BF16', 'F16')  # safetensors' names

_TOP = {'embed': 'model.embed_tokens', 'norm': 'model.norm',
        'unembed': 'lm_head', 'score': 'score'}
_EMBED, _HEAD = 'model.embed_tokens.weight', 'lm_head.weight'
_LAYER = {
    'attn_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm',
    'q': 'self_attn.q_proj', 'k': 'self_attn.k_proj',
    'v': 'self_attn.v_proj', 'o': 'self_attn.o_proj',
    'q_norm': 'self_attn.q_norm', 'k_norm': 'self_attn.k_norm',
    'gate': 'mlp.gate_proj', 'up': 'mlp.up_proj', 'down': 'mlp.down_proj',
    'router': 'mlp.gate'}
_EXPERTS = {
    'experts_gate': 'gate_proj', 'experts_up': 'up_proj',
    'experts_down': 'down_proj'}
# Gemma has norms before and after attention and MLP. Its
# post_attention_layernorm is the norm after attention; in the other families
# this name is the norm before the MLP.
_POST_NORMS = {
    'attn_post_norm': 'post_attention_layernorm',
    'mlp_norm': 'pre_feedforward_layernorm',
    'mlp_post_norm': 'post_feedforward_layernorm'}
# In models of texts and images: the names of the text model's tensors begin
# with one of the first, and become the second; the last are of other parts.
_TEXT_PARTS = {'language_model.model.': 'model.', 'language_model.lm_head.':
               'lm_head.', 'model.language_model.': 'model.'}
_OTHER_PARTS = tuple(
    prefix + part for prefix in ('', 'model.')
    for part in ('vision_tower.', 'multi_modal_projector.'))
# Describe pictures to a model of texts and images.
_PICTURES = ('preprocessor_config.json', 'processor_config.json')


class Checkpoint(NamedTuple):
  """A model's folder, checked but not loaded.

  Attributes:
    folder: path of the folder.
    config: the architecture; its `dtype` is the type of the stored weights.
    tensors: name in the files to Tensor.
  """
  folder: pathlib.Path
  config: ModelConfig
  tensors: Mapping[str, tensor_files.Tensor]


def on_disk(name: str, field: str = 'model.hf') -> pathlib.Path | None:
  """Returns the folder or GGUF file of a model; None in a bucket or on the hub.

  Args:
    name: as for `fetch`.
    field: of the config that has the name, for errors.

  Raises:
    ValueError: it can only be a path, and nothing is there.
  """
  name = os.fspath(name)
  if paths.in_bucket(name):
    return None
  path = pathlib.Path(name).expanduser()
  if path.exists():
    return path
  if name.startswith(('/', '.', '~')) or name.endswith('.gguf') or (
      name.count('/') > 1):
    raise ValueError(
        f'{field}={name}: there is no folder or GGUF file '
        f'{path.absolute()}: correct the path.')
  return None


def fetch(
    name: str, weights: bool = True, field: str = 'model.hf', *,
    hub: bool = True) -> pathlib.Path:
  """Returns the folder of a model; downloads it from the hub if needed.

  Args:
    name: a folder, a GGUF file, or a repository on the hub such as
      'Qwen/Qwen3-1.7B-Base'.
    weights: whether to download the weights too.
    field: of the config that has the name, for errors.
    hub: whether the hub and buckets may be asked.

  Returns:
    The folder. Files of a repository that are already cached are not
    downloaded again.

  Raises:
    ValueError: `name` is not a folder and cannot be downloaded; or the GGUF
      file cannot be used.
    NotOnDisk: it would have to be downloaded, and `hub` is False.
    OSError: it is in a bucket, and cannot be fetched.
  """
  here = on_disk(name, field)
  if here is None and not hub:
    import huggingface_hub
    cached = None if paths.in_bucket(name) else (
        huggingface_hub.try_to_load_from_cache(name, 'config.json'))
    if not isinstance(cached, str):
      raise NotOnDisk(f'{field}={name} is not on disk.')
    return pathlib.Path(cached).parent
  if gguf_header.is_file(name):
    return gguf_folder.unpacked(paths.local_file(name))
  if here or paths.in_bucket(name):
    return paths.local_folder(name)
  return _download(name, weights, field)


@functools.cache
def _download(name: str, weights: bool, field: str) -> pathlib.Path:
  import huggingface_hub
  try:
    with phases.phase(f'fetching {name}'):
      return pathlib.Path(huggingface_hub.snapshot_download(
          name, allow_patterns=[*_TEXTS, *(_WEIGHTS if weights else ())]))
  except Exception as error:  # a dozen kinds: names, rights, network
    reason = str(error).strip().split('\n')[0]
    raise ValueError(
        f'{field}={name} is not a folder and could not be fetched from the hub '
        f'({type(error).__name__}: {reason}): check the name, or download '
        'the model and give its folder.') from None


def warn_of_length(folder: pathlib.Path, field: str, length: int) -> None:
  """Warns if sequences are longer than those that a model was made for.

  Args:
    folder: of the model, with a config.json that can be read.
    field: of the config that bounds the prompt.
    length: most tokens of a prompt and its response.
  """
  most = hf_config.read(folder).get('max_position_embeddings')
  if isinstance(most, int) and length > most:
    logging.warning(
        '%s + max_response is %d tokens, more than max_position_embeddings=%d '
        'of %s: lower one of them, since the model was not trained at such '
        'positions.', field, length, most, folder / 'config.json')


class Leaf(NamedTuple):
  """Place in the files of a leaf of the parameter tree.

  Attributes:
    layers: numbers of the layers that it is stacked over; none outside of the
      layers.
    names: of its tensors: one, or one for each layer, or for each layer a list
      with one for each expert.
    transposed: whether the stored matrices are transposed: torch stores them as
      [out, in].
  """
  layers: tuple[int, ...]
  names: list[Any]
  transposed: bool

  def tensors(self) -> list[str]:
    """Returns the names in one list."""
    return [name for part in self.names
            for name in ([part] if isinstance(part, str) else part)]


def names(cfg: ModelConfig) -> dict[str, Leaf]:
  """Maps the path of every leaf, such as 'layers/q', to its tensors."""
  from jaxrl_llm.models import transformer
  layer = dict(_LAYER)
  if cfg.post_norms:
    layer.update(_POST_NORMS)
  if not cfg.qk_norm:
    del layer['q_norm'], layer['k_norm']
  head = 'score' if cfg.scores else 'embed' if cfg.tie_embeddings else 'unembed'
  top = [n for n in _TOP if n in ('embed', 'norm', head)]
  out = {ours: Leaf((), [f'{_TOP[ours]}.weight'], False) for ours in top}

  def add(ours, theirs, transposed):
    layers = tuple(i for run in transformer.runs(cfg)
                   if run.places(ours) is not None for i in run.layers)
    if layers:
      out[f'layers/{ours}'] = Leaf(layers, [
          jax.tree.map(lambda name: f'model.layers.{i}.{name}', theirs)
          for i in layers], transposed)

  for ours, theirs in layer.items():
    add(ours, f'{theirs}.weight', not ours.endswith('norm'))
  for ours, theirs in _EXPERTS.items():
    add(ours, [f'mlp.experts.{e}.{theirs}.weight'
               for e in range(cfg.experts or 0)], True)
  for ours in ('q', 'k', 'v') if cfg.qkv_bias else ():
    add(f'{ours}_bias', f'{_LAYER[ours]}.bias', False)
  return out


def digest(folder: pathlib.Path) -> str:
  """Returns a hash of a model's files.

  It covers small files completely, and large ones by samples of 64 KB at
  regular distances.
  """
  sha = hashlib.sha256()
  for path in sorted(folder.iterdir()):
    if any(path.match(pattern) for pattern in (
        *_TEXTS, *_WEIGHTS, gguf_tensors.FILE)):
      size = path.stat().st_size
      sha.update(f'{path.name} {size}\n'.encode())
      step = 1 << 16 if size < 1 << 26 else size // 1024
      with path.open('rb') as file:
        for start in range(0, size, step):
          file.seek(start)
          sha.update(file.read(1 << 16))
  return sha.hexdigest()[:16]


def companions(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns all files of a model but config.json and weights: its tokeniser."""
  return sorted(
      path for pattern in _TEXTS for path in folder.glob(pattern)
      if path.name not in ('config.json', tensor_files.INDEX, *_PICTURES))


def open_checkpoint(folder: pathlib.Path) -> Checkpoint:
  """Checks the folder of a model, without reading any weights.

  Args:
    folder: folder with config.json and safetensors files, or the one of a GGUF
      file.

  Returns:
    The checkpoint, complete as far as the headers tell.

  Raises:
    ValueError: a file is damaged, or a tensor is missing, superfluous, of
      another shape, or of a type that is not supported.
  """
  cfg = hf_config.read_config(folder)
  of_gguf = (folder / gguf_tensors.FILE).exists()
  tensors = gguf_tensors.find(folder) if of_gguf else _of_text(
      tensor_files.find(folder))
  # Tied weights may be stored twice.
  stored = dataclasses.replace(
      cfg, tie_embeddings=cfg.tie_embeddings and _HEAD not in tensors)
  wanted = stored_shapes(stored)
  for name, shape in wanted.items():
    if name not in tensors:
      raise ValueError(
          f'{folder} lacks the tensor {name} that config.json asks for: '
          'fetch both again.')
    tensor = tensors[name]
    if tensor.shape != shape:
      raise ValueError(
          f'{tensor.path}: tensor {name} has shape {tensor.shape}, but '
          f'config.json asks for {shape}: they belong to different models, '
          'fetch both again.')
    if tensor.dtype not in _TYPES:
      raise ValueError(
          f'{tensor.path}: tensor {name} is stored as {tensor.dtype}, which '
          'is not supported; save the model in bfloat16, float16 or float32.')
  extra = [name for name in tensors if name not in wanted
           and not name.endswith('rotary_emb.inv_freq')]  # of older versions
  if extra:
    raise ValueError(
        f'{tensors[extra[0]].path}: tensor {extra[0]}'
        f'{f" and {len(extra) - 1} more" if extra[1:] else ""} would be left '
        'out, because config.json describes no such part: fetch both again, or '
        'choose a supported model.')
  kinds = {tensors[name].dtype for name in wanted}
  # Not float16, whose range is too small to train in.
  cfg = dataclasses.replace(
      cfg, dtype='bfloat16' if kinds == {'BF16'} else 'float32')
  return Checkpoint(folder, cfg, tensors)


def _of_text(
    tensors: Mapping[str, tensor_files.Tensor],
) -> Mapping[str, tensor_files.Tensor]:
  """Returns a text model's tensors under its own names."""
  if not any(name.startswith(tuple(_TEXT_PARTS)) for name in tensors):
    return tensors
  found = {}
  for name, tensor in tensors.items():
    if not name.startswith(_OTHER_PARTS):
      prefix = next(filter(name.startswith, _TEXT_PARTS), '')
      found[_TEXT_PARTS.get(prefix, '') + name.removeprefix(prefix)] = tensor
  return found


def stored_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Maps the names of all stored tensors to their shapes, in `tensors`' order.
  """
  from jaxrl_llm.models import transformer
  tree = jax.eval_shape(lambda: transformer.init(jax.random.key(0), cfg))
  shapes, out = _by_path(tree), {}
  for path, leaf, place in _in_order(names(cfg)):
    shape = shapes[path].shape[bool(leaf.layers):]
    own = leaf.names[place]
    out.update(dict.fromkeys(
        [own] if isinstance(own, str) else own,
        shape[:-3:-1] if leaf.transposed else shape))
  return out


def _in_order(members: Mapping[str, Leaf]) -> Iterator[tuple[str, Leaf, int]]:
  """Yields (path, leaf, place in its stack) of all parts, layer by layer."""
  for path, leaf in members.items():
    if not leaf.layers:
      yield path, leaf, 0
  for i in sorted({i for leaf in members.values() for i in leaf.layers}):
    for path, leaf in members.items():
      if i in leaf.layers:
        yield path, leaf, leaf.layers.index(i)


def _by_path(tree: Any) -> dict[str, Any]:
  """Maps the path of every leaf of a parameter tree to the leaf."""
  return {_path(keys): leaf
          for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _path(keys) -> str:
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def load(checkpoint: Checkpoint, shapes: Any) -> Any:
  """Reads the weights into sharded arrays.

  Host memory holds one tensor at a time, or one of all experts of a layer, and
  only the parts of it that this process's devices need. Device memory holds the
  result and one layer's tensor.

  Args:
    checkpoint: from `open_checkpoint`.
    shapes: parameter tree of jax.ShapeDtypeStruct with types and shardings.

  Returns:
    The parameter tree.

  Raises:
    ValueError: a weight is not finite, so the file is damaged; or tied weights
      are stored twice with different values.
  """
  members = names(checkpoint.config)
  embed, head = map(checkpoint.tensors.get, (_EMBED, _HEAD))
  if checkpoint.config.tie_embeddings and head is not None and not all(
      np.array_equal(a, b) for a, b in zip(embed.blocks(), head.blocks())):
    raise ValueError(
        f'{head.path}: tensor {_HEAD} differs from {_EMBED}, but config.json '
        'ties them: set tie_word_embeddings to false there.')

  def leaf(keys, shape):
    layers, parts, transposed = members[_path(keys)]
    if not layers:
      whole = _read(checkpoint.tensors[parts[0]], shape.sharding)
      loading.count()
      return jax.block_until_ready(whole.astype(shape.dtype))
    spec = list(shape.sharding.spec)[1:]
    spec += [None] * (len(shape.shape) - 1 - len(spec))
    if transposed:
      spec[-2:] = spec[:-3:-1]
    place = jax.sharding.NamedSharding(
        shape.sharding.mesh, jax.sharding.PartitionSpec(*spec))
    put = _put(shape.sharding, transposed)
    stack = jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)
    for i, part in enumerate(parts):
      tensor = checkpoint.tensors[part] if isinstance(part, str) else (
          tensor_files.Stack([checkpoint.tensors[name] for name in part]))
      # Waits, so that reading does not run ahead and fill host memory.
      stack = jax.block_until_ready(
          put(stack, _read(tensor, place), np.int32(i)))
      loading.count(loading.done + (1 if isinstance(part, str) else len(part)))
    return stack

  with phases.phase(
      'loading the model',
      sum(len(leaf.tensors()) for leaf in members.values()),
      'tensors') as loading:
    return jax.tree_util.tree_map_with_path(leaf, shapes)


@functools.cache
def _put(sharding: Any, transposed: bool) -> Callable[..., jax.Array]:
  """Makes (stack, tensor, layer) -> stack, which sets one layer in place."""
  def put(stack, tensor, layer):
    tensor = (tensor.mT if transposed else tensor).astype(stack.dtype)
    return jax.lax.dynamic_update_index_in_dim(stack, tensor, layer, 0)

  return jax.jit(put, donate_argnums=0, out_shardings=sharding)


def _read(
    tensor: tensor_files.Tensor | tensor_files.Stack, sharding: Any,
) -> jax.Array:
  """Reads one tensor, in the file's type, into a sharded array."""
  pieces = {}  # Replicas share a piece: together at most the whole tensor.

  def piece(index):
    key = str(index)
    if key not in pieces:
      pieces[key] = tensor.read(index)
    return pieces[key]

  array = jax.block_until_ready(
      jax.make_array_from_callback(tensor.shape, sharding, piece))
  pieces.clear()
  gc.collect(0)  # makes JAX free its references to the pieces
  return array


def save(
    folder: pathlib.Path, params: Any, cfg: ModelConfig, *,
    source: Mapping[str, Any] | None = None,
    shard_bytes: int = 2_000_000_000) -> None:
  """Writes config.json and weights that transformers and vLLM can open.

  Args:
    folder: an existing, empty folder.
    params: the parameter tree.
    cfg: the model; weights are stored in its `dtype`.
    source: fields of the original text model; its other ones are kept.
    shard_bytes: maximum size of a file.

  Raises:
    ValueError: no supported family has the model's combination of features.
  """
  text = json.dumps(hf_config.to_hf(cfg, source), indent=2)
  total = sum(len(leaf.tensors()) for leaf in names(cfg).values())
  tensor_files.write(folder, phases.counted(
      tensors(params, cfg), 'writing the model', 'tensors', total),
                     shard_bytes)
  (folder / 'config.json').write_text(text + '\n')


def tensors(params: Any, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
  """Yields torch's names and host arrays, layer by layer.

  Raises:
    ValueError: a weight is too large for the model's type.
  """
  def host(x):
    # Fetches from a copy: a sharded array caches its value on the host.
    out = np.asarray(
        jnp.copy(x) if x.dtype == cfg.dtype else x.astype(cfg.dtype))
    if cfg.dtype == 'float16' and not np.isfinite(out).all():
      raise ValueError(
          'A weight is too large for float16: store the model in bfloat16 or '
          'float32.')
    return out

  leaves = _by_path(params)
  for path, leaf, place in _in_order(names(cfg)):
    array = leaves[path]
    if leaf.layers:
      array = array[place]
    array = host(array.mT if leaf.transposed else array)
    own = leaf.names[place]
    yield from [(own, array)] if isinstance(own, str) else zip(own, array)
