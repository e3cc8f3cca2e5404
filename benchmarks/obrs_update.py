"""Times of updates and scores under Jackpot's rejection, for `obrs.py`."""

import dataclasses
import functools
import re
import statistics
import sys
import time
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.rl_step import markdown
from jaxrl_llm import config as config_lib
from jaxrl_llm.learner import learner as learner_lib
from jaxrl_llm.learner import optimizer as optimizer_lib
from jaxrl_llm.learner import rejection as rejection_lib
from jaxrl_llm.learner.forward import BEHAVIOUR
from jaxrl_llm.learner.options import POLICY
from jaxrl_llm.learner.update import LossParams, TrainState
from jaxrl_llm.models import transformer
from jaxrl_llm.models.config import ModelConfig, PRESETS
from jaxrl_llm.ops import obrs
from jaxrl_llm.prepare import choices, methods
from jaxrl_llm.types import LearnerBatch
from tests.helpers import learners

K = 20
# With it, the 20 likeliest tokens of random weights have some of the mass.
TEMPERATURE = 0.2
# The actor's parameters are those of the policy and this times random ones.
ACTOR_NOISE = 0.03
SCORES = 'score', 'score with z'


@dataclasses.dataclass(frozen=True)
class Size:
  """Sizes of the benchmark.

  Attributes:
    model: the architecture.
    slots: rows of the decode head.
    rows: of an update.
    microbatch: rows of a microbatch, all of full length.
    prompt: tokens of each prompt.
    response: tokens of each response.
    chunk: tokens whose logits exist at a time. By default it would be half with
      two models; here it is the same, so that ratios compare equal products.
    decodes: turns of the decode head.
    updates: turns of the updates.
    positions: distributions for the error of the normaliser.
  """
  model: ModelConfig
  slots: int = 64
  rows: int = 4
  microbatch: int = 2
  prompt: int = 16
  response: int = 112
  chunk: int = 128
  decodes: int = 11
  updates: int = 4
  positions: int = 128


FULL = Size(dataclasses.replace(
    PRESETS['qwen3-1.7b'], width=1024, mlp_width=3072, layers=4))
TINY = Size(
    dataclasses.replace(
        FULL.model, vocab_size=3000, width=32, mlp_width=64, layers=2, heads=2,
        kv_heads=1, head_dim=16),
    slots=4, response=16, chunk=16, decodes=2, updates=2, positions=16)

# Choices of each variant, None without rejection; the first is the baseline.
UPDATES = {
    'plain': None,
    'p_ref': dict(target='p_ref'),
    'p_new': dict(),
    'p_new, two_pass': dict(two_pass=True),
    'p_new, z=exact, top_k=0': dict(z='exact', top_k=0),
    'p_new, z=exact, top_k=20': dict(z='exact'),
}


class Times(NamedTuple):
  """Seconds of a program in each turn: by the clock, and of all processors."""
  wall: np.ndarray
  processor: np.ndarray

  def __add__(self, other: 'Times') -> 'Times':
    return Times(*map(np.add, self, other))


def in_turns(
    functions: dict[str, Callable[[], Any]], turns: int) -> dict[str, Times]:
  """Times functions that take turns; the first turn does not count.

  What ran before changes the time of a program, so every second turn is in
  reverse order.
  """
  found = {name: [] for name in functions}
  for turn in range(turns + 1):
    for name in [*functions][::-1 if turn % 2 else 1]:
      start = time.perf_counter(), time.process_time()
      jax.block_until_ready(functions[name]())
      end = time.perf_counter(), time.process_time()
      if turn:
        found[name].append(np.subtract(end, start))
    print(f'turn {turn} of {turns}: {", ".join(functions)}', file=sys.stderr)
  return {name: Times(*np.transpose(x)) for name, x in found.items()}


def spread(values: np.ndarray, digits: int = 2) -> str:
  """Returns the median and the range."""
  middle, low, high = (
      f'{f(values):.{digits}f}' for f in (statistics.median, min, max))
  return f'{middle} ({low} to {high})'


