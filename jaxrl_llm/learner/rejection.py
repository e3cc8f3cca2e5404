"""Rejection of tokens that another policy wrote, for the learner's loss.

`ops/obrs.py` has the equations. Here they get their choices, the normaliser's
calibration over a batch, the mask's noise and the metrics.

Every token of a response gets an acceptance from its target and its tempered
behaviour probability. Its loss is multiplied by `keep`, the mask or its
expectation, and by the weight. Entropy bonus and KL penalty act on all tokens.

Metrics:
  update/obrs_acceptance [probability]: that a token is kept: min(1, p / (lam
    q))
  update/obrs_kept [share]: of the tokens, by the mask
  update/obrs_z [probability]: the normaliser in use
  update/obrs_z_std [probability]: its standard deviation over tokens; near 0,
    the weights are on average those of truncated importance sampling, scaled
  update/obrs_z_error [probability]: distance of kappa times the top-k
    normaliser from the exact one, where that is in use
  update/obrs_kappa [ratio]: correction of the top-k normaliser
  update/obrs_at_c1 [share]: tokens at which the bound c1 acts
  update/obrs_at_c2 [share]: tokens at which the bound c2 acts
  update/obrs_rejected_positive [share]: tokens that are rejected, with an
    advantage above 0
  update/obrs_rejected_negative [share]: tokens that are rejected, with an
    advantage below 0
  update/obrs_kl_before [nats per token]: KL(behaviour || target) before
    rejection
  update/obrs_kl_after [nats per token]: KL(behaviour || target) of the tokens
    kept
  update/obrs_empty [updates]: of the step that kept no token, and changed
    nothing
"""

import dataclasses
from typing import Callable, Mapping, NamedTuple, Optional

from flax import struct
import jax
import jax.numpy as jnp

from jaxrl_llm.learner.options import RejectionChoices
from jaxrl_llm.ops import obrs, policy_losses
from jaxrl_llm.types import Array

# Stream of the mask's noise. The sampler folds the step into the run's key, and
# no step is as large.
NOISE = 1 << 31

@dataclasses.dataclass(frozen=True)
class Rejection(RejectionChoices):
  """Static choices.

  The normaliser z='exact' needs the actor's parameters if the target is
  'p_new'; top_k=0 with it leaves out the metrics of the top-k normaliser.

  Attributes:
    decoupled: whether the actor is another model than the policy.
  """
  decoupled: bool = False

  @property
  def scores_z(self) -> bool:
    """Whether `score` computes the normaliser: both policies are known then."""
    return self.target == 'p_ref' and (self.z == 'topk' or self.decoupled)

  @property
  def needs_actor(self) -> bool:
    """Whether an update needs the actor's parameters."""
    return self.target == 'p_new' and self.z == 'exact'

  @property
  def uses_top(self) -> bool:
    """Whether the sampler has to record its likeliest tokens."""
    return (self.scores_z and self.z == 'topk') or self.needs_top

  @property
  def needs_top(self) -> bool:
    """Whether an update needs the sampler's likeliest tokens."""
    return self.target == 'p_new' and self.top_k > 0


@struct.dataclass
class Calibration:
  """Estimates that outlive an update.

  Attributes:
    kappa: [] factor of the top-k normaliser that corrects its bias; it starts
      at 1.
    alpha: [] share of accepted tokens; it starts at 1.
  """
  kappa: Array
  alpha: Array


def init() -> Calibration:
  """Returns the calibration before the first update."""
  return Calibration(jnp.ones(()), jnp.ones(()))


def noise(identity: Array, update: Array, width: int) -> Array:
  """Draws the mask's noise.

  It depends on the rows' names and the update's number, never on a place in a
  batch.

  Args:
    identity: [B, 3] uint32: seed of the run, group and sample of each row.
    update: [] number of the update.
    width: T.

  Returns:
    [B, T] float32 in [0, 1).
  """
  # By the row's names: the same mask on any devices, in any microbatch, and in
  # the calibration's own pass.
  def row(seed, group, sample):
    key = jax.random.key(seed)
    for number in (NOISE, update, group, sample):
      key = jax.random.fold_in(key, number)
    return jax.random.uniform(key, (width,))

  return jax.vmap(row)(*identity.T)


class Context(NamedTuple):
  """Inputs of a microbatch's rejection, beside its rows.

  Attributes:
    cfg: choices.
    calibration: that the batch uses.
    noise: [B, T] in [0, 1), or None.
    z, z_topk: [B, t] normalisers, exact and over the sampler's likeliest
      tokens, or None.
  """
  cfg: Rejection
  calibration: Calibration
  noise: Optional[Array]
  z: Optional[Array]
  z_topk: Optional[Array]


