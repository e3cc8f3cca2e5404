"""Every equation, table and figure of the papers, and where it is here.

`PARTS` has a row for each: its name, TRUE, DIFFERS or NOT_HERE, and where it is
or why it is not. Files are named as in the documentation, from the package or
from the repository. docs/papers.md is made from it.
"""

from typing import NamedTuple

TRUE, DIFFERS, NOT_HERE = 'true', 'differs', 'not here'
_PROOF = 'a step of a proof'


class Part(NamedTuple):
  """A part of a paper.

  Attributes:
    name: such as 'Eq. 3', 'Eq. 4 to 7' or 'Table 2'.
    verdict: TRUE, DIFFERS or NOT_HERE.
    where: the place here, how it differs, or why it is not here.
  """
  name: str
  verdict: str
  where: str


class Paper(NamedTuple):
  """A paper's parts.

  Attributes:
    title: of the paper, with its place.
    prefix: of its experiments' names.
    parts: in the order of the paper.
  """
  title: str
  prefix: str
  parts: tuple[Part, ...]


_PKPO = (
    Part('Eq. 1, 2', TRUE, 'the objective; `ops/pkpo.py`, `pass_at_k` '
         'estimates it'),
    Part('Eq. 3', TRUE, '`ops/pkpo.py`, `pass_at_k`; of an evaluation '
         '`evaluation/estimators.py`, `pass_at_k`'),
    Part('Eq. 4 to 7', NOT_HERE, f'{_PROOF} of Theorem 1'),
    Part('Eq. 8', TRUE, '`ops/pkpo.py`, `s`, of rewards 0 and 1'),
    Part('Eq. 9', TRUE, 'the policy gradient that `learner/update.py`, '
         '`weighted_sum` takes'),
    Part('Eq. 10', TRUE, 'Theorem 2, which is Theorem 4 for rewards of 0 and '
         '1'),
    Part('Eq. 11', TRUE, 'the objective; `ops/pkpo.py`, `max_at_k` estimates '
         'it'),
    Part('Eq. 12 to 14', TRUE, '`ops/pkpo.py`, `max_at_k`'),
    Part('Eq. 15 to 17', NOT_HERE, f'{_PROOF} of Theorem 3'),
    Part('Eq. 18', TRUE, '`loss.aggregation` constant, with n times the '
         'transform as advantage: `ops/pkpo.py`, `advantage`'),
    Part('Eq. 19 to 21', TRUE, '`ops/pkpo.py`, `s`; `ops/combinations.py`, '
         '`log_misses`, has the ratios of binomials'),
    Part('Eq. 22', TRUE, 'Theorem 4: `tests/ops/pkpo_test.py` compares the '
         'mean of the estimates with the gradient'),
    Part('Eq. 23 to 25', NOT_HERE, f'{_PROOF} of Theorem 4'),
    Part('Eq. 26', TRUE, '`ops/advantages.py`, `rloo`, and `ops/pkpo.py`, '
         '`advantage` at k=1'),
    Part('Eq. 27 to 29', TRUE, '`ops/pkpo.py`, `sloo`'),
    Part('Eq. 30 to 32', DIFFERS, '`ops/pkpo.py`, `_n_sloo`: two cumulative '
         'sums in place of the recursion; the same numbers'),
    Part('Eq. 33, 34', DIFFERS, '`ops/pkpo.py`, `sloo_minus_one`: one '
         'cumulative sum of differences, with exact zeros and k=1; the same '
         'numbers'),
    Part('Eq. 35', TRUE, '`notebooks/pkpo.ipynb`'),
    Part('Eq. 36 to 39', NOT_HERE, 'steps to Eq. 40'),
    Part('Eq. 40', TRUE, '`ops/pkpo.py`, `pass_at_k_variance`'),
    Part('Eq. 41 to 47', NOT_HERE, f'{_PROOF} of Theorem 2'),
    Part('Eq. 48, 49', DIFFERS, '`ops/pkpo.py`, `s`: one reverse cumulative '
         'sum; the same numbers'),
    Part('Listing 1', DIFFERS, '`ops/pkpo.py`: the same numbers without its '
         'recursions, and k=1, integer rewards and samples that are left out; '
         '`tests/reference/pkpo.py` has the sums over subsets and the matrix '
         'of Eq. 19'),
    Part('Theorems 5 to 7', DIFFERS, '`ops/pkpo.py` takes O(n log n), where '
         'they have O(k + n log n)'),
    Part('Theorem 8, Corollary 2', TRUE, 'no unbiased estimator for k > n: '
         '`ops/pkpo.py` raises; for traced values `pass_at_k` gives NaN, and '
         'the transforms take k=n'),
    Part('Theorem 9, Lemma 2, Corollary 1', NOT_HERE, 'steps of proofs'),
    Part('Table 1', TRUE, '`configs/pkpo/gemma2_9b_math.py`, not run at this '
         'size'),
    Part('Table 2', TRUE, '`configs/pkpo/llama31_8b_math.py`, not run at this '
         'size'),
    Part('Table 3', TRUE, '`configs/pkpo/gemma2_9b_mbpp.py`, not run at this '
         'size'),
    Part('Table 4', TRUE, '`configs/pkpo/llama31_8b_mbpp.py`, not run at this '
         'size'),
    Part('Table 5', TRUE, '`configs/pkpo/gemma2_9b_arc.py`, not run at this '
         'size; small, `benchmarks/results/claims/pkpo_arc.md`'),
    Part('Table 6', TRUE, '`configs/pkpo/llama31_8b_arc.py`, not run at this '
         'size; small, as Table 5'),
    Part('Table 7', TRUE, '`configs/pkpo/gemma2_2b_math.py`, not run at this '
         'size; small, `benchmarks/results/claims/pkpo.md`'),
    Part('Table 8', TRUE, '`configs/pkpo/gemma2_2b_mbpp.py`, not run at this '
         'size'),
    Part('Figure 1', TRUE, '`notebooks/pkpo.ipynb`'),
    Part('Figure 2', TRUE, '`notebooks/pkpo.ipynb`'),
    Part('Figure 3', TRUE, 'the arm of annealed k of '
         '`configs/pkpo/gemma2_2b_math.py`; the figure does not say its model; '
         'small, `benchmarks/results/claims/pkpo_bonus.md`, and from 2 to 1, '
         '`benchmarks/results/claims/pkpo.md`'),
    Part('Figure 4', TRUE, '`ops/pkpo.py`, `partitioned`; '
         '`notebooks/pkpo.ipynb`'),
    Part('Figure 5', TRUE, '`notebooks/pkpo.ipynb`'),
    Part('Figure 6', TRUE, 'metrics of each step: '
         '`loop/step_metrics.py`, `of_solved`, and the entropy'),
    Part('Figure 7', TRUE, 'metrics of each step: `eval_k`'),
    Part('Figure 8', TRUE, '`configs/pkpo/gemma2_2b_arc.py`; the figure does '
         'not say its model; small, on Countdown, '
         '`benchmarks/results/claims/pkpo_mixed.md`'))