def cells(times: Times, *bases: Times, unit: float = 1.0) -> list[str]:
  """Returns the seconds, and two ratios to each baseline."""
  out = [spread(times.wall * unit)]
  for base in bases:
    processor = statistics.median(times.processor / base.processor)
    out += [spread(times.wall / base.wall, 3), f'{processor:.3f}']
  return out


def config(size: Size, choices: dict[str, Any] | None):
  """Returns the config of a variant."""
  c = config_lib.base()
  c.prompts_per_step, c.samples_per_prompt = 1, size.rows
  c.max_prompt, c.max_response = size.prompt, size.response
  c.sampling.temperature = TEMPERATURE
  c.learner.tokens_per_microbatch = size.microbatch * (
      size.prompt + size.response - 1)
  c.learner.vocab_chunk = size.chunk
  if choices is not None:
    c.off_policy = 'jackpot'
    c.jackpot.update(choices)
  return c


def make_rows(size: Size, params: Any, actor: Any) -> tuple[LearnerBatch, dict]:
  """Makes rows of random tokens with the actor's log-probs and likeliest ones.

  Returns:
    The rows, and what their rejection towards `params` should find: means of
    `acceptance` and of the `exact` and the `topk` normaliser, from dense
    log-probs.
  """
  cfg, rng = size.model, np.random.default_rng(0)
  length = size.prompt + size.response
  tokens = rng.integers(0, cfg.vocab_size, (size.rows, length), np.int32)
  here = slice(size.prompt - 1, length - 1)

  @jax.jit
  def one(params, actor, row):
    def logprobs(params):
      hidden, _ = transformer.forward(params, row[None], cfg=cfg)
      return jax.nn.log_softmax(transformer.logits(
          params, hidden[0, here], cfg) / TEMPERATURE)

    p, q = logprobs(params), logprobs(actor)
    at = functools.partial(jnp.take_along_axis, axis=-1)
    chosen = lambda x: at(x, row[size.prompt:, None])[:, 0]
    top, ids = jax.lax.top_k(q, K)
    return dict(
        behaviour=chosen(q), ids=ids.T, top=top.T,
        acceptance=obrs.acceptance(chosen(p), chosen(q), lam=1.0),
        exact=obrs.normalizer(p, q, lam=1.0),
        topk=obrs.normalizer(at(p, ids), top, lam=1.0))

  found = [jax.device_get(one(params, actor, row)) for row in tokens]
  found = {name: np.stack([x[name] for x in found]) for name in found[0]}
  whole = np.full(size.rows, size.response, np.int32)
  batch = LearnerBatch(
      tokens=tokens, prompt_length=np.full(size.rows, size.prompt, np.int32),
      response_length=whole, mask=np.ones((size.rows, size.response), bool),
      behaviour_logprobs=found['behaviour'],
      advantages=rng.normal(size=size.rows).astype(np.float32),
      top_ids=found['ids'], top_logprobs=found['top'],
      identity=np.stack(
          [np.full(size.rows, 7), whole, np.arange(size.rows)], 1).astype(
              np.uint32))
  return batch, {name: found[name].mean() for name in (
      'acceptance', 'exact', 'topk')}


def check(metrics: dict[str, dict[str, float]], expected: dict[str, float]):
  """Raises AssertionError if a variant did not do what its name says."""
  accepted, topk, exact = (
      expected[name] for name in ('acceptance', 'topk', 'exact'))
  assert 0.05 < accepted < 0.95 and topk < 0.97 * exact and exact < 0.95, (
      expected)
  close = functools.partial(np.testing.assert_allclose, rtol=5e-3)
  losses = set()
  for name, fields in UPDATES.items():
    found = metrics[name]
    assert found['skipped'] == 0 and found['grad_norm'] > 0, (name, found)
    assert ('obrs_kept' in found) == (fields is not None), name
    losses.add(round(found['loss'], 6))
    if fields is None:
      continue
    assert 0 < found['obrs_kept'] < 1 and found['importance'] != 1, name
    close(found['obrs_acceptance'], accepted, err_msg=name)
    exactly = fields.get('z') == 'exact'
    close(found['obrs_z'], exact if exactly else accepted, err_msg=name)
    assert ('obrs_z_error' in found) == (
        exactly and fields.get('top_k', K) > 0), name
    if not exactly or 'obrs_z_error' in found:
      # The kappa of the update before is the same: the policy hardly moves.
      close(found['obrs_kappa'], accepted / topk, err_msg=name)
  assert len(losses) > 2, losses