class TokenFacts(NamedTuple):
  """Facts about the tokens of some rows, without gradient.

  Attributes:
    acceptance: [B, t] float32; 0 where masked.
    keep: [B, t] float32, factor of the token's loss; 0 where masked.
    z: [B, t] float32, the normaliser before kappa; 0 where masked.
    z_topk: [B, t] float32 or None, the top-k normaliser before kappa.
  """
  acceptance: Array
  keep: Array
  z: Array
  z_topk: Optional[Array]


def tokens(
    cfg: Rejection, logprobs: obrs.Logprobs, mask: Array, lam: Array, *,
    z: Optional[Array] = None, z_topk: Optional[Array] = None,
    noise: Optional[Array] = None) -> TokenFacts:
  """Computes the acceptance of tokens, and their mask.

  Args:
    cfg: choices.
    logprobs: [B, t], the behaviour's tempered.
    mask: [B, t] bool, tokens that count; the others may hold anything.
    lam: [] threshold.
    z: [B, t] exact normaliser, for 'exact', if it is not 1 / lam or 1.
    z_topk: [B, t] normaliser over the sampler's likeliest tokens.
    noise: [B, t] in [0, 1), for the mask 'sampled'.
  """
  real = lambda x: None if x is None else jax.lax.stop_gradient(
      jnp.where(mask, x, 0.0))
  target = real(logprobs.of_target(cfg.target))
  acceptance = real(obrs.acceptance(target, real(logprobs.behaviour), lam=lam))
  # 'expected' has the mean of 'sampled' with less variance, but leaves no token
  # out of the loss.
  keep = {
      'sampled': lambda: noise < acceptance,
      'expected': lambda: acceptance,
      'none': lambda: mask}[cfg.mask]()
  if cfg.z == 'topk':
    z = z_topk
  elif cfg.target == 'p_ref' and not cfg.decoupled:
    # The actor is the old policy: both distributions are one.
    z = jnp.broadcast_to(jnp.minimum(1.0, 1.0 / lam), mask.shape)
  return TokenFacts(
      acceptance, jnp.where(mask, keep, 0.0), real(z), real(z_topk))


def counts(cfg: Rejection, facts: TokenFacts, mask: Array) -> dict[str, Array]:
  """Returns the sums over tokens that `calibrate` needs, by name."""
  estimate = facts.keep if cfg.alpha == 'mask' else facts.acceptance
  z = facts.z if facts.z_topk is None else facts.z_topk
  return {name: jnp.sum(x, dtype=jnp.float32) for name, x in dict(
      tokens=mask, estimate=estimate, keep=facts.keep, z=z).items()}


def calibrate(
    cfg: Rejection, sums: Mapping[str, Array], previous: Calibration, *,
    own: bool) -> Calibration:
  """Computes the calibration from the sums of a batch.

  Args:
    cfg: choices.
    sums: of `counts`, over the whole batch.
    previous: calibration to keep if no token is accepted.
    own: whether this batch uses it. Its accepted tokens are then counted; for
      the next batch their share is estimated, like alpha in kappa.
  """
  accepted = sums['keep' if own or cfg.mask == 'none' else 'estimate']
  kappa = previous.kappa
  if cfg.z == 'topk' or cfg.needs_top:  # else there is no top-k normaliser
    kappa = obrs.kappa(sums['estimate'], sums['z'], previous=kappa)
  new = Calibration(kappa, accepted / jnp.maximum(sums['tokens'], 1.0))
  # Without an accepted token there is nothing to estimate from.
  return jax.tree.map(
      lambda now, before: jnp.where(sums['keep'] > 0, now, before), new,
      previous)


def accepted_share(
    cfg: Rejection, facts: TokenFacts, mask: Array, alpha: Array,
    aggregation: str) -> Array:
  """Returns the share of tokens that the loss divides by, [] or [B, 1].

  The weights of `policy_losses.token_weights` divide by all tokens of the batch
  or of the row. Divided by this share, they count the accepted ones.

  Args:
    cfg: choices.
    facts: of `tokens`.
    mask: [B, t] bool, tokens that count.
    alpha: [] share of accepted tokens of the batch.
    aggregation: one of `policy_losses.AGGREGATIONS`; 'constant' counts no
      tokens.
  """
  if cfg.denominator == 'all' or aggregation == 'constant':
    return jnp.ones(())
  if aggregation == 'token_mean':
    return alpha
  # A row without an accepted token has no loss, whatever it is divided by.
  kept, count = (
      jnp.sum(x, axis=1, keepdims=True, dtype=jnp.float32)
      for x in (facts.keep, mask))
  return jnp.where(kept > 0, kept / jnp.maximum(count, 1.0), 1.0)


