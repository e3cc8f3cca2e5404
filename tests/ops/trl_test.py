"""Tests of our losses and rewards against TRL's code, on the same inputs."""

import asyncio
import collections
import json
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxrl_llm import rewards, tasks
from jaxrl_llm.ops import kl, policy_losses
from tests.helpers.tolerance import FUNCTION, rounding

BUDGET = 9
BETA = 0.04

# name: (TRL's attributes, our objective, aggregation and clips)
CASES = {
    'grpo': (
        dict(loss_type='grpo'),
        'clip', 'sequence_mean', dict(clip_low=0.2, clip_high=0.2)),
    'bnpo': (
        dict(loss_type='bnpo'),
        'clip', 'token_mean', dict(clip_low=0.2, clip_high=0.2)),
    'dr_grpo': (
        dict(loss_type='dr_grpo'),
        'clip', 'constant', dict(clip_low=0.2, clip_high=0.2)),
    'dapo': (
        dict(loss_type='dapo', epsilon_high=0.28),
        'clip', 'token_mean', dict(clip_low=0.2, clip_high=0.28)),
    'gspo': (
        dict(loss_type='grpo', importance_sampling_level='sequence',
             epsilon_low=0.05, epsilon_high=0.1),
        'gspo', 'sequence_mean', dict(clip_low=0.05, clip_high=0.1)),
    'cispo': (
        dict(loss_type='cispo', epsilon_high=1.3),
        'cispo', 'token_mean', dict(clip_low=1.0, clip_high=0.3)),
    'sapo': (
        dict(loss_type='sapo', sapo_temperature_pos=1.2,
             sapo_temperature_neg=1.7),
        'sapo', 'sequence_mean', dict(tau_positive=1.2, tau_negative=1.7)),
    'vespo': (
        dict(loss_type='vespo', vespo_k_pos=2.5, vespo_lambda_pos=1.5,
             vespo_k_neg=1.25, vespo_lambda_neg=3.5),
        'vespo', 'token_mean', dict(
            k_positive=2.5, lambda_positive=1.5, k_negative=1.25,
            lambda_negative=3.5)),
    'two_sided': (
        dict(loss_type='grpo', delta=1.5),
        'clip', 'sequence_mean',
        dict(clip_low=0.2, clip_high=0.2, dual_clip=1.5)),
    'grpo_kl': (
        dict(loss_type='grpo', beta=BETA),
        'clip', 'sequence_mean', dict(clip_low=0.2, clip_high=0.2)),
}


def _batch():
  rng = np.random.default_rng(0)
  b, t = 6, BUDGET
  old = -rng.exponential(1.0, (b, t))
  length = np.array([9, 1, 4, 7, 0, 2])  # the fifth row has no token at all
  return dict(
      new=np.float32(old + 0.4 * rng.standard_normal((b, t))),
      old=np.float32(old),
      anchor=np.float32(old + 0.4 * rng.standard_normal((b, t))),
      advantages=np.float32([1.1, -0.7, -1.3, 0.4, 0.9, 0.0]),
      mask=np.arange(t) < length[:, None])


