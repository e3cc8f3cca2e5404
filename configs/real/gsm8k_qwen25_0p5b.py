r"""GSM8K with Qwen2.5 0.5B Instruct by GRPO and LoRA: a public baseline.

  python -m jaxrl_llm.train --config=configs/real/gsm8k_qwen25_0p5b.py

Accuracy in percent on the 1,319 test problems, by greedy decoding:

| | before | after |
|---|---|---|
| the makers of Qwen2.5 (few-shot) | 49.6 | |
| verl, GRPO with LoRA | | 54.3 |
| verl, PPO | | 56.7 |
| this config | not run | not run |

verl's figures are those of its page of baselines. The name of its log gives 64
prompts a step, prompts of 512 and responses of 1024 tokens, and rank 32. The
rest is from the one script of GRPO with LoRA on GSM8K that it publishes, for
3B: 5 samples, learning rate 3e-6, alpha 32, KL of weight .001 (k3) in the loss,
15 epochs, no entropy bonus; and from its defaults: clip .2, a mean over tokens,
temperature 1, weight decay .01. The prompt is verl's too: its instruction asks
for the answer after ####, and without this mark a response is wrong.

What differs: our verifier compares values, so that "#### 18.0" and "#### $18"
are right where the answer is 18; prompts come in a random order.

The problems come from the hub (`pip install 'jaxrl_llm[data]'`), or from files
with the fields `question` and `answer`. The mesh fits any number of devices
that divides 8. launch/FITS.md has the memory and the estimated time on 8 chips
of v5e. Not run at this size yet.
"""

from jaxrl_llm import config

TOPOLOGY = 'v5e:2x4'  # v5litepod-8

INSTRUCTION = (
    'Let\'s think step by step and output the final answer after "####".')
PROBLEMS = 7473  # of the training set


def get_config():
  """Returns the config."""
  c = config.base()
  c.prompts_per_step = 64
  c.samples_per_prompt = 5
  c.steps = 15 * (PROBLEMS // c.prompts_per_step)
  c.max_prompt = 512
  c.max_response = 1024

  c.model.hf = 'Qwen/Qwen2.5-0.5B-Instruct'
  c.task.name = 'math'
  c.task.path = ('openai/gsm8k/main:train',)
  c.task.heldout = ('openai/gsm8k/main:test',)
  c.task.problem = 'question'
  c.task.take = 'marked'
  # The model's own chat format, with the system message that it has by default.
  c.task.template = (
      '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a '
      'helpful assistant.<|im_end|>\n<|im_start|>user\n{problem} '
      + INSTRUCTION + '<|im_end|>\n<|im_start|>assistant\n')

  c.advantage = 'grpo'
  c.loss.kl_coef = 0.001
  c.optimizer.learning_rate = 3e-6
  c.optimizer.weight_decay = 0.01
  c.optimizer.b2 = 0.999
  c.lora.rank = 32
  c.lora.alpha = 32.0

  c.mesh.data = 1
  c.mesh.fsdp = -1
  c.sampling.slots = 40
  c.sampling.chunk = 256
  c.learner.tokens_per_microbatch = 12288
  c.learner.remat = 'attention'
  c.eval.every = 50
  c.eval.samples = 1
  c.eval.k = (1,)
  c.checkpoint.every = 50
  return c


def get_hyper(hyper):
  """Returns a sweep: two learning rates, three seeds each."""
  return hyper.product([
      hyper.sweep('optimizer.learning_rate', [3e-6, 3e-5]),
      hyper.sweep('seed', [0, 1, 2])])
