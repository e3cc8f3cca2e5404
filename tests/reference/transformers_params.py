"""Conversion of a transformers (torch) causal model to our parameter tree."""

import numpy as np

_LAYER = {
    'attn_norm': 'input_layernorm', 'mlp_norm': 'post_attention_layernorm',
    'q': 'self_attn.q_proj', 'k': 'self_attn.k_proj',
    'v': 'self_attn.v_proj', 'o': 'self_attn.o_proj',
}
_MLP = {'gate': 'mlp.gate_proj', 'up': 'mlp.up_proj', 'down': 'mlp.down_proj'}
_QK_NORM = {'q_norm': 'self_attn.q_norm', 'k_norm': 'self_attn.k_norm'}
# Gemma 2 normalises on both sides of attention and MLP, and the name that
# the others give to the norm before the MLP is the one after attention.
_POST_NORMS = {
    'attn_post_norm': 'post_attention_layernorm',
    'mlp_norm': 'pre_feedforward_layernorm',
    'mlp_post_norm': 'post_feedforward_layernorm',
}


def params(model, cfg):
  """Returns the parameter tree with which our model computes what `model` does.

  Args:
    model: a transformers Qwen2, Qwen3, Qwen3Moe, Llama or Gemma2 ForCausalLM.
    cfg: our ModelConfig of the same architecture.

  Returns:
    NumPy float32 arrays, in the structure of `transformer.init`.
  """
  state = {k: v.float().numpy() for k, v in model.state_dict().items()}
  names = dict(_LAYER)
  if cfg.qk_norm:
    names.update(_QK_NORM)
  if cfg.post_norms:
    names.update(_POST_NORMS)

  def stacked(name):
    rows = [state.get(f'model.layers.{i}.{name}') for i in range(cfg.layers)]
    # torch keeps matrices [out, in]
    return np.stack([
        r if r.ndim == 1 else r.swapaxes(-1, -2) for r in rows
        if r is not None])

  tree = dict(
      embed=state['model.embed_tokens.weight'],
      norm=state['model.norm.weight'],
      layers={ours: stacked(f'{theirs}.weight')
              for ours, theirs in names.items()})
  if not all(cfg.sparse_layers()):
    tree['layers'].update(
        {ours: stacked(f'{theirs}.weight') for ours, theirs in _MLP.items()})
  if cfg.experts:
    # transformers keeps the experts of a layer in two arrays.
    gate, up = np.split(stacked('mlp.experts.gate_up_proj'), 2, -1)
    tree['layers'].update(
        router=stacked('mlp.gate.weight'), experts_gate=gate, experts_up=up,
        experts_down=stacked('mlp.experts.down_proj'))
  if cfg.qkv_bias:
    for name in 'qkv':
      tree['layers'][f'{name}_bias'] = stacked(f'self_attn.{name}_proj.bias')
  if not cfg.tie_embeddings:
    tree['unembed'] = state['lm_head.weight']
  return tree
