"""Export of a checkpoint as files of another library."""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import shutil
from typing import Any, Callable, Iterator

from absl import logging
import jax
from ml_collections import ConfigDict

from jaxrl_llm import checkpoint, sharding, tasks
from jaxrl_llm import config as config_lib
from jaxrl_llm.base import phases, process_state
from jaxrl_llm.base import tokenizer as tokenizer_lib
from jaxrl_llm.config import plugs
from jaxrl_llm.evaluation import hub
from jaxrl_llm.learner import policy as policy_lib
from jaxrl_llm.models import hf, hf_config, lora
from jaxrl_llm.models.config import ModelConfig
from jaxrl_llm.models.gguf import write as gguf_write
from jaxrl_llm.monitoring import exits, progress
from jaxrl_llm.prepare import build, choices, start_weights
from jaxrl_llm.storage import compiled, paths

SHARD_BYTES = 4_000_000_000


def parameters(
    config: ConfigDict, which: str = 'best', player: str = 'policy',
) -> tuple[Any, ModelConfig, int]:
  """Reads the whole model's parameters of a checkpoint, LoRA's merged.

  Args:
    config: of the run, as its config.json has it.
    which: 'best' or 'last'.
    player: one of config.PLAYERS; `config` is that of this player, see
      `config.of_player`.

  Returns:
    The parameter tree, on the first device; its model; and its step.

  Raises:
    ValueError: there is no checkpoint, or LoRA's frozen weights are gone.
  """
  model = config_lib.model_config(config)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  source = None
  if config.model.hf and config.lora.rank:
    source = hf.open_checkpoint(hf.fetch(config.model.hf))
  policy = policy_lib.make_policy(model, mesh, choices.adapters(config), source)
  folder = paths.place(config.workdir) / 'checkpoints'
  number = config_lib.PLAYERS.index(player)
  begun = hf.digest(source.folder) if source else None
  found = checkpoint.restore(
      folder,
      {'learners': [*[None] * number, {'params': sharding.abstract_params(
          policy.trained, sharding.TRAIN_RULES, mesh)}]},
      differs=lambda saved: [
          f'the files of model.hf={config.model.hf} were others'
      ] if source and saved['contents'].get('model') != begun else [],
      best=which == 'best', partial=True)
  if found is None:
    raise ValueError(
        f'There is no whole checkpoint in {folder}: train first, or set '
        '--workdir to the folder of a run.')
  params = found.state['learners'][number]['params']
  if not config.lora.rank:
    frozen = None
  elif config_lib.has_sft(config) and not config_lib.sft_of_lora(config):
    path = start_weights.base_file(config)
    base = start_weights.load(path, policy.shapes)
    if base is None:
      raise ValueError(
          f'{path}, with the weights that LoRA was trained with, is gone or '
          'damaged: train again in another workdir.')
    _, frozen = policy.split(
        jax.device_put(base, sharding.replicated(mesh)), jax.random.key(0))
  else:
    frozen = policy.init(jax.random.key(config.seed))
  return lora.merge(policy.compose(params, frozen)), model, found.step


@process_state.narrow()
def export(
    config: ConfigDict, out: paths.Path, which: str = 'best',
    dtype: str | None = None, player: str = 'policy',
    form: str = 'safetensors') -> int:
  """Writes the folder, whole or not at all.

  Args:
    config: that of this player alone, from `config.of_player`.
    out: the folder; it does not exist yet, or it is empty.
    which: 'best' or 'last' checkpoint.
    dtype: type of the weights; None is the type of the original model.
    player: one of config.PLAYERS.
    form: 'safetensors' or 'gguf'.

  Returns:
    The checkpoint's step.

  Raises:
    ValueError: the folder has files, there is no checkpoint, the model's
      features are not those of a family that transformers knows, or its
      tokeniser is not of a kind that GGUF files have.
    OSError: the folder cannot be written to, or its bucket does not answer.
  """
  paths.reachable(out)
  with paths.explained(out):
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
  if taken:
    raise ValueError(f'{out} is there already: name a new folder as --out.')
  origin = None
  model = config_lib.model_config(config)
  if config.model.hf:
    origin = hf.fetch(config.model.hf, weights=False)
    dtype = dtype or hf_config.read_config(origin).dtype
  elif dtype is None:
    dtype = model.dtype if model.dtype in hf_config.STORED else 'float32'
  model = dataclasses.replace(model, dtype=dtype)
  write = (_gguf if form == 'gguf' else _safetensors)(config, model, origin)
  compiled.start(config.compilation_cache)
  params, _, step = parameters(config, which, player)
  with (contextlib.nullcontext() if paths.in_bucket(out) else _parents(out),
        paths.new_path(out) as part):
    part.mkdir()
    write(part, params)
    paths.write_whole(
        part / 'README.md', hub.card(config, which, step, player, form))
  return step


