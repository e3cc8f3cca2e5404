r"""GSM8K with Gemma 2 2B by SFT and then GRPO: a public baseline.

  python -m jaxrl_llm.train --config=configs/real/gsm8k_gemma2_2b.py

Accuracy in percent on the 1,319 test problems, by greedy decoding:

| | before | after |
|---|---|---|
| gemma-2-2b-it, by its makers | 23.9 | |
| verl, SFT on the solutions | | 52.1 |
| verl, SFT and then PPO | | 64.0 |
| this config | not run | not run |

verl's figures are those of its page of baselines. From its script for this
model: prompts of 1024 and responses of 512 tokens, 512 responses a step, 4
updates of 128, learning rate 1e-6, 15 epochs, the prompt, and that an answer
counts only after ####. SFT is that of configs/sft/gsm8k_gemma2_2b.py; without
it (--config.sft.path= --config.sft.epochs=none) RL starts from the published
model.

What differs: verl's is PPO, with a critic and one response to a prompt; this is
GRPO with 64 prompts of 8 samples, for as many responses in all, which are about
two epochs. verl's KL of weight .001 is part of the reward; this one is part of
the loss. Our verifier compares values, as in configs/real/gsm8k_qwen25_0p5b.py.

The problems come from the hub (`pip install 'jaxrl_llm[data]'`), or from files
with the fields `question` and `answer`. The mesh fits any number of devices
that divides 8. launch/FITS.md has the memory and the estimated time on 8 chips
of v5e. Not run at this size yet.
"""

from jaxrl_llm.configs.real import gsm8k_qwen25_0p5b as qwen
from jaxrl_llm.configs.sft import gsm8k_gemma2_2b as sft

TOPOLOGY = qwen.TOPOLOGY


def get_config():
  """Returns the config."""
  c = sft.get_config()
  c.steps = 15 * (qwen.PROBLEMS // 512)
  c.learner.updates = 4
  c.optimizer.learning_rate = 1e-6
  c.eval.every = 20
  c.checkpoint.every = 20
  return c


def get_hyper(hyper):
  """Returns a sweep: two learning rates, three seeds each."""
  return hyper.product([
      hyper.sweep('optimizer.learning_rate', [1e-6, 5e-6]),
      hyper.sweep('seed', [0, 1, 2])])
