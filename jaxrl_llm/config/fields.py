"""Table of the fields of every config: name, default, range and meaning.

`config.base()` is built from it, `--help` prints it, and a value out of range
or not among the choices is refused by it. `affects` says what a field changes:
a run's resume, the cache of fine-tuned weights and the responses that an
evaluation keeps all ask the table. `table` adds the fields of the models, and
those of what a config chooses: a plug's hyperparameters come from its
signature.
"""

from jaxrl_llm.base import own_code, schedules
from jaxrl_llm.config.field import (
  ANY,
  EVALUATION,
  Field,
  ROUNDING,
  SFT,
  SOME,
  WEIGHTS,
)
from jaxrl_llm.models.config import PRESETS


class Lengths(tuple[int, ...]):
  """Type of a field that holds lengths, or AUTO: the run chooses them."""


class Texts(tuple[str, ...]):
  """Type of a field that holds texts with any characters."""


class Automatic(int):
  """Type of a field that holds a whole number, or AUTO: the run chooses it."""


AUTO = 'auto'

_INTS = tuple[int, ...]
_PATH = own_code.Path | None
_NOTHING = ()
EVERYTHING = (WEIGHTS, SFT, EVALUATION)
_LENGTH = (WEIGHTS, ROUNDING, EVALUATION)
_SAMPLING = (WEIGHTS, EVALUATION)
_SFT = (WEIGHTS, SFT)
_LAYOUT = (ROUNDING,)

