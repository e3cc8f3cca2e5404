"""Names of other libraries' options, and the fields of ours that do the same.

TRL's are those of `GRPOConfig`, `SFTConfig` and their trainers, version 1.16;
verl's those of `ppo_trainer.yaml`; OpenRLHF's those of `train_ppo_ray`, with
and without the sections that newer versions have. An unknown name is looked up
here before the likeliest field is guessed, and docs/coming_from_trl.md is made
of the same rows.
"""

from typing import NamedTuple


class Row(NamedTuple):
  """Other names of the same thing, and ours.

  Attributes:
    names: the library's names, dotted where its config has sections; * stands
      for any letters.
    ours: fields, or choices such as 'overlong.mode=mask'; () if there is none.
    note: what differs, or why there is none; fields are in backticks.
  """
  names: tuple[str, ...]
  ours: tuple[str, ...]
  note: str = ''


def _row(names: str, ours: str, note: str = '') -> Row:
  """Returns a row from names and fields with spaces between them."""
  return Row(tuple(names.split()), tuple(ours.split()), note)


_BUILT_IN = 'responses are sampled in JAX, by the run itself'
_NO_CRITIC = 'no method here has a value model'
_NO_REWARD_MODEL = ('rewards are a verifier or a function of your own, '
                    '`task.reward`')
_LAUNCH = ('a run takes all devices of its processes; SLURM and TPU pods have '
           'launchers')
_TOKENS = ('it counts tokens on a device, not responses, and accumulates '
           'gradients by itself; it changes memory and speed only')
_PACKED = 'responses are always packed into lists of tokens'
_TORCH = 'it is an option of PyTorch'
_LR = 'a plain AdamW, whose schedule is `optimizer.schedule`'
_EVAL_TEMPERATURE = ('an evaluation samples at `sampling.temperature`, and '
                     'greedily too')
_MOE = 'there is no load-balancing loss'
_LIMITS = 'see `sampling.slots` and `sampling.kv`'
_EPOCHS = 'steps = epochs x problems / prompts_per_step'

