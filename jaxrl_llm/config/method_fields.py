"""Fields of Jackpot, SPEED, replay and CBS: see `config/fields.py`."""

from jaxrl_llm.config.field import ANY, Field, SOME

METHODS = (
    Field('jackpot.target', 'p_new', 'policy to learn from: p_new (the one in '
          'training) or p_ref (the one at the step of the rollout)',
          choices=('p_new', 'p_ref')),
    Field('jackpot.lam', 1.0, 'a token is kept with probability target / (lam '
          'behaviour), at most 1; a smaller one keeps more',
          range='(0, inf)'),
    Field('jackpot.mask', 'sampled', 'what is kept: sampled (tokens, at '
          'random), expected (each, times its probability of being kept) or '
          'none (all)', choices=('sampled', 'expected', 'none')),
    Field('jackpot.weight', True, 'weight the kept tokens by target over kept '
          'probability'),
    Field('jackpot.c1', 3.0, 'bound of that weight, in place of '
          'loss.importance; with another loss.importance, that bounds it',
          range='(0, inf]'),
    Field('jackpot.c2', 1.3, 'bound of old over new probability, with '
          'jackpot.target=p_new: just above 1 + loss.clip_high',
          range='(0, inf]'),
    Field('jackpot.z', 'topk', 'normaliser of the kept probabilities: topk '
          '(over the likeliest tokens, times kappa) or exact (with p_new, one '
          'more forward pass and a copy of the weights)',
          choices=('topk', 'exact')),
    Field('jackpot.top_k', 20, 'likeliest tokens recorded at each position '
          '(0, with jackpot.z=exact: none)', range=ANY),
    Field('jackpot.alpha', 'acceptance', 'mean acceptance in kappa: of the '
          'probabilities (acceptance) or of the sampled mask (mask)',
          choices=('acceptance', 'mask')),
    Field('jackpot.two_pass', False, 'with p_new, compute kappa of the batch '
          'itself in one more forward pass, not of the update before'),
    Field('jackpot.denominator', 'accepted', 'tokens that the loss divides by: '
          'accepted or all', choices=('accepted', 'all')),

    Field('speed.n_init', 4, 'samples that screen a prompt, with '
          'curriculum=speed; prompts that qualify are continued to '
          'samples_per_prompt', range=SOME),
    Field('speed.rule', 'signal', 'what qualifies: signal (the outcomes with '
          "the most |advantage| per sample, under a prior learned from the "
          "run's screens) or pass_rate (mean reward between p_low and p_high)",
          choices=('signal', 'pass_rate')),
    Field('speed.p_low', 0.0, 'with speed.rule=pass_rate, the mean reward of a '
          'screen must be above this', range='(-inf, inf)'),
    Field('speed.p_high', 1.0, 'with speed.rule=pass_rate, the mean reward of '
          'a screen must be below this', range='(-inf, inf)'),
    Field('speed.capacity', None, 'groups that are continued or wait for a '
          'batch; screening pauses while there is no room for those of a step '
          '(none: room for two steps and actor.lag)', range=SOME,
          kind=int | None),
    Field('speed.max_rounds', None, 'most batches trained on in a step (none: '
          'all that are full)', range=SOME, kind=int | None),
    Field('speed.patience', 50, 'steps in a row without a finished group that '
          'has signal, after which the run ends', range=SOME,
          affects=()),

    Field('replay.rounds', 1, 'batches whose rows can be selected, with '
          "selection=random, newest or replay (1: only the round's own)",
          range=SOME),
    Field('replay.rows', None, 'rows of a round (none: as many as a batch has; '
          'with replay, as all these batches have)', range=SOME,
          kind=int | None),

    Field('cbs.scope', 'global', 'what selection=cbs picks from: global (the '
          'last cbs.rounds batches; as many rows as one has) or intra_group (a '
          'share cbs.keep of each group)', choices=('global', 'intra_group')),
    Field('cbs.rounds', 2, 'batches whose rows can be picked, with '
          'cbs.scope=global', range=SOME),
    Field('cbs.keep', 0.3, 'share of the responses to train on, rounded down, '
          'with cbs.scope=intra_group', range='(0, 1]'),
    Field('cbs.pool', False, 'with cbs.scope=intra_group, pick that share of '
          'all groups together'),
    Field('cbs.learning_rate', 1e-4, 'learning rate of the scheduler, which '
          'scores the responses', range=ANY),
    Field('cbs.width', 64, "width of the scheduler's hidden layers",
          range=SOME),
    Field('cbs.layers', 2, "number of the scheduler's hidden layers",
          range=ANY),
    Field('cbs.warmup', 50, 'batches at the start that train on the newest '
          'responses', range=ANY),
    Field('cbs.epsilon', 1.0, 'probability of the newest response in place of '
          'the best one, at the start', range='[0, 1]'),
    Field('cbs.epsilon_decay', 0.008, 'what a batch takes off that probability '
          'once cbs.warmup is over, counted from the first batch', range=ANY),
    Field('cbs.epsilon_min', 0.2, 'least probability of the newest response',
          range='[0, 1]'),
    Field('cbs.alpha', 0.9, 'weight of the NEWEST gain in its averages: at .9 '
          'the squeezed gain lies between .26 and .74', range='(0, 1]'),
    Field('cbs.entropy_weight', 100.0, 'penalty of a nat by which the entropy '
          'rises above cbs.entropy_min; at 100 it can dwarf the gain',
          range=ANY),
    Field('cbs.entropy_min', 0.1, 'nats per token up to which no rise of the '
          'entropy is penalised', range='(-inf, inf)'),
    Field('cbs.ablate', 'none', 'part of the reward to leave out: none, '
          'raw_gain (averages and sigmoid of the gain) or no_entropy (the '
          'penalty)', choices=('none', 'raw_gain', 'no_entropy')),
)
