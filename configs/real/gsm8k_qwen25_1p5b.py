r"""GSM8K with Qwen2.5 1.5B Instruct by GRPO and LoRA: a public baseline.

  python -m jaxrl_llm.train --config=configs/real/gsm8k_qwen25_1p5b.py

As configs/real/gsm8k_qwen25_0p5b.py, which says where the settings come from.
Accuracy in percent on the 1,319 test problems, by greedy decoding:

| | before | after |
|---|---|---|
| the makers of Qwen2.5 (few-shot) | 73.2 | |
| verl, GRPO with LoRA | | 77.9 |
| this config | not run | not run |

launch/FITS.md has the memory and the estimated time. Not run at this size yet.
"""

from jaxrl_llm.configs.real import gsm8k_qwen25_0p5b

TOPOLOGY = gsm8k_qwen25_0p5b.TOPOLOGY
get_hyper = gsm8k_qwen25_0p5b.get_hyper


def get_config():
  """Returns the config."""
  c = gsm8k_qwen25_0p5b.get_config()
  c.model.hf = 'Qwen/Qwen2.5-1.5B-Instruct'
  return c
