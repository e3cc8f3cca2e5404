r"""GSM8K's solutions with Gemma 2 2B by SFT: half of a public baseline.

  python -m jaxrl_llm.sft --config=configs/sft/gsm8k_gemma2_2b.py

Accuracy in percent on the 1,319 test problems, by greedy decoding: the makers
report 23.9 for gemma-2-2b-it, verl 52.1 after SFT on the solutions and 64.0
after RL from there, which is configs/real/gsm8k_gemma2_2b.py. This config: not
run.

  python -m jaxrl_llm.evaluate --temperature=0 \
      --config=runs/gsm8k_gemma2_2b/sft/config.json

Of verl's settings, those of its trainer's defaults: 256 rows a step, learning
rate 1e-5 with a warm-up of a tenth and a cosine, weight decay .01, rows of 1024
tokens. It says no number of epochs; three are ours. The prompt has the
instruction that RL has too; verl's rows for SFT have the question alone.

The rows come from the hub (`pip install 'jaxrl_llm[data]'`), or from files with
the fields `question` and `answer`. The mesh fits any number of devices that
divides 8. launch/FITS.md has the memory and the estimated time on 8 chips of
v5e. Not run at this size yet.
"""

from jaxrl_llm.configs.real import gsm8k_qwen25_0p5b as qwen

TOPOLOGY = qwen.TOPOLOGY


def get_config():
  """Returns the config."""
  c = qwen.get_config()
  c.steps = 0
  c.prompts_per_step = 64
  c.samples_per_prompt = 8
  c.max_prompt = 1024
  c.max_response = 512

  c.model.hf = 'google/gemma-2-2b-it'
  c.task.template = (
      '<start_of_turn>user\n{problem} ' + qwen.INSTRUCTION + '<end_of_turn>\n'
      '<start_of_turn>model\n')

  c.sft.path = c.task.path
  c.sft.heldout_count = 256
  c.sft.epochs = 3.0
  c.sft.batch = 256
  c.sft.max_length = 1024
  c.sft.learning_rate = 1e-5
  c.sft.warmup_steps = 8  # of 84
  c.sft.weight_decay = 0.01
  c.sft.eval_every = 28

  c.lora.rank = 0
  c.sampling.slots = 32
  c.sampling.prefill_prompts = 4  # of 8 on a data shard
  c.learner.tokens_per_microbatch = 5120  # a prompt and its responses
  return c


def get_hyper(hyper):
  """Returns a sweep: two learning rates."""
  return hyper.sweep('sft.learning_rate', [1e-5, 3e-5])