def factors(
    context: Context, logprobs: obrs.Logprobs, advantages: Array, mask: Array,
    params: Mapping[str, Array], *, aggregation: str, clipped: bool,
    correction: Optional[Callable[[Array, Array], Array]],
) -> tuple[TokenFacts, Array, dict[str, Array]]:
  """Computes the factors of the tokens' losses.

  Args:
    context: of the microbatch.
    logprobs: [B, t], 0 where masked.
    advantages: [B] or [B, t].
    mask: [B, t] bool, tokens that count.
    params: lam, c1 and c2.
    aggregation: one of `policy_losses.AGGREGATIONS`.
    clipped: whether the surrogate has a ratio of new to old probability.
    correction: (log x [B, T], mask) -> weights, F in place of the bound c1;
      None for this bound.

  Returns:
    Facts, of `tokens`; the factor [B, t] float32, mask times weight, divided by
    `accepted_share`, 0 where masked; and metrics, name to [B, t], per token:
    importance, the weight; and those of the module but kappa and empty, without
    their prefix.
  """
  cfg, lam = context.cfg, params['lam']
  logprobs = logprobs._replace(new=jax.lax.stop_gradient(logprobs.new))
  facts = tokens(
      cfg, logprobs, mask, lam, z=context.z, z_topk=context.z_topk,
      noise=context.noise)
  kappa = context.calibration.kappa
  z = facts.z * kappa if cfg.z == 'topk' else facts.z
  nowhere = jnp.zeros_like(mask)
  weight = obrs.TokenWeights(jnp.ones_like(facts.keep), nowhere, nowhere)
  if cfg.weight:
    # Without a ratio in the surrogate, the second factor is left out (v1, B.1).
    weight = obrs.weights(
        logprobs, z, mask, lam=lam, c1=params['c1'],
        c2=params['c2'] if clipped else None, target=cfg.target,
        correction=correction)
  gap = logprobs.behaviour - logprobs.of_target(cfg.target)
  # log q'/p = log min(q, p / lam) - log Z - log p.
  kept_gap = jnp.minimum(gap, -jnp.log(lam)) - jnp.log(jnp.where(z > 0, z, 1.0))
  rejected = 1.0 - facts.keep
  sign = policy_losses.by_token(advantages)
  metrics = dict(
      importance=weight.weight, obrs_acceptance=facts.acceptance,
      obrs_kept=facts.keep, obrs_z=z, obrs_kl_before=gap,
      obrs_z_std=(1.0 - z) ** 2,  # from 1, for `metrics`
      # By the acceptance, not the mask: the same mean with less variance.
      obrs_kl_after=facts.acceptance * kept_gap,
      obrs_at_c1=weight.at_c1, obrs_at_c2=weight.at_c2,
      obrs_rejected_positive=jnp.where(sign > 0, rejected, 0.0),
      obrs_rejected_negative=jnp.where(sign < 0, rejected, 0.0))
  if cfg.z == 'exact' and facts.z_topk is not None:
    metrics['obrs_z_error'] = jnp.abs(kappa * facts.z_topk - z)
  share = accepted_share(
      cfg, facts, mask, context.calibration.alpha, aggregation)
  return facts, facts.keep * weight.weight / share, metrics


def metrics(
    counts: Mapping[str, Array], sums: dict[str, Array],
    calibration: Calibration) -> dict[str, Array]:
  """Computes a batch's metrics that are no means over all its tokens.

  Args:
    counts: sums over the batch, from `counts`.
    sums: sums over tokens of the metrics of `factors`; kl_after and z_std, of
      squared distances from 1, are taken out.
    calibration: that the batch used.

  Returns:
    obrs_kappa; obrs_empty, 1 if there are tokens and none is accepted, and the
    update changes nothing; obrs_kl_after, a mean over accepted tokens;
    obrs_z_std.
  """
  accepted, count = sums['obrs_acceptance'], jnp.maximum(counts['tokens'], 1)
  square, mean = sums.pop('obrs_z_std') / count, sums['obrs_z'] / count
  return dict(
      obrs_kappa=calibration.kappa,
      obrs_z_std=jnp.sqrt(jnp.maximum(square - (1.0 - mean) ** 2, 0.0)),
      obrs_empty=(counts['tokens'] > 0) & (counts['keep'] == 0),
      obrs_kl_after=sums.pop('obrs_kl_after') / jnp.where(
          accepted > 0, accepted, 1.0))