_JACKPOT_V2 = (
    Part('Eq. 1', TRUE, '`ops/policy_losses.py`, `clip`'),
    Part('Eq. 2', TRUE, '`ops/importance.py`, `identity`, `tis`, `icepop`'),
    Part('Definitions 3.1, 3.2', TRUE, '`ops/obrs.py`, `acceptance`'),
    Part('Theorem 3.3', TRUE, '`tests/ops/obrs_test.py`'),
    Part('Theorem 3.4', TRUE, '`ops/obrs.py`, `log_lam_for_rate`; '
         '`notebooks/jackpot.ipynb` compares with other rules'),
    Part('Eq. 3', TRUE, '`ops/obrs.py`, `acceptance`, `accept_mask`; '
         '`jackpot.mask` expected is ours'),
    Part('Eq. 4', TRUE, '`ops/obrs.py`, `normalizer`'),
    Part('Eq. 5', TRUE, '`ops/obrs.py`, `weights`; the loss is divided by the '
         'accepted tokens (`jackpot.denominator`), which the paper leaves '
         'open'),
    Part('Eq. 6', TRUE, '`learner/actor.py`, `weighted_sum`'),
    Part('Eq. 7', TRUE, '`learner/actor.py`, `weighted_sum`; the text calls it '
         'both forward and reverse, the formula is KL(policy || actor)'),
    Part('Eq. 8', TRUE, '`actor.distill`; `actor.kl_target` is ours, the '
         "closed loop of the paper's section 8"),
    Part('Section 4.4.1, Z over top-k', DIFFERS, '`ops/obrs.py`, '
         '`normalizer_topk`: a token of one set counts once, and its unknown '
         'probability comes from the actor that is trained, else it is 0'),
    Part('Section 4.4.2, kappa', DIFFERS, '`ops/obrs.py`, `calibration`: mean '
         'acceptance in place of the share accepted (`jackpot.alpha`), and '
         'kappa of the update before (`jackpot.two_pass`), by default'),
    Part('Section 4.4.3, cost', TRUE, 'no further pass by default; with the '
         'vocabulary of Qwen3, score and update take .99 times as long as '
         'without, and the head of a decode step 1.08: '
         '`benchmarks/results/obrs.md`. Small runs take 1.02 to 1.07 times as '
         'long as with clip (`benchmarks/results/claims/jackpot.jsonl`); large '
         'ones, and what a smaller actor saves, were not measured'),
    Part('Algorithm 1', DIFFERS, '`learner/rejection.py`, `factors`; Z and '
         'kappa as above'),
    Part('Table 1', TRUE, '`configs/jackpot/qwen3_1p7b_4b_math.py`, with 8b '
         'too, and `configs/jackpot/qwen25_1p5b_3b_math.py`, not run at this '
         'size; small, `benchmarks/results/claims/jackpot_actor.md`'),
    Part('Table 2', DIFFERS, '`configs/jackpot/qwen3_4b_8bit_math.py`, and '
         'for 64x two arms of `configs/jackpot/qwen3_4b_math.py` with the '
         'steps of Table 3, since the table gives none; not run at this size; '
         'small, `benchmarks/results/claims/jackpot_actor.md` (float8) and '
         '`benchmarks/results/claims/jackpot.md`'),
    Part('Table 3', TRUE, '`configs/jackpot/qwen3_4b_math.py`, with 128x too, '
         'and `configs/jackpot/qwen3_8b_math.py`, not run at this size; small, '
         '`benchmarks/results/claims/jackpot.md`, and for 128 updates '
         '`benchmarks/results/claims/jackpot_128.md`'),
    Part('Figure 1', TRUE, 'arms of `configs/jackpot/qwen3_1p7b_4b_math.py` '
         'with 8b; KL: update/actor_kl. The abstract has up to 300 updates, '
         "Table 1's 15,000 examples make 235"),
    Part('Figure 2', TRUE, '`notebooks/jackpot.ipynb`'),
    Part('Figure 3', NOT_HERE, 'a drawing of the method'),
    Part('Figure 4', TRUE, 'the runs of Table 1'),
    Part('Figure 5', TRUE, 'the runs of Tables 2 and 3'))