NAMES: dict[str, tuple[Row, ...]] = {
    'TRL': (
        _row('num_generations', 'samples_per_prompt'),
        _row('per_device_train_batch_size', 'prompts_per_step sft.batch',
             'it counts problems of all devices, not responses of one: '
             'per_device_train_batch_size x devices x '
             'gradient_accumulation_steps / num_generations; in SFT rows, '
             'without that division'),
        _row('generation_batch_size', 'prompts_per_step',
             'it counts problems, not responses: generation_batch_size / '
             'num_generations'),
        _row('gradient_accumulation_steps', 'learner.tokens_per_microbatch',
             f'{_TOKENS}; the size of a batch is `prompts_per_step`, that of '
             'SFT `sft.batch`'),
        _row('steps_per_generation', 'learner.updates',
             'optimiser steps of a batch, whatever memory allows: '
             'steps_per_generation / gradient_accumulation_steps'),
        _row('num_iterations', 'learner.epochs',
             'a step has all of them'),
        _row('max_completion_length', 'max_response'),
        _row('max_prompt_length', 'max_prompt',
             'problems with longer prompts are left out, not cut'),
        _row('max_steps', 'steps sft.steps',
             'a step samples, verifies and updates; TRL counts its updates, '
             'as `sft.steps` does'),
        _row('num_train_epochs', 'steps sft.epochs',
             f'RL has no epochs: {_EPOCHS}; `sft.epochs` has no default'),
        _row('learning_rate', 'optimizer.learning_rate sft.learning_rate',
             "RL's or SFT's, whose default depends on what is trained"),
        _row('lr_scheduler_type', 'optimizer.schedule',
             "TRL's default is linear, ours constant; SFT has `sft.schedule`, "
             'by default cosine'),
        _row('lr_scheduler_kwargs', 'optimizer.decay_steps',
             'the only parameter of a schedule'),
        _row('warmup_steps', 'optimizer.warmup_steps sft.warmup_steps',
             'a number of optimiser steps, not a ratio'),
        _row('warmup_ratio', 'optimizer.warmup_steps sft.warmup_steps',
             'a number of optimiser steps: ratio x steps x learner.updates, '
             'in SFT ratio x steps'),
        _row('optim optim_args optim_target_modules optimizers '
             'optimizer_cls_and_kwargs', '', f'it is {_LR}'),
        _row('weight_decay', 'optimizer.weight_decay sft.weight_decay',
             "TRL's default is 0, that of SFT here .1"),
        _row('adam_beta1', 'optimizer.b1', 'of RL; in SFT it is .9'),
        _row('adam_beta2', 'optimizer.b2',
             "TRL's default is .999, ours .99, also in SFT"),
        _row('adam_epsilon', 'optimizer.eps', 'of RL; in SFT it is 1e-8'),
        _row('max_grad_norm', 'optimizer.max_grad_norm',
             'of RL; in SFT it is 1'),
        _row('beta', 'loss.kl_coef', 'both are 0 by default'),
        _row('epsilon', 'loss.clip_low',
             "TRL's is both bounds unless epsilon_high is given: set "
             '`loss.clip_high` too'),
        _row('epsilon_high', 'loss.clip_high',
             'with loss_type=cispo ours is epsilon_high - 1'),
        _row('delta', 'loss.dual_clip'),
        _row('loss_type', 'loss.aggregation',
             'dapo and bnpo: token_mean; grpo: sequence_mean; dr_grpo: '
             'constant; cispo is `loss.objective=cispo`; there is no sapo, '
             'luspo or vespo; SFT has nll alone, no dft'),
        _row('importance_sampling_level', 'loss.objective',
             'token: clip; sequence: gspo, with much closer bounds'),
        _row('scale_rewards', 'advantage',
             'group or True: grpo; none or False: dr_grpo; batch: '
             'reinforce_pp'),
        _row('reward_funcs', 'task.reward', 'FILE.py:NAME, several with '
             'commas, or reward_fn of jaxrl_llm.run; the arguments are the '
             'same'),
        _row('reward_weights', 'task.reward_weights'),
        _row('multi_objective_aggregation', 'advantage',
             'sum_then_normalize: any; normalize_then_sum: gdpo'),
        _row('mask_truncated_completions', 'overlong.mode=mask'),
        _row('entropy_coef', 'loss.entropy_bonus'),
        _row('use_adaptive_entropy entropy_coef_min entropy_coef_max '
             'entropy_coef_delta entropy_target', '',
             'the weight `loss.entropy_bonus` is constant'),
        _row('top_entropy_quantile', '', 'all tokens are trained on'),
        _row('use_bias_correction_kl', '', 'see `loss.kl_estimator`'),
        _row('off_policy_mask_threshold', '',
             'see `loss.importance=icepop`, which drops single tokens'),
        _row('sync_ref_model ref_model_mixup_alpha ref_model_sync_steps', '',
             'the anchor of `loss.kl_coef` stays as it was when RL began'),
        _row('sapo_temperature_* vespo_*', '',
             'a loss of your own is `loss.objective=FILE.py:NAME`'),
        _row('vllm_importance_sampling_mode '
             'vllm_importance_sampling_correction', 'loss.importance',
             'token_truncate: tis; token_mask: icepop; sequence_truncate: '
             'sequence_tis; there is no sequence_mask; the default is none, '
             'since sampler and learner compute the same probabilities'),
        _row('vllm_importance_sampling_cap vllm_importance_sampling_clip_max',
             'loss.importance_cap'),
        _row('vllm_importance_sampling_clip_min', 'loss.importance_low'),
        _row('temperature', 'sampling.temperature'),
        _row('top_p', 'sampling.top_p'),
        _row('top_k', 'sampling.top_k'),
        _row('min_p', 'sampling.min_p'),
        _row('repetition_penalty', '',
             'there is no such change of the probabilities'),
        _row('generation_kwargs', '', 'see `--help=sampling`'),
        _row('vllm_tensor_parallel_size', 'mesh.tensor'),
        _row('use_vllm vllm_* use_transformers_* '
             'transformers_continuous_batching_config cache_implementation '
             'ds3_gather_for_generation', '', f'{_BUILT_IN}; {_LIMITS}'),
        _row('max_length', 'sft.max_length',
             'tokens of a row of SFT; without it `max_prompt` and '
             '`max_response` hold; for longer rows see `sft.too_long`'),
        _row('truncation_mode', 'sft.too_long',
             'keep_start: cut; the default leaves such rows out'),
        _row('packing packing_strategy padding_free eval_packing', '',
             'rows are always packed whole, and never attend to one another'),
        _row('completion_only_loss', '',
             'a prompt is never learned, a row with a text wholly'),
        _row('assistant_only_loss', 'sft.turns',
             'all or last; messages of others are never learned'),
        _row('dataset_text_field', '', 'the field is text'),
        _row('formatting_func dataset_kwargs dataset_num_proc data_collator',
             '', 'rows of `sft.path` are written in one of its forms'),
        _row('eos_token pad_token chat_template_path processing_class', '',
             'tokeniser, its stop tokens and chat template are those of '
             '`model.hf`'),
        _row('compute_loss_func', 'loss.objective',
             'FILE.py:NAME, in RL alone; SFT is maximum likelihood'),
        _row('compute_metrics preprocess_logits_for_metrics', '',
             'SFT reports held-out loss and perplexity, RL rewards'),
        _row('quantization_config', '',
             'see `sampling.weights`; training has whole weights'),
        _row('chat_template_kwargs', '',
             "the model's template gets none; `task.markup` is its switch"),
        _row('max_tool_calling_iterations', '',
             'see `task.max_turns` of `task.name=tools`'),
        _row('pad_to_multiple_of', '', 'see `sampling.buckets`'),
        _row('shuffle_dataset', '',
             'problems, and rows of SFT, come in a new order in each epoch, '
             'by `seed`'),
        _row('remove_unused_columns', '',
             'a reward function gets all columns'),
        _row('train_dataset dataset_name', 'task.path sft.path',
             "RL's problems, or problems of jaxrl_llm.run; SFT's rows"),
        _row('eval_dataset', 'task.heldout sft.heldout',
             "RL's problems, or heldout of jaxrl_llm.run; SFT's rows"),
        _row('model model_name_or_path', 'model.hf'),
        _row('model_init_kwargs', 'model.hf',
             'a folder, a name on the hub or a GGUF file; `--help=model` lists '
             'the rest'),
        _row('trust_remote_code', '',
             'no code of a checkpoint is executed'),
        _row('router_aux_loss_coef', '', _MOE),
        _row('disable_dropout', '', 'models have no dropout'),
        _row('cast_lm_head_to_fp32', '',
             'log-probs are always computed in float32'),
        _row('bf16', 'model.dtype=bfloat16',
             'the type to compute in; weights and optimiser stay in float32'),
        _row('fp16', 'model.dtype=bfloat16',
             'float16 has too small a range to train in'),
        _row('tf32', '', "see JAX's option jax_default_matmul_precision"),
        _row('auto_find_batch_size', 'learner.tokens_per_microbatch=auto',
             'the default: by the memory'),
        _row('gradient_checkpointing activation_checkpointing '
             'gradient_checkpointing_kwargs activation_checkpointing_kwargs '
             'activation_offloading',
             'learner.remat', 'chosen by the memory by default'),
        _row('torch_* use_liger_kernel liger_kernel_config', '',
             f'{_TORCH}; XLA compiles every step'),
        _row('peft_config', 'lora.rank',
             'see `lora.alpha`, `lora.targets`; `sft.lora` says whether SFT '
             'trains LoRA too'),
        _row('lora_r', 'lora.rank'),
        _row('lora_alpha', 'lora.alpha'),
        _row('lora_target_modules', 'lora.targets'),
        _row('output_dir', 'workdir'),
        _row('run_name', 'workdir', 'a run is named by its folder'),
        _row('seed', 'seed', "TRL's default is 42, ours 0"),
        _row('data_seed', 'seed'),
        _row('full_determinism', '',
             'the same seed on the same devices gives the same run'),
        _row('use_cpu', '', 'set JAX_PLATFORMS=cpu'),
        _row('save_steps', 'checkpoint.every',
             'in steps of ours, as max_steps'),
        _row('save_strategy', 'checkpoint.every',
             '0 saves at the beginning and the end alone'),
        _row('save_total_limit', 'checkpoint.keep', 'beside the best one'),
        _row('save_only_model', '',
             'jaxrl_llm.export writes the model alone'),
        _row('load_best_model_at_end metric_for_best_model', '',
             'the checkpoint with the best held-out reward, in SFT the lowest '
             'held-out loss, is kept: evaluate and export take it with '
             '--checkpoint=best'),
        _row('resume_from_checkpoint', '',
             'the same command goes on from the last checkpoint'),
        _row('push_to_hub hub_*', '',
             'jaxrl_llm.export --push=NAME uploads the model and a card'),
        _row('eval_steps', 'eval.every',
             'in steps of ours, as max_steps; SFT has `sft.eval_every`'),
        _row('eval_strategy do_eval', 'eval.every',
             '0 evaluates before and after alone'),
        _row('do_train do_predict prediction_loss_only', '',
             'jaxrl_llm.train trains, and jaxrl_llm.evaluate evaluates'),
        _row('eval_on_start', '',
             'a run always evaluates before its first step'),
        _row('per_device_eval_batch_size', 'eval.slots',
             'responses decoded at the same time on a data shard; it changes '
             'speed only'),
        _row('num_generations_eval', 'eval.samples'),
        _row('logging_steps logging_strategy', 'log.every',
             'in steps of ours, as max_steps'),
        _row('report_to', 'log.tensorboard log.wandb',
             'project of W&B; also `log.mlflow` and `log.trackio`'),
        _row('project', 'log.wandb', 'or `log.trackio`'),
        _row('log_completions num_completions_to_print', 'log.samples',
             'groups in each row of samples.jsonl'),
        _row('log_unique_prompts log_multimodal log_completions_hub_repo '
             'log_level log_level_replica log_on_each_node '
             'logging_first_step logging_nan_inf_filter', '',
             'see `--help=logging`'),
        _row('disable_tqdm', 'log.display', 'false shows little'),
        _row('fsdp fsdp_config deepspeed accelerator_config '
             'parallelism_config', 'mesh.fsdp',
             'shards of parameters; `mesh.tensor` splits matrices'),
        _row('local_rank', '', _LAUNCH),
        _row('ddp_* dataloader_*', '',
             'batches are made on the host, and split over all devices'),
    ),
    'verl': (
        _row('actor_rollout_ref.rollout.n', 'samples_per_prompt'),
        _row('data.train_batch_size', 'prompts_per_step',
             'both count problems'),
        _row('data.gen_batch_size', 'curriculum_prompts'),
        _row('actor_rollout_ref.actor.ppo_mini_batch_size', 'learner.updates',
             'a number of optimiser steps: train_batch_size / '
             'ppo_mini_batch_size'),
        _row('actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu '
             'actor_rollout_ref.actor.ppo_micro_batch_size '
             'actor_rollout_ref.actor.ppo_max_token_len_per_gpu '
             'actor_rollout_ref.*.log_prob_micro_batch_size_per_gpu '
             'actor_rollout_ref.*.log_prob_micro_batch_size '
             'actor_rollout_ref.*.log_prob_max_token_len_per_gpu',
             'learner.tokens_per_microbatch', _TOKENS),
        _row('actor_rollout_ref.actor.use_dynamic_bsz '
             'actor_rollout_ref.*.log_prob_use_dynamic_bsz '
             'actor_rollout_ref.model.use_remove_padding', '', _PACKED),
        _row('actor_rollout_ref.actor.ppo_epochs', 'learner.epochs'),
        _row('actor_rollout_ref.actor.shuffle', '',
             'rows of an epoch come in a fixed order'),
        _row('data.max_prompt_length actor_rollout_ref.rollout.prompt_length',
             'max_prompt'),
        _row('data.max_response_length '
             'actor_rollout_ref.rollout.response_length', 'max_response'),
        _row('data.filter_overlong_prompts data.truncation', '',
             'problems with a prompt above `max_prompt` are always left out'),
        _row('data.train_files', 'task.path'),
        _row('data.val_files', 'task.heldout'),
        _row('data.prompt_key', 'task.problem'),
        _row('data.reward_fn_key', 'task.kind',
             'for metrics alone: one `task.reward` judges all problems'),
        _row('data.shuffle', '',
             'problems come in a new order in each epoch, by `seed`'),
        _row('data.val_batch_size', 'eval.slots',
             'responses decoded at the same time; it changes speed only'),
        _row('data.val_max_samples', 'eval.problems'),
        _row('actor_rollout_ref.model.path', 'model.hf'),
        _row('actor_rollout_ref.model.lora_rank', 'lora.rank'),
        _row('actor_rollout_ref.model.lora_alpha', 'lora.alpha'),
        _row('actor_rollout_ref.model.target_modules', 'lora.targets'),
        _row('actor_rollout_ref.model.enable_gradient_checkpointing',
             'learner.remat', 'chosen by the memory by default'),
        _row('actor_rollout_ref.model.custom_chat_template '
             'data.apply_chat_template_kwargs', '',
             "the model's own is used; `task.template` is the text around a "
             'problem, `task.markup` the switch'),
        _row('actor_rollout_ref.model.trust_remote_code '
             'data.trust_remote_code', '',
             'no code of a checkpoint is executed'),
        _row('actor_rollout_ref.actor.optim.lr', 'optimizer.learning_rate'),
        _row('actor_rollout_ref.actor.optim.lr_warmup_steps',
             'optimizer.warmup_steps'),
        _row('actor_rollout_ref.actor.optim.lr_warmup_steps_ratio',
             'optimizer.warmup_steps', 'a number of optimiser steps'),
        _row('actor_rollout_ref.actor.optim.warmup_style '
             'actor_rollout_ref.actor.optim.lr_scheduler_type',
             'optimizer.schedule'),
        _row('actor_rollout_ref.actor.optim.total_training_steps',
             'optimizer.decay_steps'),
        _row('actor_rollout_ref.actor.optim.weight_decay',
             'optimizer.weight_decay', "verl's default is .01, ours 0"),
        _row('actor_rollout_ref.actor.grad_clip', 'optimizer.max_grad_norm'),
        _row('actor_rollout_ref.actor.clip_ratio', 'loss.clip_low',
             "verl's is both bounds: set `loss.clip_high` too"),
        _row('actor_rollout_ref.actor.clip_ratio_low', 'loss.clip_low'),
        _row('actor_rollout_ref.actor.clip_ratio_high', 'loss.clip_high'),
        _row('actor_rollout_ref.actor.clip_ratio_c', 'loss.dual_clip',
             "verl's default is 3, ours none"),
        _row('actor_rollout_ref.actor.loss_agg_mode', 'loss.aggregation',
             'token-mean: token_mean; seq-mean-token-mean: sequence_mean; '
             'seq-mean-token-sum-norm: constant'),
        _row('actor_rollout_ref.actor.policy_loss.loss_mode',
             'loss.objective', 'vanilla: clip; gspo: gspo'),
        _row('actor_rollout_ref.actor.entropy_coeff', 'loss.entropy_bonus'),
        _row('actor_rollout_ref.actor.kl_loss_coef', 'loss.kl_coef',
             "verl's default is .001, but off"),
        _row('actor_rollout_ref.actor.use_kl_loss', 'loss.kl_coef',
             '0 is off, which is the default'),
        _row('actor_rollout_ref.actor.kl_loss_type', 'loss.kl_estimator',
             'kl: k1; mse: k2; low_var_kl: k3'),
        _row('actor_rollout_ref.actor.fsdp_config.* '
             'actor_rollout_ref.actor.strategy', 'mesh.fsdp',
             'shards of responses, parameters and optimiser'),
        _row('actor_rollout_ref.actor.ulysses_sequence_parallel_size', '',
             'a sequence is never split over devices'),
        _row('actor_rollout_ref.rollout.temperature', 'sampling.temperature'),
        _row('actor_rollout_ref.rollout.top_p', 'sampling.top_p'),
        _row('actor_rollout_ref.rollout.top_k', 'sampling.top_k',
             'all tokens are 0 here, not -1'),
        _row('actor_rollout_ref.rollout.val_kwargs.n', 'eval.samples'),
        _row('actor_rollout_ref.rollout.val_kwargs.*', '', _EVAL_TEMPERATURE),
        _row('actor_rollout_ref.rollout.tensor_model_parallel_size',
             'mesh.tensor'),
        _row('actor_rollout_ref.rollout.max_num_seqs', 'sampling.slots',
             'responses decoded at the same time on a data shard'),
        _row('actor_rollout_ref.rollout.dtype', 'model.dtype',
             'of training too; see `sampling.weights` for int8 and float8'),
        _row('actor_rollout_ref.rollout.calculate_log_probs', '',
             "the sampler's log-probs are always kept"),
        _row('actor_rollout_ref.rollout.gpu_memory_utilization '
             'actor_rollout_ref.rollout.max_num_batched_tokens '
             'actor_rollout_ref.rollout.max_model_len', '',
             f'{_BUILT_IN}; {_LIMITS}'),
        _row('actor_rollout_ref.rollout.multi_turn.* '
             'actor_rollout_ref.rollout.agent.*', 'task.name',
             'tools, or a file with an environment; limits are task.max_turns '
             'and the like'),
        _row('actor_rollout_ref.rollout.*', '', _BUILT_IN),
        _row('actor_rollout_ref.ref.*', '',
             'the anchor of `loss.kl_coef` is laid out as the policy is'),
        _row('algorithm.adv_estimator', 'advantage',
             'grpo: grpo; rloo: rloo; reinforce_plus_plus_baseline: '
             'reinforce_pp; there is no gae'),
        _row('algorithm.norm_adv_by_std_in_grpo', 'advantage',
             'true: grpo; false: dr_grpo'),
        _row('algorithm.use_kl_in_reward', '',
             'the KL is a term of the loss, `loss.kl_coef`'),
        _row('algorithm.kl_ctrl.kl_coef', 'loss.kl_coef',
             'a constant weight in the loss, not in the reward'),
        _row('algorithm.kl_penalty', 'loss.kl_estimator',
             'of the KL in the loss'),
        _row('algorithm.filter_groups.enable', 'curriculum=dynamic'),
        _row('algorithm.filter_groups.max_num_gen_batches', '',
             'see `curriculum=dynamic`: a step that fills no batch makes no '
             'update'),
        _row('algorithm.rollout_correction.rollout_is', 'loss.importance',
             'token: tis; sequence: sequence_tis'),
        _row('algorithm.rollout_correction.rollout_is_threshold '
             'actor_rollout_ref.actor.tis_imp_ratio_cap',
             'loss.importance_cap', 'with `loss.importance=tis`'),
        _row('algorithm.gamma algorithm.lam', '',
             'a reward belongs to a whole response'),
        _row('reward_model.overlong_buffer.len', 'overlong.window',
             'with `overlong.mode=penalty`'),
        _row('reward_model.overlong_buffer.enable', 'overlong.mode=penalty'),
        _row('custom_reward_function.path custom_reward_function.name',
             'task.reward', 'FILE.py:NAME, called with all responses of a '
             'step, not with one'),
        _row('reward_model.*', '', _NO_REWARD_MODEL),
        _row('critic.* trainer.critic_warmup', '', _NO_CRITIC),
        _row('trainer.total_training_steps', 'steps'),
        _row('trainer.total_epochs', 'steps', f'there are no epochs: {_EPOCHS}'
             ),
        _row('trainer.save_freq', 'checkpoint.every',
             '0 is the first and the last alone, not -1'),
        _row('trainer.test_freq', 'eval.every',
             '0 is before and after alone, not -1'),
        _row('trainer.val_before_train', '',
             'a run always evaluates before its first step'),
        _row('trainer.val_only', '', 'jaxrl_llm.evaluate does that'),
        _row('trainer.max_actor_ckpt_to_keep', 'checkpoint.keep',
             'beside the best one'),
        _row('trainer.logger', 'log.tensorboard log.wandb',
             'project of W&B; also `log.mlflow` and `log.trackio`'),
        _row('trainer.project_name', 'log.wandb'),
        _row('trainer.experiment_name trainer.default_local_dir', 'workdir'),
        _row('trainer.log_val_generations trainer.rollout_data_dir',
             'log.samples', 'groups in each row of samples.jsonl'),
        _row('trainer.resume_mode trainer.resume_from_path', '',
             'the same command goes on from the last checkpoint'),
        _row('trainer.n_gpus_per_node trainer.nnodes', '', _LAUNCH),
    ),
    'OpenRLHF': (
        _row('n_samples_per_prompt', 'samples_per_prompt'),
        _row('rollout_batch_size rollout.batch_size', 'prompts_per_step',
             'both count problems'),
        _row('train_batch_size train.batch_size', 'learner.updates',
             'a number of optimiser steps: rollout_batch_size x '
             'n_samples_per_prompt / train_batch_size'),
        _row('micro_train_batch_size train.micro_batch_size '
             'micro_rollout_batch_size rollout.micro_batch_size '
             'train_max_tokens_per_gpu train.max_tokens_per_gpu '
             'rollout_max_tokens_per_gpu rollout.max_tokens_per_gpu',
             'learner.tokens_per_microbatch', _TOKENS),
        _row('use_dynamic_batch train.dynamic_batch_enable packing_samples '
             'ds.packing_samples', '', _PACKED),
        _row('vllm_generate_batch_size', 'curriculum_prompts',
             'new problems that a step samples'),
        _row('max_epochs', 'learner.epochs'),
        _row('num_episodes', 'steps',
             'there are no episodes: steps = episodes x problems / '
             'prompts_per_step'),
        _row('prompt_max_len', 'max_prompt'),
        _row('generate_max_len rollout.max_new_tokens max_new_tokens',
             'max_response'),
        _row('max_len data.max_len', 'max_prompt max_response',
             'two limits'),
        _row('pretrain actor.model_name_or_path', 'model.hf'),
        _row('prompt_data data.prompt_dataset', 'task.path'),
        _row('eval_dataset eval.dataset', 'task.heldout'),
        _row('input_key', 'task.problem'),
        _row('label_key', 'task.answer'),
        _row('input_template', 'task.template',
             'with {problem} where OpenRLHF has {}'),
        _row('apply_chat_template', 'task.markup=chat'),
        _row('max_samples', '', 'all problems of `task.path` are used'),
        _row('remote_rm_url reward.remote_url', 'task.reward',
             'FILE.py:NAME'),
        _row('reward_pretrain normalize_reward reward_clip_range reward_num_* '
             'reward.*', '', _NO_REWARD_MODEL),
        _row('agent_func_path', 'task.name', 'a file with an environment'),
        _row('advantage_estimator algo.advantage.estimator', 'advantage',
             'group_norm: grpo; dr_grpo: dr_grpo; rloo: rloo; '
             'reinforce_baseline: reinforce_pp; there is no gae'),
        _row('no_advantage_std_norm', 'advantage=dr_grpo'),
        _row('init_kl_coef algo.kl.init_coef', 'loss.kl_coef',
             'always a term of the loss, never of the reward; the default is '
             '0, not .01'),
        _row('use_kl_loss algo.kl.use_loss', '',
             'the KL is always a term of the loss, `loss.kl_coef`'),
        _row('kl_estimator algo.kl.estimator', 'loss.kl_estimator',
             "OpenRLHF's default is k1, ours k3"),
        _row('kl_target kl_horizon algo.kl.target algo.kl.horizon', '',
             'the weight `loss.kl_coef` is constant'),
        _row('entropy_loss_coef actor.entropy_coef', 'loss.entropy_bonus'),
        _row('eps_clip actor.eps_clip', 'loss.clip_low',
             "OpenRLHF's is both bounds: set `loss.clip_high` too"),
        _row('eps_clip_low_high actor.eps_clip_low_high',
             'loss.clip_low loss.clip_high'),
        _row('dual_clip actor.dual_clip', 'loss.dual_clip'),
        _row('policy_loss_type actor.policy_loss_type', 'loss.objective',
             'ppo: clip; gspo: gspo'),
        _row('enable_vllm_is_correction algo.advantage.is_correction_enable '
             'algo.advantage.is_correction_type', 'loss.importance',
             'tis or icepop'),
        _row('vllm_is_truncated_threshold', 'loss.importance_cap'),
        _row('dynamic_filtering algo.dynamic_filtering_enable',
             'curriculum=dynamic'),
        _row('dynamic_filtering_reward_range algo.dynamic_filtering_range', '',
             '`curriculum=dynamic` keeps groups whose rewards differ'),
        _row('overlong_buffer_len', 'overlong.window',
             'with `overlong.mode=penalty`'),
        _row('overlong_penalty_factor', '',
             'the penalty of `overlong.mode=penalty` grows from 0 to 1'),
        _row('actor_learning_rate actor.adam.lr', 'optimizer.learning_rate'),
        _row('lr_scheduler actor.lr_scheduler', 'optimizer.schedule'),
        _row('lr_warmup_ratio actor.lr_warmup_ratio', 'optimizer.warmup_steps',
             'a number of optimiser steps'),
        _row('adam_betas actor.adam.betas', 'optimizer.b1 optimizer.b2'),
        _row('max_norm actor.max_norm', 'optimizer.max_grad_norm'),
        _row('l2 actor.adam.weight_decay', 'optimizer.weight_decay'),
        _row('temperature', 'sampling.temperature'),
        _row('top_p', 'sampling.top_p'),
        _row('eval_temperature', '', _EVAL_TEMPERATURE),
        _row('eval_n_samples_per_prompt', 'eval.samples'),
        _row('lora_rank', 'lora.rank'),
        _row('lora_alpha', 'lora.alpha'),
        _row('target_modules', 'lora.targets'),
        _row('lora_dropout', '', 'models have no dropout'),
        _row('load_in_4bit', '',
             'see `sampling.weights` for int8 and float8 of the sampler'),
        _row('bf16 ds.param_dtype', 'model.dtype=bfloat16',
             'the type to compute in; weights and optimiser stay in float32'),
        _row('gradient_checkpointing actor.gradient_checkpointing_enable',
             'learner.remat', 'chosen by the memory by default'),
        _row('attn_implementation', 'learner.attention',
             'auto, xla, splash or cudnn'),
        _row('zero_stage ds.zero_stage zpg', 'mesh.fsdp',
             'shards of parameters and optimiser'),
        _row('adam_offload actor.adam.offload', '',
             'the optimiser stays on the devices; `mesh.fsdp` splits it'),
        _row('vllm_tensor_parallel_size vllm.tensor_parallel_size '
             'ds_tensor_parallel_size', 'mesh.tensor'),
        _row('vllm_* vllm.* enforce_eager enable_prefix_caching', '',
             f'{_BUILT_IN}; {_LIMITS}'),
        _row('ring_attn_size ds.ring_attn_size', '',
             'a sequence is never split over devices'),
        _row('async_train async_queue_size train.async_*', 'actor.lag',
             'steps between sampling and use, exactly'),
        _row('actor_num_* actor.num_* ref_num_* ref.* colocate_* '
             'train.colocate_*', '', _LAUNCH),
        _row('critic_* critic.* value_clip gamma lambd save_value_network '
             'freezing_actor_steps', '', _NO_CRITIC),
        _row('aux_loss_coef', '', _MOE),
        _row('ptx_coef', '', 'see `sft.steps`'),
        _row('enable_ema ema_beta', '', 'there is no mean of the weights'),
        _row('save_path ckpt.output_dir ckpt_path ckpt.path', 'workdir'),
        _row('save_steps ckpt.save_steps', 'checkpoint.every',
             'those before the first step and at the end are always kept'),
        _row('max_ckpt_num ckpt.max_num', 'checkpoint.keep',
             'beside the best one'),
        _row('load_checkpoint ckpt.load_enable', '',
             'the same command goes on from the last checkpoint'),
        _row('save_hf_ckpt ckpt.save_hf', '',
             'jaxrl_llm.export writes such a folder'),
        _row('eval_steps eval.steps', 'eval.every',
             '0 is before and after alone, not -1'),
        _row('logging_steps logger.logging_steps', 'log.every'),
        _row('use_wandb wandb_project logger.wandb.*', 'log.wandb'),
        _row('wandb_run_name', 'workdir', 'a run is named by its folder'),
        _row('use_tensorboard', 'log.tensorboard'),
        _row('full_determinism', '',
             'the same seed on the same devices gives the same run'),
    ),
}
