r"""SmolLM2-135M-Instruct on GSM8K's solutions: SFT, then RL from there.

  python -m jaxrl_llm.sft --config=configs/sft/smollm2_gsm8k.py
  python -m jaxrl_llm.train --config=configs/sft/smollm2_gsm8k.py

The weights come as in configs/real/smollm2.py. The rows come from the hub
(`pip install 'jaxrl_llm[data]'`), or from files with the fields `question` and
`answer`, or `problem`, `answer` and `solution`:

  --config.sft.path=train.jsonl --config.task.path=train.jsonl \
  --config.task.heldout=test.jsonl

What is learned is the solution as the data set has it, with the marks of its
calculator, `<<48/2=24>>`, and the answer after ####. 100 rows of the training
set are held out. A response counts if its last number is right.

With seed 0 the held-out loss goes from 1.357 nats a token over .765, .712 and
.691 to .686 in 100 steps of 16 rows, a fifth of all rows. A step takes about 30
s on 2 cores, SFT an hour with its held-out losses, and 13 GB. On 500 problems
of the test set, pass@1 is .019 before and after, pass@8 .106 before and .142
after, which their errors do not tell apart (benchmarks/results/sft.md).
"""

from jaxrl_llm import config
from jaxrl_llm.configs.real import gsm8k_qwen25_0p5b as gsm8k
from jaxrl_llm.configs.real import smollm2


def get_config():
  """Returns the config."""
  c = config.base()
  c.max_prompt = 256
  c.max_response = 256
  c.model.hf = smollm2.weights()

  c.sft.path = ('openai/gsm8k/main:train',)
  c.sft.heldout_count = 100
  c.sft.steps = 100
  c.sft.batch = 16
  c.sft.learning_rate = 1e-4
  c.sft.eval_every = 25

  c.task.name = 'math'
  c.task.path = ('openai/gsm8k/main:train',)
  c.task.heldout = ('openai/gsm8k/main:test',)
  c.task.template = '{problem} ' + gsm8k.INSTRUCTION
  c.task.markup = 'chat'
  c.task.take = 'number'

  c.steps = 40
  c.prompts_per_step = 8
  c.samples_per_prompt = 8
  c.drop_zero_advantage = True
  c.optimizer.learning_rate = 1e-5
  c.sampling.slots = 64
  c.eval.every = 0
  c.eval.samples = 8
  c.eval.k = (1, 8)
  c.eval.slots = 64
  c.eval.problems = 500
  c.checkpoint.every = 10
  return c


def get_hyper(hyper):
  """Returns a sweep: three seeds."""
  return hyper.sweep('seed', [0, 1, 2])
