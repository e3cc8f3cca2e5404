"""Tests for faults that other libraries have had.

Each test names the fault. Some faults are tested in other files: constant
noise, the stop token, shifted rewards and replayed shuffles in
take_step_test and resume_test; microbatch denominators in learner_test; float32
log-softmax also in token_stats_test and generate_test.
"""

import functools
import importlib.util
import inspect
import pathlib
import re
import shlex
import sys
import types

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import evaluate, export, train
from jaxrl_llm.base import place
from jaxrl_llm.evaluation import page
from jaxrl_llm.launch import compile_check, gke, slurm, tpu_pod, xm
from jaxrl_llm.launch import run as launch_run
from jaxrl_llm.learner import options
from jaxrl_llm.models import transformer
from jaxrl_llm.monitoring import timing
from jaxrl_llm.prepare import build, choices, programs, sft
from jaxrl_llm.rewards.sandbox import serve
from jaxrl_llm.sampling import generate as generate_lib
from jaxrl_llm.sampling.logits import SamplingParams
from jaxrl_llm.sampling.queue import Queue
from jaxrl_llm.types import LearnerBatch, Prompts, Requests
from tests.helpers import devices, tiny, tiny_hf
from tests.helpers.tolerance import policy_gap


def equations(jaxpr):
  """Yields every equation of a program and of its inner programs."""
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(inner, 'jaxpr', inner)
        if hasattr(inner, 'eqns'):
          yield from equations(inner)


def arrays(function, *args):
  """Returns (primitive, shape, dtype) of all results in a program."""
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  return [
      (equation.primitive.name, out.aval.shape, out.aval.dtype)
      for equation in equations(jaxpr) for out in equation.outvars
      if hasattr(out.aval, 'shape')]


def abstract(kind, *shape):
  return jax.ShapeDtypeStruct(shape, kind)


P, L, R, T, S, V = 3, 11, 17, 7, 5, 23


def test_prefill_has_no_logits_and_runs_each_prompt_once():
  """Tunix computes logits of the whole prompt, [B, L, V], to use the last;
  all but levanter prefill every sample of a prompt anew."""
  cfg = tiny.load(model__vocab_size=V)
  cfg = config_lib.model_config(cfg)
  params = jax.eval_shape(lambda: transformer.init(jax.random.key(0), cfg))
  ints = functools.partial(abstract, jnp.int32)
  got = arrays(
      functools.partial(
          generate_lib.generate, cfg=cfg, sampler=generate_lib.SamplerConfig(
              slots=S, max_response=T, stop_ids=(1,))),
      params, Queue(
          Prompts(ints(P, L), ints(P), ints(P)),
          Requests(ints(R), ints(R), ints(R)), ints()),
      jax.eval_shape(lambda: jax.random.key(0)), SamplingParams(), ints())
  shapes = {shape for _, shape, _ in got}
  assert (S, V) in shapes  # logits of a decode step
  for shape in shapes:
    assert not (V in shape and L in shape), shape
    # Nothing wide stands beside every request, or every request's prompt.
    assert not (R in shape and (L in shape or cfg.width in shape)), shape
  assert (P, L, cfg.width) in shapes


def test_no_softmax_over_the_vocabulary_in_16_bits():
  """lmpo takes the log-softmax of bfloat16 logits."""
  config = tiny.load(model__dtype='bfloat16', model__vocab_size=V)
  learner = build.parts(config).programs.learner
  model = config_lib.model_config(config)
  state = jax.eval_shape(lambda: learner.init(
      {'policy': transformer.init(jax.random.key(0), model)}))
  rows = 16
  batch = LearnerBatch(
      tokens=abstract(jnp.int32, rows, 19),
      prompt_length=abstract(jnp.int32, rows),
      response_length=abstract(jnp.int32, rows),
      mask=abstract(bool, rows, 10),
      behaviour_logprobs=abstract(jnp.float32, rows, 10),
      advantages=abstract(jnp.float32, rows))
  loss = jax.tree.map(jnp.asarray, choices.loss_params(config))
  sensitive = {'exp', 'log', 'sub', 'reduce_sum', 'reduce_max', 'div',
               'logsumexp', 'tanh'}
  plan = learner.plans(rows)[-1]
  got = arrays(learner.update.program, state, batch, plan, loss)
  over_vocabulary = [
      kind for name, shape, kind in got if V in shape and name in sensitive]
  assert over_vocabulary and set(over_vocabulary) == {jnp.dtype('float32')}
  assert any(kind == jnp.bfloat16 for _, _, kind in got)


def test_the_overlong_penalty_counts_tokens(parts):
  """Tunix counts characters."""
  config = tiny.load(overlong__mode='penalty', overlong__window=5)
  parts = tiny.changed(
      parts, config=config, advantages=choices.advantages(config))
  plain = parts.task.tokenizer
  wordy = types.SimpleNamespace(
      encode=plain.encode, stop_ids=plain.stop_ids,
      decode=lambda ids: ' '.join(100 * 'a' for _ in ids))
  advantages = []
  for tokenizer in (plain, wordy):
    watched = tiny.watch(
        parts, lambda *_: tiny.Verdict(0.0, 'same'), tokenizer=tokenizer)
    state, fixed, _ = tiny.begin(parts)
    train.take_step(watched.parts, state, fixed, timing.Timer())
    advantages.append(watched.batches[0].advantages)
  assert np.ptp(advantages[0]) > 0.5
  np.testing.assert_array_equal(*advantages)