def _safetensors(
    config: ConfigDict, model: ModelConfig, origin: pathlib.Path | None,
) -> Callable[[pathlib.Path, Any], None]:
  """Makes (folder, parameters) -> None, which writes a model's files.

  Args:
    config: of the run.
    model: as it is written.
    origin: folder of the model that it came from, if any.
  """
  source = hf_config.read(origin) if origin else None

  def write(folder, params):
    hf.save(folder, params, model, source=source, shard_bytes=SHARD_BYTES)
    for path in hf.companions(origin) if origin else ():
      shutil.copyfile(path, folder / path.name)
    if origin:
      _add_stops(folder, config, model)
    # The same permissions as config.json.
    mode = (folder / 'config.json').stat().st_mode
    for path in folder.glob('*.safetensors'):
      path.chmod(mode)

  return write


def _gguf(
    config: ConfigDict, model: ModelConfig, origin: pathlib.Path | None,
) -> Callable[[pathlib.Path, Any], None]:
  """Makes the same as `_safetensors` for a GGUF file.

  Raises:
    ValueError: the file cannot have the model or its tokeniser.
  """
  if origin is None:
    raise ValueError(
        'A GGUF file needs the tokeniser of a Hugging Face model, but the run '
        'has no model.hf: export with --format=safetensors.')
  raw = hf_config.to_hf(model, hf_config.read(origin))
  tokenizer = tokenizer_lib.ModelTokenizer(origin)
  stops = _stops(config, model, tokenizer).stop_ids
  fields = gguf_write.fields(raw, tokenizer.own, stops, hf_config.from_hf)

  def write(folder, params):
    shapes = hf.stored_shapes(model)
    gguf_write.save(folder / 'model.gguf', raw, fields, shapes, phases.counted(
        hf.tensors(params, model), 'writing the model', 'tensors',
        len(shapes)))

  return write


def _add_stops(
    folder: pathlib.Path, config: ConfigDict, model: ModelConfig) -> None:
  """Adds what ended the run's responses to the files of a model.

  A base model's own files name the end of a text, but not that of a turn.
  """
  try:
    own = tokenizer_lib.ModelTokenizer(folder)
  except ValueError:  # the run has another tokeniser, of its task
    return
  stops = _stops(config, model, own)
  if stops.stop_ids != own.stop_ids:
    path = folder / 'generation_config.json'
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(
        found | {'eos_token_id': [*stops.stop_ids]}, indent=2) + '\n')


def _stops(
    config: ConfigDict, model: ModelConfig,
    own: tokenizer_lib.ModelTokenizer) -> Any:
  """Returns a tokeniser with what ended the run's responses; may warn."""
  try:
    task = _task(config, own)
  except ValueError as error:
    logging.warning(
        'What ended the responses of the run is not known here, so the files '
        'name what ends those of the original model: %s', error)
    return own
  stops = build.with_stops(task, config, model.vocab_size)
  getattr(task, 'close', lambda: None)()
  if texts := getattr(stops, 'stop_texts', ()):
    logging.warning(
        'Responses of the run also ended with %s, which is more than one '
        'token, so the files cannot name it: set it as a stop text where the '
        'model is used.', ' or '.join(map(repr, texts)))
  return stops


def _task(config: ConfigDict, own: tokenizer_lib.ModelTokenizer) -> tasks.Task:
  """Makes the task of a run, if it can without its problems and its judge."""
  options = {k: v for k, v in config.task.items() if k != 'name'}
  made = plugs.plug('task.name', config.task.name).function
  if 'path' in options and made.__module__.startswith('jaxrl_llm.'):
    # These files need not be here, and a task of the user may need its own.
    options.update({
        name: () for name in ('path', 'heldout', 'reward', 'reward_weights')
        if isinstance(options.get(name), tuple)})
  return tasks.get(config.task.name, own, **options)


@contextlib.contextmanager
def _parents(path: pathlib.Path) -> Iterator[None]:
  """Makes the folders that hold a path; a failure of the body removes them."""
  made = [folder for folder in path.parents if not folder.exists()]
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    yield
  except BaseException:
    for folder in made:
      with contextlib.suppress(OSError):  # It has other files by now.
        folder.rmdir()
    raise


def program(args: argparse.Namespace, config: ConfigDict) -> None:
  """Exports, and says what is written.

  Args:
    args: from `jaxrl_llm.export.parse`.
    config: of the run, as for `export`.
  """
  # Host memory has room for the whole model.
  jax.config.update('jax_platforms', 'cpu')
  with exits.program('Interrupted; nothing was written.'):
    out = paths.absolute(args.out)
    if args.push and paths.in_bucket(out):
      raise ValueError(f'--push uploads a folder on disk, but --out is {out}.')
    # A long export would be in vain if the hub refused its name.
    repository = args.push and hub.create_repository(args.push, args.private)
    with progress.Display(f'export of {args.workdir}'):
      step = export(
          config, out, args.checkpoint, args.dtype, args.player, args.format)
    notes = [checkpoint.untrained(
        paths.place(args.workdir) / 'checkpoints', args.checkpoint, step)
             or 'There is no update in it.'] * (not step) + [
        'No tokeniser: it was not trained with one that transformers knows.'
    ] * (not config.model.hf)
    print(
        f'{args.out}: the {args.checkpoint} checkpoint of {args.workdir}, step '
        f'{step}.', *notes, flush=True)
    if repository:
      print('Uploaded to', hub.upload(
          out, repository, f'Step {step} of {config.steps}'), flush=True)