FIELDS = (
    Field('seed', 0, 'seed of parameters, data order and samples',
          range='[0, 4294967295]', affects=EVERYTHING),
    Field('workdir', None, "folder of all that a run writes (none: runs/ and "
          "the config's name)", kind=_PATH, affects=_NOTHING),
    Field('steps', 100, 'steps of sampling, verifying and updating',
          range=ANY),
    Field('prompts_per_step', 32, 'problems in a train batch; one may come '
          'twice where an epoch ends', range=SOME),
    Field('curriculum', 'uniform', 'problems to sample, groups to train on'),
    Field('curriculum_prompts', None, 'new problems that a step samples (none: '
          'prompts_per_step)', range=SOME, kind=int | None),
    Field('selection', 'all_rows', 'rows to update on, once a batch is full'),
    Field('samples_per_prompt', 8, 'responses to each problem: its group',
          range=SOME),
    Field('max_prompt', 64, 'tokens a prompt may have', range=SOME,
          affects=_LENGTH),
    Field('max_response', 64, 'tokens a response may have, stop token '
          'included; a longer one is truncated', range=SOME, affects=_LENGTH),
    Field('off_policy', 'none', 'rollouts of another policy than the one in '
          'training: none (see loss.importance) or jackpot (rejects and '
          'weights their tokens)', choices=('none', 'jackpot')),
    Field('advantage', 'grpo', 'how rewards become advantages'),
    Field('drop_zero_advantage', False, 'leave rows whose advantage is 0 out '
          'of the update: faster, and no bonus or penalty acts on them'),
    Field('eval_k', (1, 2, 4, 8, 12, 16), 'k of the pass@k that every step '
          'reports of its own prompts; those above samples_per_prompt are left '
          'out', range=SOME, kind=_INTS, affects=_NOTHING),

    Field('task.name', 'countdown', 'problems and their verifier',
          affects=EVERYTHING),

    Field('model.hf', None, 'Hugging Face model, a folder or a name on the '
          'hub, or a GGUF file: its weights, tokeniser and type, in place of '
          'the preset; other fields of model: none keeps its value, 0 switches '
          'off',
          kind=_PATH, affects=EVERYTHING),
    Field('model.preset', 'tiny', f'which model: {", ".join(PRESETS)}',
          choices=tuple(PRESETS), affects=EVERYTHING),

    Field('lora.rank', 0, 'rank of the matrices that are trained in place of '
          'the weights; use 10 to 100 times the learning rate (0: no LoRA, '
          'all weights are trained)', range=ANY, affects=_SAMPLING),
    Field('lora.alpha', 16.0, 'scale of LoRA: alpha / rank times the product',
          range='(0, inf)', affects=_SAMPLING),
    Field('lora.targets', 'q|k|v|o|gate|up|down',
          'regular expression of the weights that get LoRA; experts get none',
          affects=_SAMPLING),

    Field('sampling.temperature', 1.0, 'divides the logits: a number, or '
          'a schedule such as 0:1.2,500:1 (evaluations take its last value)',
          range='(0, inf)', kind=schedules.Floats, affects=_SAMPLING),
    Field('sampling.top_k', 0, 'draw from this many likeliest tokens (0: all)',
          range='[0, 2147483647]', affects=_SAMPLING),
    Field('sampling.top_p', 1.0, 'draw from the likeliest tokens that hold '
          'this much probability (1: all)', range='(0, 1]', affects=_SAMPLING),
    Field('sampling.min_p', 0.0, 'draw from tokens at least this fraction as '
          'likely as the likeliest (0: all)', range='[0, 1]',
          affects=_SAMPLING),
    Field('sampling.stop', Texts(), 'texts that end a response, beside the '
          "model's stop tokens and the end of a turn in the template: one text "
          'as it is, or a JSON list such as ["\\n\\nQuestion:"]', kind=Texts,
          affects=_SAMPLING),
    Field('sampling.weights', None, "type of the weights that sample a step's "
          'responses: int8 or float8; off_policy=jackpot corrects the mismatch '
          '(none: the compute type, which evaluations always use)',
          kind=str | None, choices=('int8', 'float8')),
    Field('sampling.kv', None, 'type of the keys and values that decoding '
          "keeps for a step's responses: int8 or float8, see sampling.weights "
          '(none: the compute type, which evaluations always use)',
          kind=str | None, choices=('int8', 'float8')),
    Field('sampling.slots', 64, 'responses decoded at the same time on each '
          'data shard', range=SOME, affects=_NOTHING),
    Field('sampling.steps_per_refill', 2, 'decode steps between two refills of '
          'free slots', range=SOME, affects=_NOTHING),
    Field('sampling.chunk', None, 'cache positions per block of decode '
          'attention (none: all at once)', range=SOME, kind=int | None,
          affects=_NOTHING),
    Field('sampling.share_prompts', None, "keep a prompt's keys and values "
          'once for all its responses in decode, not a copy for each (none: '
          'with many times as many slots as prompts on a TPU or GPU)',
          kind=bool | None, affects=_NOTHING),
    Field('sampling.unroll', None, 'unroll the layers of a decode step: '
          'faster, but a slower compile and a second copy of the weights '
          '(none: on a CPU or GPU)', kind=bool | None, affects=_NOTHING),
    Field('sampling.prefill_prompts', None, 'prompts whose keys and values '
          'each data shard keeps at a time, in addition to those of its slots: '
          'less memory, but more and smaller prefills (none: all)', range=SOME,
          kind=int | None, affects=_NOTHING),

    Field('sampling.buckets', AUTO, 'prompt lengths to compile the prefill for '
          'in addition to max_prompt: lengths, auto (a few, chosen by the '
          "training prompts' lengths and kept for the run) or none",
          range=SOME, kind=Lengths, affects=_NOTHING),

    Field('loss.objective', 'clip', 'surrogate loss of a token'),
    Field('loss.aggregation', 'token_mean', 'how token losses are averaged: '
          'sequence_mean (GRPO), token_mean (DAPO) or constant (Dr. GRPO)',
          choices=('sequence_mean', 'token_mean', 'constant')),
    Field('loss.entropy_bonus', 0.0, 'weight of the entropy, in nats per token',
          range='(-inf, inf)'),
    Field('loss.kl_coef', 0.0, 'weight of the KL to the policy that RL started '
          'from (0: it is not computed)', range=ANY),
    Field('loss.kl_estimator', 'k3', 'estimator of that KL: k1, k2 or k3',
          choices=('k1', 'k2', 'k3')),
    Field('loss.importance', 'none', 'weight of a token by the ratio of old to '
          'behaviour probability'),
    Field('loss.behaviour', 'tempered', "the sampler's log-prob in that ratio: "
          'tempered (before top-k, top-p and min-p, as in training: equal '
          'policies have weight 1) or sampled (after: they have the '
          'probability kept)', choices=('tempered', 'sampled')),

    Field('loss.replay_experts', False, 'record the experts that the sampler '
          "chooses, and use them in training in place of the routers' own "
          'choice: rounding and quantised weights then change no choice; for '
          'models with experts'),

    Field('overlong.mode', 'none', 'truncated responses: none (judged like '
          'others), mask (not trained on) or penalty (soft, of DAPO)',
          choices=('none', 'mask', 'penalty')),
    Field('overlong.window', 0, 'tokens before max_response over which the '
          'penalty grows from 0 to 1', range=ANY),

    Field('optimizer.learning_rate', 1e-06, 'peak learning rate of AdamW',
          range=ANY),
    Field('optimizer.schedule', 'constant', 'after the warm-up: constant, '
          'linear or cosine (both to 0)',
          choices=('constant', 'linear', 'cosine')),
    Field('optimizer.decay_steps', None, 'optimiser steps at which linear and '
          'cosine reach 0, warm-up included (none: all of the run, if every '
          'step fills its batches)', range=SOME, kind=int | None),
    Field('optimizer.warmup_steps', 0, 'optimiser steps of linear warm-up',
          range=ANY),
    Field('optimizer.b1', 0.9, 'decay of the first moment', range='[0, 1)'),
    Field('optimizer.b2', 0.99, 'decay of the second moment', range='[0, 1)'),
    Field('optimizer.eps', 1e-08, "added to the second moment's root",
          range='(0, inf)'),
    Field('optimizer.weight_decay', 0.0, 'decoupled decay, times the learning '
          'rate; not on norms and biases', range=ANY),
    Field('optimizer.max_grad_norm', 1.0, 'longest global norm of a gradient; '
          'longer ones are scaled down (none: no limit)', range='(0, inf)',
          kind=float | None),

    Field('learner.epochs', 1, 'passes over the rows of a round', range=SOME),
    Field('learner.updates', 1, 'optimiser steps of each pass over a batch: a '
          'mini-batch has prompts_per_step x samples_per_prompt / this rows',
          range=SOME),
    Field('learner.tokens_per_microbatch', AUTO, 'most tokens of one forward '
          'and backward pass on each data shard, each prompt counted once: a '
          'number (at least one row) or auto (by the device, the model '
          'and the memory)',
          range=SOME, kind=Automatic, affects=_LAYOUT),
    Field('learner.vocab_chunk', None, 'tokens whose logits are computed at a '
          'time (none: as many as fit in 512 MB, or a 32nd of the memory of a '
          'GPU)', range=SOME, kind=int | None,
          affects=_LAYOUT),
    Field('learner.remat', AUTO, 'what the backward pass recomputes to save '
          'memory: none, matmuls (all but matrix products and attention), '
          'attention (all but attention), full (all: a third more time) or '
          'auto (by the memory)',
          choices=(AUTO, 'none', 'matmuls', 'attention', 'full'),
          affects=_LAYOUT),
    Field('learner.attention', 'auto', 'implementation in training and '
          'prefill: xla, splash (TPU), cudnn (NVIDIA, 16-bit) or auto (for '
          'rows of 256 tokens or more splash, of 1024 or more cudnn, if it '
          'can, else xla)',
          choices=('auto', 'xla', 'splash', 'cudnn'), affects=_LAYOUT),
    Field('learner.unroll', None, 'layers unrolled in the scan over layers: '
          'faster, but a slower compile if they are many (none: all of at most '
          '4 on a CPU, else 1)', range=SOME, kind=int | None, affects=_LAYOUT),

    Field('actor.lag', 0, 'steps between the sampling of responses and their '
          'use, as if sampling and training ran side by side; those of the '
          'last ones are not used', range=ANY),
    Field('actor.model.hf', None, 'another model that writes the responses: a '
          'folder or a name on the hub, with the vocabulary of the policy',
          kind=_PATH),
    Field('actor.model.preset', None, 'the same by preset; it starts as the '
          'policy would (none, and no actor.model.hf: the policy is the '
          'actor)', kind=str | None, choices=tuple(PRESETS)),

    Field('mesh.data', -1, 'shards of the responses (-1: all devices that are '
          'left)', affects=_NOTHING),
    Field('mesh.fsdp', 1, 'shards of responses, parameters and vocabulary',
          affects=_NOTHING),
    Field('mesh.tensor', 1, 'shards of heads, MLP or experts, and vocabulary',
          affects=_NOTHING),
    Field('mesh.learner_tensor', None, 'mesh.tensor of updates, a divisor of '
          "the sampler's: the rest of it joins mesh.fsdp there (none: the same "
          'mesh)', range=SOME, kind=int | None, affects=_NOTHING),
    Field('mesh.cpu_devices', None, 'devices that a CPU counts as; one per '
          'core is fastest while matrices are small (none: 1, or what the '
          'environment says)', range='[1, 4096]', kind=int | None,
          affects=_NOTHING),
    Field('mesh.keep_memory', None, 'whether the program keeps memory that it '
          'frees: faster with a large model on a CPU, slower with a small one '
          '(none: if JAX can only use a CPU, and a model has 20 million '
          'parameters or an hf)', kind=bool | None, affects=_NOTHING),

    Field('compilation_cache', AUTO, 'folder that keeps compiled programs for '
          "the next start: a path, or auto (in the user's folder for caches); "
          "JAX's own option JAX_COMPILATION_CACHE_DIR comes first (none: off)",
          kind=_PATH, affects=_NOTHING),

    Field('sft.path', (), 'rows of supervised fine-tuning, before RL or by '
          'jaxrl_llm.sft: files or data sets, as in task.path, and '
          'demonstrations for those of the task (none: demonstrations alone)',
          kind=tuple[str, ...], affects=_SFT),
    Field('sft.weights', (), 'share of each of sft.path in the rows (none: '
          'each by its number of rows)', range='(0, inf)',
          kind=tuple[float, ...], affects=_SFT),
    Field('sft.heldout', (), 'rows for the held-out loss: files or data sets',
          kind=tuple[str, ...], affects=_SFT),
    Field('sft.heldout_count', 0, 'rows of sft.path to hold out, in place of '
          'sft.heldout',
          range=ANY, affects=_SFT),
    Field('sft.steps', 0, 'supervised steps (0: those of sft.epochs)',
          range=ANY, affects=_SFT),
    Field('sft.epochs', None, 'passes over the rows, in place of sft.steps',
          range='(0, inf)', kind=float | None, affects=_SFT),
    Field('sft.batch', 64, 'rows in a step', range=SOME, affects=_SFT),
    Field('sft.batch_tokens', None, 'tokens in a step at most, prompts '
          'included, in place of sft.batch', range=SOME, kind=int | None,
          affects=_SFT),
    Field('sft.turns', 'all', "turns of the assistant that are learned: all or "
          'last', choices=('all', 'last'), affects=_SFT),
    Field('sft.max_length', None, 'tokens a row may have (none: max_prompt '
          'before the first one that is learned, and max_response from it on)',
          range='[2, inf)', kind=int | None, affects=_SFT),
    Field('sft.too_long', 'drop', 'rows with more tokens: drop, or cut behind '
          'the limit', choices=('drop', 'cut'), affects=_SFT),
    Field('sft.learning_rate', None, 'peak learning rate (none: 2e-5 with '
          'model.hf, 2e-4 if LoRA alone is trained, else 3e-3)', range=ANY,
          kind=float | None, affects=_SFT),
    Field('sft.schedule', 'cosine', 'after the warm-up: constant, linear or '
          'cosine (both to 0)', choices=('constant', 'linear', 'cosine'),
          affects=_SFT),
    Field('sft.warmup_steps', None, 'steps of linear warm-up (none: a '
          'twentieth)', range=ANY, kind=int | None, affects=_SFT),
    Field('sft.weight_decay', 0.1, 'decoupled decay, times the learning rate; '
          'not on norms and biases', range=ANY, affects=_SFT),
    Field('sft.lora', None, 'with lora.rank, train LoRA alone here too, not '
          'all weights (none: with model.hf)', kind=bool | None, affects=_SFT),
    Field('sft.eval_every', 0, 'steps between held-out losses, each with a '
          'checkpoint; the best is kept (0: only before and after)', range=ANY,
          affects=_SFT),
    Field('sft.cache', 'runs/sft-cache', 'folder that keeps the result for '
          'runs with the same SFT (none: off)', kind=_PATH, affects=_NOTHING),

    Field('eval.every', 50, 'steps between evaluations (0: only before and '
          'after)', range=ANY, affects=_NOTHING),
    Field('eval.problems', 0, 'held-out problems (0: all)', range=ANY,
          affects=_NOTHING),
    Field('eval.samples', 8, 'responses to each, and a greedy one', range=SOME,
          affects=_NOTHING),
    Field('eval.slots', None, 'responses decoded at the same time in an '
          'evaluation, on each data shard, by a sampler of its own that takes '
          'many problems in a call (none: by that of training, which takes '
          'those of a step)', range=SOME, kind=int | None, affects=_NOTHING),
    Field('eval.k', (1, 8), 'k of the pass@k to report', range=SOME,
          kind=_INTS, affects=_NOTHING),

    Field('checkpoint.every', 50, 'steps between checkpoints (0: only before '
          'the first and at the end)', range=ANY, affects=_NOTHING),
    Field('checkpoint.keep', 2, 'newest checkpoints kept, beside the best',
          range=SOME, affects=_NOTHING),

    Field('checkpoint.grace', 120.0, 'seconds that a run takes at most to save '
          'and end after SIGTERM or Ctrl-C', range='(0, inf)',
          affects=_NOTHING),
    Field('checkpoint.timeout', 600, 'seconds that writing a checkpoint takes '
          'at most; then it is given up', range=SOME, affects=_NOTHING),

    Field('processes.patience', 30.0, 'seconds without an answer after which '
          'a process counts as stopped, which ends the run; at the start, the '
          'others may take four times as long to come', range='[2, inf)',
          affects=_NOTHING),

    Field('log.every', 1, 'steps between rows of metrics', range=SOME,
          affects=_NOTHING),
    Field('log.samples', 1, 'groups written to samples.jsonl with each row: '
          'all responses to a problem; with each evaluation, the first one is '
          'shown as a table', range=ANY, affects=_NOTHING),
    Field('log.report', True, 'write report.html at the end: curves, samples '
          'and flags as one page', affects=_NOTHING),
    Field('log.tensorboard', True, 'write TensorBoard event files',
          affects=_NOTHING),
    Field('log.wandb', None, 'Weights & Biases project to send metrics to '
          '(none: off)', kind=str | None, affects=_NOTHING),
    Field('log.mlflow', None, 'MLflow experiment to send metrics to (none: '
          'off); MLFLOW_TRACKING_URI names the server', kind=str | None,
          affects=_NOTHING),
    Field('log.trackio', None, 'Trackio project to send metrics to (none: '
          'off); TRACKIO_SPACE_ID names a Space', kind=str | None,
          affects=_NOTHING),
    Field('log.display', True, 'show live progress, layouts and results; else '
          'only the folder, and a line after half a minute without one',
          affects=_NOTHING),
)

# Fields of an actor that is another model than the policy.
ACTOR = (
    Field('actor.learning_rate', None, "the actor's peak learning rate, where "
          'it is another model (none: optimizer.learning_rate)', range=ANY,
          kind=float | None),
    Field('actor.ppo', True, 'train the actor by PPO on its responses; without '
          'this and actor.distill it stays as it starts'),
    Field('actor.clip_low', 0.2, "the actor's ratios below 1 minus this are "
          'clipped, with actor.ppo', range='[0, 1]'),
    Field('actor.clip_high', 0.2, "the actor's ratios above 1 plus this are "
          'clipped, with actor.ppo', range='[0, inf]'),
    Field('actor.distill', 1.0, 'lambda_distill: weight of KL(policy || actor) '
          "in the actor's loss", range=ANY),
    Field('actor.distill_top_k', 0, "the policy's likeliest tokens that this "
          'KL tells apart; the rest counts as one (0: all tokens)', range=ANY),
    Field('actor.kl_target', None, 'nats per token: a controller changes '
          'lambda_distill, from actor.distill on, to hold KL(policy || actor) '
          'there (none: it is constant)', range='(0, inf)', kind=float | None),
)

# Fields of off_policy=jackpot.
JACKPOT = (
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
)