def test_behaviour_is_the_distribution_that_was_sampled(parts):
  """TRL compares the untempered policy with tempered samples (#4159), and
  log-probs before truncation with samples after it (#6789)."""
  def step(**sampling):
    config = tiny.load(
        **{f'sampling__{k}': value for k, value in sampling.items()})
    state, fixed, _ = tiny.begin(parts)
    fixed = fixed._replace(
        sampling=parts.sampling(**sampling),
        loss=parts.replicate(choices.loss_params(config)))
    watched = tiny.watch(parts, tiny.by_length)
    _, outcome = train.take_step(
        watched.parts, state, fixed, timing.Timer())
    return outcome.row, watched.batches[0]

  # The trainer's policy is tempered as well: nothing is left between them.
  row, batch = step(temperature=0.6)
  assert row['update/behaviour_gap_max'] < policy_gap(
      parts.config, batch.behaviour_logprobs)
  # At least half the mass is left, so each token kept gains at most log 2.
  row, kept = step(temperature=0.6, top_p=0.5)
  assert 0.2 < row['update/behaviour_gap']
  assert row['update/behaviour_gap_max'] < np.log(2) + policy_gap(
      parts.config, kept.behaviour_logprobs)
  assert kept.behaviour_logprobs.min() > batch.behaviour_logprobs.min()


# What SkyPilot sets.
VARIABLES = {'$SKYPILOT_NUM_NODES': '2', '$SKYPILOT_NODE_RANK': '1',
             '$(echo "$SKYPILOT_NODE_IPS" | head -n1)': 'host'}


def commands():
  """Returns the commands in the README, docs/ and module docstrings."""
  pages = [devices.ROOT / 'README.md', devices.ROOT / 'CONTRIBUTING.md',
           *(devices.ROOT / 'docs').glob('*.md')]
  texts = [*pages]
  texts += (devices.ROOT / 'configs').rglob('*.py')
  for folder in ('jaxrl_llm', 'launch'):
    texts += (devices.ROOT / folder).glob('*.py')
  for path in texts:
    text = path.read_text().replace('\\\n', ' ')
    for line in re.findall(
        r'^ *(python (?:-m jaxrl_llm|launch/).*)$|`(python -m jaxrl[^`]*)`',
        text, re.MULTILINE):
      yield path.name, ''.join(line)
  for path in pages:
    for target in re.findall(r'(?:^ *|`)make (\S+?)[`\s]', path.read_text(),
                             re.MULTILINE):
      yield path.name, f'make {target}'