@dataclasses.dataclass
class Shared:
  """State that the updates of all variants pass on; one alone fits."""
  state: TrainState


class Learning(NamedTuple):
  """Measurements of the learner.

  Attributes:
    times: of each program in UPDATES and SCORES.
    memory: bytes of the temporary arrays of each update.
    scatters: number of scatter operations of each update.
    metrics: of each update, the last time.
  """
  times: dict[str, Times]
  memory: dict[str, int]
  scatters: dict[str, int]
  metrics: dict[str, dict[str, float]]


def score_program(
    learner: learner_lib.LearnerPrograms, params: Any, batch: LearnerBatch,
    loss: LossParams):
  """Returns compiled (params) -> Scores."""
  plan = learners.plan(learner, batch)
  program = learner.score.lower(
      {POLICY: params}, batch, plan, loss).compile()
  batch, plan = jax.device_put((batch, plan))
  return lambda params: program({POLICY: params}, batch, plan, loss)


def update_program(
    learner: learner_lib.LearnerPrograms, batch: LearnerBatch,
    loss: LossParams, actor: Any, shared: Shared):
  """Returns compiled () -> metrics, which updates `shared`, and its program."""
  plan = learners.plan(learner, batch)
  others = None if actor is None else {BEHAVIOUR: actor}
  program = learner.update.lower(
      learner.state, batch, plan, loss, None, others).compile()
  batch, plan = jax.device_put((batch, plan))
  calibration = rejection_lib.init() if (
      learner.state[POLICY].calibration) else None

  def update():
    nonlocal calibration
    new, metrics = program(
        {POLICY: shared.state.replace(calibration=calibration)}, batch, plan,
        loss, None, others)
    shared.state = new[POLICY]
    calibration = shared.state.calibration
    jax.block_until_ready(shared.state)
    return metrics

  return update, program


def learning(size: Size) -> Learning:
  """Measures `Learner.update` and `Learner.score`."""
  rate = 1e-9  # The policy hardly moves, so all turns do the same.
  optimizer = optimizer_lib.Optimizer(
      optax.sgd(rate), optax.constant_schedule(rate))
  configs = {name: config(size, x) for name, x in UPDATES.items()}
  losses = {name: choices.loss_params(c) for name, c in configs.items()}
  made = {
      name: learner_lib.make_learner(
          {POLICY: learner_lib.PlayerModel(size.model, optimizer)},
          choices.learner_config(c))
      for name, c in configs.items()}

  init = jax.jit(functools.partial(transformer.init, cfg=size.model))
  params = init(jax.random.key(0))
  actor = jax.jit(lambda *both: jax.tree.map(
      lambda x, y: x + ACTOR_NOISE * y, *both), donate_argnums=1)(
          params, init(jax.random.key(1)))
  rows, expected = make_rows(size, params, actor)
  plain = rows.replace(top_ids=None, top_logprobs=None)

  scores = {
      name: score_program(made[variant], params, batch, losses[variant])
      for name, variant, batch in zip(
          SCORES, ('plain', 'p_ref'), (plain, rows))}
  bare, scored = (jax.device_get(score(params)) for score in scores.values())
  assert bare.z is None
  np.testing.assert_allclose(scored.z.mean(), expected['topk'], rtol=5e-3)
  np.testing.assert_allclose(scored.logprobs, bare.logprobs, atol=1e-3)

  shared = Shared(made['plain'].init({POLICY: params})[POLICY])
  del params  # given away by the first update
  updates, memory, scatters = {}, {}, {}
  for name, learner in made.items():
    cfg = methods.rejection(configs[name]) or rejection_lib.Rejection(top_k=0)
    batch = (rows if cfg.needs_top else plain).replace(
        old_logprobs=bare.logprobs, z=scored.z if cfg.scores_z else None)
    updates[name], program = update_program(
        learner, batch, losses[name], actor if cfg.needs_actor else None,
        shared)
    memory[name] = program.memory_analysis().temp_size_in_bytes
    scatters[name] = len(re.findall(r' scatter\(', program.as_text()))

  metrics = {}

  def update(name):
    metrics[name] = updates[name]()
    return metrics[name]

  def score(name):
    return scores[name](shared.state.params)

  times = {}
  # Apart: a score is slower after an update.
  for function, names in (score, SCORES), (update, UPDATES):
    times.update(in_turns({
        name: functools.partial(function, name) for name in names},
        size.updates))
  metrics = {name: {x: float(y) for x, y in found.items()}
             for name, found in metrics.items()}
  check(metrics, expected)
  # The gradient of a look-up in the logits would be a scatter.
  assert len(set(scatters.values())) == 1, scatters
  return Learning(times, memory, scatters, metrics)