def _trl(batch, options):
  """Returns TRL's loss, its gradient in the new log-probs, and its metrics."""
  options = dict(dict(
      importance_sampling_level='token', epsilon_low=0.2, epsilon_high=0.2,
      beta=0.0, delta=None), **options)
  new = torch.tensor(batch['new'], requires_grad=True)
  from trl import GRPOTrainer  # Seconds, which other files need not wait for.

  trainer = object.__new__(GRPOTrainer)
  trainer._get_per_token_logps_and_entropies = (
      lambda *_, **__: (new, torch.zeros_like(new), None))
  trainer.args = types.SimpleNamespace(
      delta=options.pop('delta'), use_bias_correction_kl=False,
      steps_per_generation=1, **options)
  for name, value in options.items():
    setattr(trainer, name, value)
  trainer.max_completion_length = BUDGET
  trainer.aux_loss_enabled = False
  trainer.top_entropy_quantile = 1.0
  trainer.off_policy_mask_threshold = None
  trainer.use_vllm = False
  trainer._entropy_bonus_enabled = False
  trainer.use_adaptive_entropy = False
  trainer.current_gradient_accumulation_steps = 1
  trainer.model = types.SimpleNamespace(training=True)
  trainer.accelerator = types.SimpleNamespace(
      num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
  trainer._metrics = {'train': collections.defaultdict(list)}
  mask = torch.tensor(batch['mask']).int()
  loss = trainer._compute_loss(None, dict(
      prompt_ids=torch.zeros(len(mask), 1, dtype=torch.long),
      prompt_mask=torch.ones(len(mask), 1, dtype=torch.long),
      completion_ids=torch.zeros(mask.shape, dtype=torch.long),
      completion_mask=mask,
      advantages=torch.tensor(batch['advantages']),
      old_per_token_logps=torch.tensor(batch['old']),
      ref_per_token_logps=torch.tensor(batch['anchor']),
      num_items_in_batch=mask.sum()))
  loss.backward()
  metrics = {k: v[0] for k, v in trainer._metrics['train'].items()}
  return loss.item(), new.grad.numpy(), metrics


@pytest.mark.parametrize('name', CASES)
def test_loss_and_gradient_are_trls(name):
  options, objective, aggregation, clips = CASES[name]
  batch = _batch()
  mask = batch['mask']

  def ours(new):
    policy = policy_losses.OBJECTIVES[objective](
        new, batch['old'], batch['advantages'], mask, **clips)
    loss = policy.loss
    if 'beta' in options:
      loss += BETA * kl.k3(new, batch['anchor'], mask=mask)
    loss = policy_losses.aggregate(loss, mask, aggregation, budget=BUDGET)
    return loss, policy

  (loss, policy), grad = jax.value_and_grad(ours, has_aux=True)(
      jnp.asarray(batch['new']))
  want_loss, want_grad, metrics = _trl(batch, options)
  # A sum over all tokens, each with 12 operations and two exp.
  counts = mask.size, 12, 2 * FUNCTION
  total = policy_losses.aggregate(
      np.abs(policy.loss), mask, aggregation, budget=BUDGET)
  np.testing.assert_allclose(
      loss, want_loss, rtol=0, atol=rounding(*counts, magnitude=total))
  # The sum of a sequence's ratio is over its tokens.
  np.testing.assert_allclose(
      grad, want_grad, rtol=0, atol=rounding(
          BUDGET, *counts[1:], magnitude=np.abs(want_grad).max()))
  assert np.count_nonzero(want_grad) > 10
  if objective == 'clip':
    for side in ('low', 'high'):
      share = getattr(policy, f'clipped_{side}')[mask].mean()
      assert share > 0
      # Counts are exact; only their division is rounded.
      np.testing.assert_allclose(
          share, metrics[f'clip_ratio/{side}_mean'], rtol=rounding(2))


OWN_REWARDS = '''
seen = []

def f(**given):
  seen.append(given)
  return [None if i == 1 else i for i, _ in enumerate(given['completions'])]

async def g(prompts, tags, **given):
  seen.append(dict(given, prompts=prompts, tags=tags))
  return [2.0 * i for i, _ in enumerate(prompts)]
'''


@pytest.mark.parametrize('messages', [False, True])
def test_reward_functions_get_what_trls_get(tmp_path, monkeypatch, messages):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  from trl.trainer import grpo_trainer
  (tmp_path / 'mine.py').write_text(OWN_REWARDS)
  texts, tokens = ['x', 'yy', 'zzz'], [[1], [2, 2], [3, 3, 3]]
  rows = [{'prompt': [{'role': 'system', 'content': 'Be brief.'},
                      {'role': 'user', 'content': f'{i}?'}] if messages
           else f'{i}?', 'answer': str(i), 'tags': ['a', {'b': i}]}
          for i in range(3)]
  (tmp_path / 'a.jsonl').write_text(
      ''.join(json.dumps(row) + '\n' for row in rows))
  task = tasks.get(
      'math', types.SimpleNamespace(start='', chat=str, encode=list),
      path=(f'{tmp_path}/a.jsonl',), heldout_count=0,
      reward=tuple(f'{tmp_path}/mine.py:{name}' for name in 'fg'))
  verdicts = rewards.submit(
      task, task.train, texts, [False] * 3, rewards.Facts(tokens, 4, 9))()
  functions = [one._function for one in task.rewards.functions]
  seen = functions[0].__globals__['seen']
  ours = seen[:]
  seen.clear()
  task.close()

  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, daemon=True).start()
  trainer = object.__new__(grpo_trainer.GRPOTrainer)
  vars(trainer).update(
      accelerator=types.SimpleNamespace(device='cpu', is_main_process=False),
      args=types.SimpleNamespace(report_to=[]), reward_funcs=functions,
      reward_processing_classes=[None] * 2, reward_func_names=['f', 'g'],
      state=types.SimpleNamespace(global_step=4, max_steps=9),
      environments=None, async_loop=loop)
  monkeypatch.setattr(grpo_trainer, 'gather', lambda x: x)
  theirs = trainer._calculate_rewards(
      rows, [row['prompt'] for row in rows],
      [[{'role': 'assistant', 'content': text}] for text in texts]
      if messages else texts, tokens)
  loop.call_soon_threadsafe(loop.stop)
  for given, want in zip(ours, seen):
    logs = {'log_metric', 'log_extra'}
    assert given.keys() == want.keys() > logs
    assert all(given[name] == want[name] for name in given.keys() - logs)
  separate = np.array([[*v.rewards.values()] for v in verdicts], float)
  np.testing.assert_array_equal(separate, theirs)
  np.testing.assert_array_equal(
      [v.reward for v in verdicts], np.nansum(theirs, 1))