def test_every_command_in_the_readme_is_understood(
    monkeypatch, capsys, tmp_path):
  """lmpo's README has commands that crash."""
  model = tiny_hf.make(tmp_path / 'model', tiny_hf.word_problems(3))
  scoring = tiny_hf.scoring(model, tmp_path / 'scoring')
  programs = {program.__name__: inspect.getsource(program)
              for program in (serve, page)}
  own = tmp_path / 'own.py'
  own.write_text('def reset(problem, seed): pass\ndef step(state, text): pass\n'
                 'def exact(prompts, completions): pass\n'
                 'def search(query): pass\n')
  (tmp_path / 'own.jsonl').touch()
  for name in ('HF_TOKEN', 'WANDB_API_KEY'):
    monkeypatch.setenv(name, 'secret')
  monkeypatch.chdir(devices.ROOT)
  found = list(commands())
  assert len(found) > 8
  makefile = (devices.ROOT / 'Makefile').read_text()
  for where, command in found:
    for variable, value in VARIABLES.items():
      command = command.replace(variable, value)
    argv = shlex.split(command.split(' > ')[0], comments=True)
    argv = [re.sub(r'=(\.\.\.|runs/[\w/]+/config\.json)$',
                   '=configs/countdown.py', arg) for arg in argv]
    if argv[1:2] == ['-m'] and argv[2].startswith('jaxrl_llm.launch.'):
      argv[1:3] = [f'launch/{argv[2].rpartition(".")[2]}.py']
    # Files of the reader.
    argv = [re.sub(r'(?<=[=,])\w+\.(py|jsonl)', lambda name: (
        f'{tmp_path}/own.{name[1]}'), arg)
            if arg.startswith('--config.task.') else arg for arg in argv]
    # Launchers ask no hub.
    if argv[1] == '-m' and re.search(
        r'(configs/|--config=)(\w+/\w+_(math|mbpp|arc|8b)|(real|sft)/\w+|own)\b|'
        r'hf=(weights|teacher)\b', command):
      argv.append(f'--config.model.hf={model}')
      if 'jackpot/qwen25' in command or '1p7b_4b' in command:
        argv.append(f'--config.actor.model.hf={model}')
      if 'teacher.model.hf' in command or '_from_' in command:
        argv.append(f'--config.teacher.model.hf={model}')
      if 'reward.model.hf' in command:
        argv.append(f'--config.reward.model.hf={scoring}')
    try:
      if argv[0] == 'make':
        assert re.search(rf'^{argv[1]}:', makefile, re.MULTILINE), command
      elif len(argv) == 3 and argv[1] == '-m':  # the name of a program
        assert importlib.util.find_spec(argv[2]), command
      elif argv[1] == 'launch/run.py':
        launch_run.main([*argv[2:], '--dry_run'])
      elif argv[1] == 'launch/tpu_pod.py':
        tpu_pod.main([*argv[2:], '--dry_run'])
      elif argv[1] in ('launch/slurm.py', 'launch/gke.py'):
        {'slurm.py': slurm, 'gke.py': gke}[argv[1][7:]].main(argv[2:])
      elif argv[1] == 'launch/xm.py':
        assert not xm.main([
            '--dry_run', f'--python={sys.executable}',
            *(arg.replace('gs://bucket', str(tmp_path)) for arg in argv[2:])])
      elif argv[1] == 'launch/compile_check.py':
        compile_check.parse(argv[2:])
      elif argv[2] == 'jaxrl_llm.evaluate':
        evaluate.parse(argv[3:])
      elif argv[2] == 'jaxrl_llm.export':
        export.parse(argv[3:])
      elif argv[2] in programs:
        for option in argv[3:]:
          name = option.partition('=')[0]
          assert not name.startswith('--') or f"'{name}'" in (
              programs[argv[2]]), command
      else:
        assert argv[2] in ('jaxrl_llm.train', 'jaxrl_llm.sft'), command
        config_lib.parse(place.split(argv[3:])[1])
    except SystemExit as end:
      said = capsys.readouterr().err
      assert end.code == 0, f'{where}: {command}\n{said}'


class Reads:
  """Record of the config fields that the package reads by name."""

  def __init__(self, monkeypatch, config):
    self.names = set()
    sections = {id(config): ''}
    sections.update(
        (id(x), name + '.') for name, x in config.items()
        if isinstance(x, ConfigDict))
    get = ConfigDict.__getitem__

    def read(this, key):
      frame, inner = sys._getframe(1), []
      while 'ml_collections' in frame.f_code.co_filename:
        inner.append(frame.f_code.co_name)
        frame = frame.f_back
      by_name = not {'to_dict', 'items', 'values'} & set(inner)
      if by_name and pathlib.Path(frame.f_code.co_filename).name != 'config.py':
        self.names.add(sections.get(id(this), '') + key)
      return get(this, key)

    monkeypatch.setattr(ConfigDict, '__getitem__', read)


def test_every_field_is_read(monkeypatch, parts, tmp_path):
  """lmpo has options that nothing reads."""
  config = tiny.load(
      tmp_path, steps=2, sft__steps=1, overlong__mode='penalty',
      overlong__window=3, sft__cache=tmp_path / 'warm')
  make_parts, learner_make = build.parts, programs.learner_lib.make_learner

  def built(config):
    # Reads what it reads; its programs stay uncompiled.
    fresh = make_parts(config)
    return tiny.changed(
        parts, config=config, task=fresh.task, sampling=fresh.sampling)

  def no_learner(*args, **kwargs):
    state = types.SimpleNamespace
    return learner_make(*args, **kwargs)._replace(
        init=lambda params: {'policy': state(params=params['policy'])},
        update=lambda state, *_: (state, {'loss': np.zeros(())}))

  monkeypatch.setattr(build, 'parts', built)
  reads = Reads(monkeypatch, config)
  with monkeypatch.context() as patch:
    run = sft.run

    def quick(*args, **more):
      patch.setattr(programs.learner_lib, 'make_learner', no_learner)
      try:
        return run(*args, **more)
      finally:
        patch.setattr(programs.learner_lib, 'make_learner', learner_make)

    patch.setattr(sft, 'run', quick)
    train.train(config)
  with_actor = tiny.load(tmp_path, **tiny.ACTOR)
  of_actor = Reads(monkeypatch, with_actor)
  choices.loss_params(with_actor)
  reads.names |= of_actor.names
  assert config_lib.of_player(tiny.load(
      tmp_path, **tiny.ACTOR, actor__learning_rate=.5), 'actor'
                              ).optimizer.learning_rate == .5
  fields = {
      name for name in config_lib.flatten(config) if not name.startswith(
          ('model.', 'task.', 'actor.model.', 'teacher.model.',
           'reward.model.', 'actor.learning_rate'))}
  assert fields <= reads.names, sorted(fields - reads.names)
  # A section that is handed on whole reaches a function that names each field.
  named = set(inspect.signature(options.OptimizerConfig).parameters)
  assert set(config.optimizer.keys()) <= named