_JACKPOT_V1 = (
    Part('Eq. 1, 5', TRUE, '`ops/policy_losses.py`, `clip`'),
    Part('Eq. 2, 6', TRUE, '`ops/importance.py`, `tis`'),
    Part('Eq. 3, 4', TRUE, '`ops/obrs.py`, `acceptance`, `normalizer`'),
    Part('Eq. 7, 8', TRUE, '`ops/obrs.py`, `weights`, with `jackpot.target` '
         'p_ref'),
    Part('Eq. 9 to 11', TRUE, '`ops/obrs.py`, `weights`, with `jackpot.target` '
         'p_new'),
    Part('Section 4.5, less than 3% more compute', TRUE, 'as section 4.4.3 of '
         'v2'),
    Part('Appendix A, Theorem 1, Proposition 1 and Corollary 1', TRUE,
         '`tests/ops/obrs_test.py`; `notebooks/jackpot.ipynb`'),
    Part('Algorithm 2', NOT_HERE, 'it draws until enough samples are accepted; '
         'training masks tokens and draws none anew'),
    Part('Appendix B.1, TIS-adjusted', DIFFERS, '`ops/policy_losses.py`, '
         '`cispo` with clip_low 1: the gradient of min(p_new / p_old, 3) log '
         'p_new; the appendix has p_inf for p_old, and no bound'),
    Part('Appendix B.1, last equation', TRUE, '`ops/obrs.py`, `weights` '
         'without c2, for `loss.objective` no_clip'),
    Part('Algorithm 1', DIFFERS, 'as Algorithm 1 of v2'),
    Part('Table 1', TRUE, '`configs/jackpot/qwen3_4b_math.py`, which has TIS '
         'too, and `configs/jackpot/qwen3_8b_math.py`, not run at this size'),
    Part('Table 2', NOT_HERE, 'a frozen actor of Qwen2.5-1.5B-Instruct or '
         'Math-1.5B-Instruct with Qwen2.5-3B-Base; '
         '`configs/jackpot/qwen25_1p5b_3b_math.py` with another actor, '
         '`actor.ppo` off and `actor.distill` 0; small, frozen arms of '
         '`benchmarks/results/claims/jackpot_actor.md`'),
    Part('Tables 3, 4', TRUE, 'Table 1 in full'),
    Part('Table 5', TRUE, 'arms of `configs/jackpot/qwen3_4b_8bit_math.py`, '
         'not run at this size; the table gives neither model nor batch; '
         'small, float8 in `benchmarks/results/claims/jackpot_actor.md`'),
    Part('Table 6', TRUE, '`configs/jackpot/qwen3_4b_32x_math.py`, not run at '
         'this size, with the setting of Table 7; the table gives 64/2048 '
         'alone; small, `benchmarks/results/claims/jackpot.md`'),
    Part('Table 7', TRUE, '`configs/jackpot/qwen3_4b_32x_math.py`, not run at '
         'this size'),
    Part('Table 8', TRUE, 'arms of `configs/jackpot/qwen3_1p7b_4b_math.py` '
         'with an actor that does not learn, not run at this size; the table '
         'does not say its batch'),
    Part('Table 9', TRUE, '`configs/jackpot/qwen3_4b_32x_math.py`, not run at '
         'this size, with the setting of Table 7'),
    Part('Appendix C.3, Z and kappa for k of 10, 20 and 40', TRUE,
         'metrics of each step: update/obrs_z, update/obrs_z_error, '
         'update/obrs_kappa'),
    Part('Figure 1', TRUE, 'as Figure 1 of v2'),
    Part('Figure 2', TRUE, '`notebooks/jackpot.ipynb`'),
    Part('Figure 3', NOT_HERE, 'a drawing of the method'),
    Part('Figure 4', DIFFERS, 'the runs of Tables 1 and 5; (c) is Table 2, '
         'which is not here'))

