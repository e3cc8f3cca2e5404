"""PKPO on ARC-AGI-1 with Gemma 2 2B.

  python -m jaxrl_llm.train --config=configs/pkpo/gemma2_2b_arc.py \
      --config.task.path=arc1_training.jsonl.gz

The task's file may also be a folder with one JSON file a task, as the tasks are
published. From arXiv:2505.15201 (sections 5.2 and 5.2.4): n=16; k_opt of 1, 4
and 8; k=n and entropy bonuses of .001, .005, .01, .05 and .1 as baselines; the
"easy public subset" with an 80:20 split; and the metrics of each step. For
Tables 5 and 6 the paper trains until the cumulative solve rate has not changed
for 1000 steps: stop a run by hand when `solve_rate` has not.

The easy subset is taken for the public training set (400 tasks, which its
authors call the easier one); tasks are split by a hash of their ids, and each
test grid is a problem. A digit is one token in Gemma's tokeniser, and no text
has more tokens than characters. With the instruction, 97% of the 416 problems
have at most 4096 characters, and the longest answer has 929. Longer prompts are
counted and left out.

The mesh is for a TPU v5litepod-128; elsewhere, set mesh.data=1 mesh.fsdp=-1
mesh.tensor=1. Not run at this size yet.

Beside the paper, as python -m configs.papers writes it:
- loss.objective=no_clip, in the paper clip (section 5.2, PPO): with one update
  per step the ratio is 1, and clipping has no effect.
- not given in the paper: learner.updates=1; steps=3000 (Figure 3 changes k at
  step 1500); optimizer.learning_rate=1e-06; optimizer.warmup_steps=10;
  task.template=chat; max_prompt=4096; max_response=1024;
  model.hf=google/gemma-2-2b-it (Gemma2-2B; whether it is instruction-tuned is
  not said); prompts_per_step=16; task.reward=cells (exact is the other);
  task.heldout_share=0.2 (as in Tables 5 and 6).
"""

from jaxrl_llm.configs.pkpo import gemma2_2b_math

PAPER = 'pkpo/gemma2_2b_arc'
TOPOLOGY = 'v5e:16x8'  # v5litepod-128


def get_config():
  """Returns the config."""
  c = gemma2_2b_math.get_config()
  c.task.name = 'arc'
  c.task.path = ('arc1_training.jsonl.gz',)
  c.task.heldout = ()
  c.task.heldout_share = 0.2
  c.task.reward = 'cells'
  c.max_prompt = 4096
  c.max_response = 1024
  # 256 responses on 32 data shards.
  c.sampling.slots = 8
  c.sampling.chunk = 512
  # A prompt with both of its responses that a chip has.
  c.learner.tokens_per_microbatch = 6144
  c.learner.remat = 'attention'
  c.eval.problems = 0
  return c


def get_hyper(hyper):
  """Returns the paper's sweep: baselines, and every k."""
  return gemma2_2b_math.arms(hyper, [4, 8])