def products(cfg: ModelConfig, name: str, tokens: float) -> float:
  """Returns the multiply-adds per response token, without attention's scores.

  A forward pass is one product with each weight. The backward pass is two, and
  recomputes the logits.

  Args:
    cfg: the model.
    name: key of UPDATES, or 'score'.
    tokens: tokens of a row for each response token.
  """
  vocabulary = cfg.vocab_size * cfg.width
  untied = 1 if cfg.tie_embeddings else 2
  layers = tokens * (cfg.parameter_count() - untied * vocabulary)
  forward = layers + vocabulary
  if name == 'score':
    return forward
  choices = UPDATES[name] or {}
  passes = bool(choices.get('two_pass')) + (choices.get('z') == 'exact')
  return 3 * layers + 4 * vocabulary + passes * forward


def expected_ratios(size: Size, name: str, *, scored: bool) -> list[str]:
  """Returns the ratios of products to plain, here and for Qwen3-4B.

  Args:
    size: of the benchmark.
    name: key of UPDATES.
    scored: whether a score comes before each update.
  """
  out = []
  for cfg, tokens in ((size.model, 1 + size.prompt / size.response),
                      (PRESETS['qwen3-4b'], 1.0)):
    first = scored * products(cfg, 'score', tokens)
    ratio = (first + products(cfg, name, tokens)) / (
        first + products(cfg, 'plain', tokens))
    out.append(f'{ratio:.3f}')
  return out


def update_table(found: Learning, size: Size) -> str:
  """Returns the table of the updates."""
  base, lines = next(iter(UPDATES)), []
  for name in UPDATES:
    memory, facts = found.memory[name], found.metrics[name]
    lines.append([
        name, *cells(found.times[name], found.times[base]),
        *expected_ratios(size, name, scored=False),
        f'{memory / 1e9:.2f}', f'{memory / found.memory[base]:.3f}',
        *(f'{facts[x]:.3f}' if x in facts else ''
          for x in ('obrs_acceptance', 'obrs_z'))])
  return markdown(
      ['update', 'seconds', 'over plain', 'processor', 'products',
       'Qwen3-4B', 'temporary GB', 'over plain', 'acceptance', 'Z in use'],
      lines)


def step_table(times: dict[str, Times], size: Size) -> str:
  """Returns the table of updates after a score of the old policy."""
  before, with_z = (times[name] for name in SCORES)
  base, lines = before + times['plain'], []
  for name, fields in UPDATES.items():
    scores_z = fields is not None and fields.get('target') == 'p_ref'
    lines.append([
        name, *cells((with_z if scores_z else before) + times[name], base),
        *expected_ratios(size, name, scored=True)])
  return markdown(
      ['score and update', 'seconds', 'over plain', 'processor', 'products',
       'Qwen3-4B'], lines)