_CBS = (
    Part('Eq. 1', TRUE, '`ops/policy_losses.py`, `clip`, `gspo`'),
    Part('Eq. 2', DIFFERS, '`learner/update.py`, `update`: AdamW, as the '
         "paper's footnote allows"),
    Part('Definition 3.1', TRUE, '`selection/cbs.py`, `create`, with '
         'cbs.scope=intra_group'),
    Part('Definition 3.2', TRUE, '`selection/cbs.py`, `create`, with '
         'cbs.scope=global'),
    Part('Eq. 3', TRUE, 'the sum of rewards that the bandit is after'),
    Part('Eq. 4', TRUE, '`ops/token_stats.py`, `TokenStats`, its entropy'),
    Part('Eq. 5', TRUE, '`selection/bandit.py`, `reward`, with '
         'cbs.ablate=raw_gain'),
    Part('Eq. 6', NOT_HERE, 'Eq. 11 replaces it'),
    Part('Eq. 7', DIFFERS, '`selection/bandit.py`, `train`: one step of Adam '
         'in place of SGD, on normalised features'),
    Part('Eq. 8', TRUE, '`selection/bandit.py`, `pick`'),
    Part('Eq. 9', TRUE, '`selection/bandit.py`, `epsilon`'),
    Part('Eq. 10', TRUE, '`selection/bandit.py`, `reward`'),
    Part('Eq. 11', TRUE, '`selection/cbs.py`, `create`'),
    Part('Eq. 12, 13', NOT_HERE, 'definitions of the analysis'),
    Part('Theorems 5.3, 5.4', NOT_HERE, 'bounds of the analysis; '
         '`notebooks/cbs.ipynb` measures a regret'),
    Part('Algorithm 1', TRUE, '`selection/cbs.py`, `create`; '
         '`loop/step.py`, `run_rounds`'),
    Part('Eq. 14, 15', TRUE, '`ops/policy_losses.py`, `clip`, with '
         '`loss.aggregation` sequence_mean'),
    Part('Eq. 16', TRUE, '`ops/policy_losses.py`, `clip`, with '
         '`loss.aggregation` token_mean; `curriculum/dynamic.py`, `create`'),
    Part('Eq. 17 to 19', TRUE, '`ops/policy_losses.py`, `gspo`'),
    Part('Definitions 3.3, B.1, Assumptions 5.1, 5.2, Lemmas B.2 to B.5',
         NOT_HERE, 'of the analysis'),
    Part('Eq. 20 to 28', NOT_HERE, 'lemmas and proofs of appendix B'),
    Part('Eq. 29 to 32', NOT_HERE, 'the argument for scores of single rows, '
         'appendix C'),
    Part('Table 1', TRUE, '`selection/bandit.py`, `features`'),
    Part('Table 2', TRUE, '`configs/cbs/qwen3_1p7b_math.py`, '
         '`configs/cbs/qwen3_4b_math.py`, `configs/cbs/qwen3_8b_math.py`, each '
         'with its six arguments, and `configs/grpo/qwen3_1p7b_math.py`, not '
         'run at this size; small, `benchmarks/results/claims/cbs.md`. The '
         'best checkpoint is that of the best mean over problems, the '
         "paper's over files"),
    Part('Table 3', TRUE, 'seconds of each phase are metrics; on two cores, '
         'with a model of 0.28 million parameters, picking takes 1.6% of a '
         'step (CBS) and 1.3 to 2.0% (CBS*): `benchmarks/results/cbs.md`'),
    Part('Table 4', TRUE, 'configs/cbs, every row'),
    Part('Table 5', TRUE, 'arms of `configs/cbs/qwen3_4b_math.py`, not run at '
         'this size; small, `benchmarks/results/claims/cbs.md`'),
    Part('Figure 1', NOT_HERE, 'a drawing of the method'),
    Part('Figure 2', TRUE, 'metrics of each step'),
    Part('Figure 3', TRUE, 'Table 5 as bars'),
    Part('Figure 4', DIFFERS, '`benchmarks/figures.py`, `cbs_4`, of the arm '
         'w/o Entropy; scores are means over problems, not over files'),
    Part('Figures 5 to 7', TRUE, 'metrics of each step: evaluation of each '
         'file, reward, seconds of the update'),
    Part('Figure 8', TRUE, '`benchmarks/figures.py`, `cbs_8`, of the arm w/o '
         'Entropy'),
    Part('Figure 9', TRUE, '`selection/bandit.py`, `correlations`; '
         '`notebooks/cbs.ipynb`'),
    Part('Figure 10', DIFFERS, '`benchmarks/figures.py`, `cbs_10`, means over '
         'problems, not over files; arms of `configs/cbs/qwen3_4b_math.py`, '
         'not run at this size'),
    Part('Figures 11, 12', TRUE, '`benchmarks/figures.py`, `cbs_cases`'))

_SPEED = (
    Part('Eq. 1', TRUE, '`sampling/generate.py`, `generate`'),
    Part('Eq. 2', TRUE, '`tasks/math.py`, `Math`'),
    Part('Eq. 3 to 5', TRUE, 'the objective and its gradient, '
         '`learner/update.py`, `weighted_sum`'),
    Part('Eq. 6', TRUE, 'a group of equal rewards has the advantage 0: '
         '`ops/advantages.py`, `rloo`'),
    Part('Eq. 7', TRUE, '`loss.aggregation` constant'),
    Part('Eq. 8', TRUE, '`ops/advantages.py`, `rloo`'),
    Part('Eq. 9', TRUE, '`notebooks/speed.ipynb`'),
    Part('Eq. 10', NOT_HERE, 'a bound of the gain of a step, Fact 1'),
    Part('Eq. 11', TRUE, 'Theorem 3.1: `notebooks/speed.ipynb`'),
    Part('Algorithm 1', TRUE, '`curriculum/speed.py`, `create`, with '
         'speed.rule=pass_rate; its default, signal, is ours'),
    Part('Eq. 12', TRUE, 'Theorem 4.1: `ops/screening.py`, `objective_slope`, '
         "Phi'; `tests/curriculum/speed_test.py` measures it; "
         '`notebooks/speed.ipynb` integrates it to Phi'),
    Part('Eq. 13, 14', NOT_HERE, f'{_PROOF} of Theorem 4.1'),
    Part('Algorithm 2', DIFFERS, '`curriculum/speed.py`, `create`: first in '
         'first out, where the paper samples from its buffer; groups that '
         'were continued leave the accepted ones, which the text forgets'),
    Part('Table 1', TRUE, '`configs/speed/qwen25_1p5b_math.py`, '
         '`configs/speed/qwen25_7b_math.py`, not run at this size; small, '
         '`benchmarks/results/claims/speed_rloo.md` and, with DAPO, '
         '`benchmarks/results/claims/speed.md`, where generation takes 22% of '
         "RLOO's time. Choose the data by task.path; the targets, in the "
         'headers, are of each file'),
    Part('Figure 1', TRUE, 'a drawing, and the mean of the runs of Table 1 '
         'with 7B'),
    Part('Figure 2', TRUE, '`benchmarks/figures.py`, `speed_2`, of an '
         'evaluation with eval.samples=50 on 1,000 of its problems'),
    Part('Figure 3', TRUE, 'the runs of Table 1'),
    Part('Figure 4', TRUE, '`benchmarks/figures.py`, `speed_4`'),
    Part('Figure 5', TRUE, 'arms of `configs/speed/qwen25_1p5b_math.py`, not '
         'run at this size'),
    Part('Figure 6', TRUE, 'the runs of Table 1'))

PARTS = (
    Paper('PKPO: Pass@K Policy Optimization (arXiv:2505.15201)', 'pkpo/',
          _PKPO),
    Paper('Jackpot, v2 (arXiv:2602.06107)', 'jackpot/', _JACKPOT_V2),
    Paper('Jackpot, v1 (under review)', '', _JACKPOT_V1),
    Paper('CBS: Contextual Rollout Bandits (arXiv:2602.08499)', 'cbs/', _CBS),
    Paper('SPEED (arXiv:2506.09016, withdrawn by an author on 4 March 2026, '
          'v3)', 'speed/', _SPEED))
