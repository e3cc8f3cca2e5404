r"""Greedy programs of a real code model, beside transformers and plain runs.

  python -m benchmarks.real_code --model=qwen_coder --mbpp=mbpp.jsonl.gz \
      --humaneval=humaneval.jsonl.gz --work=/tmp/real_code --write

The first problems of HumanEval and of MBPP's test range are solved twice by
the model in a folder, each side in its own process: by `jaxrl_llm.evaluate`,
whose programs run in the sandbox, and by transformers' `generate`, in batches
padded on the left. The prompts are those of the task `code`, both sides compute
in float32, and a response ends with the chat's end of a turn. Compared are the
texts, and the verdicts with those of a plain run: each test after the program
in a fresh `python -I` under bubblewrap, with limits of time and memory.

The model is Qwen2.5-Coder-0.5B-Instruct in 4 bits (Q4_K_M) in a GGUF file,
made a folder of float32 weights by transformers' `gguf_file`. It takes about
50 minutes on one core; what a side has made stays in `--work`, so the same
command goes on. `--write` saves the report in results/real_code.md.
"""

import argparse
import collections
import datetime
import gzip
import importlib.metadata
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
import transformers

from benchmarks.rl_step import machine, markdown
from jaxrl_llm import tasks
from jaxrl_llm.base.tokenizer import ModelTokenizer
from jaxrl_llm.evaluation.estimators import mean_and_error

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULT = ROOT / 'benchmarks/results/real_code.md'
# Greedy in 16 bits on all problems, from the makers' report (arXiv:2409.12186).
MAKERS = {'humaneval': 61.6, 'mbpp': 52.4}
FIRST_OF_MBPP = 11  # the first task_id of its test range
BATCH = 20  # prompts that transformers generates for at a time
ALONE = 4  # prompts that it also generates for one by one
SECONDS = 10.0  # of a plain run of a test
MEMORY = 2 << 30  # bytes of a plain run
_BLOCK = re.compile(r'```(?:python|py)?[ \t]*\n(.*?)(?:^```|\Z)', re.S | re.M)
_DONE = 'the end was reached'


class Solved(NamedTuple):
  """A problem, and what came of it.

  Attributes:
    set: name of its data set.
    name: its task_id.
    prompt: the text that the model reads.
    ours: the row that `evaluate` keeps of the response.
    theirs: transformers' text.
    plain: share of the tests that our text passes in plain runs.
    plain_theirs: the same for transformers' text.
  """
  set: str
  name: str
  prompt: str
  ours: dict[str, Any]
  theirs: str
  plain: float
  plain_theirs: float


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads JSON lines."""
  with (gzip.open if path.suffix == '.gz' else open)(path, 'rt') as file:
    return [json.loads(line) for line in file]


def select(
    args: argparse.Namespace, work: pathlib.Path,
) -> dict[str, list[dict[str, Any]]]:
  """Writes the first problems of each data set to `work`, and returns them."""
  found = {}
  for name in MAKERS:
    rows = [row for row in read(getattr(args, name))
            if name != 'mbpp' or row['task_id'] >= FIRST_OF_MBPP]
    found[name] = rows[:args.count]
    (work / f'{name}.jsonl').write_text(
        ''.join(json.dumps(row) + '\n' for row in found[name]))
  return found


def prompts(
    model: pathlib.Path, sets: Sequence[str], work: pathlib.Path,
) -> tuple[dict[str, list[str]], tuple[int, ...]]:
  """Returns the prompts of each data set, and the tokens that end a response.
  """
  tokenizer = ModelTokenizer(model)
  task = tasks.get('code', tokenizer)
  texts = {name: [p.prompt for p in task.load(str(work / f'{name}.jsonl'))]
           for name in sets}
  stops = [tokenizer.encode(text) for text in task.stops]
  assert all(len(ids) == 1 for ids in stops), task.stops
  return texts, (*tokenizer.stop_ids, *(ids[0] for ids in stops))


class Peer:
  """transformers' side.

  Args:
    folder: the model.
    stops: tokens that end a response.
  """

  def __init__(self, folder: pathlib.Path, stops: Sequence[int]):
    self.tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, padding_side='left')
    self.model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32)
    self.stops = [*stops]

  @torch.inference_mode()
  def generate(self, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Returns the tokens of the greedy responses, with their stop tokens."""
    given = self.tokenizer(
        [*texts], return_tensors='pt', padding=True, add_special_tokens=False)
    # Not the folder's settings, which may hold a penalty for repetition.
    rows = self.model.generate(
        **given, generation_config=transformers.GenerationConfig(
            max_new_tokens=limit, do_sample=False, eos_token_id=self.stops,
            pad_token_id=self.tokenizer.pad_token_id))
    rows = rows[:, given.input_ids.shape[1]:].tolist()
    ends = [[i for i, x in enumerate(row) if x in self.stops] for row in rows]
    return [row[:end[0] + 1] if end else row for row, end in zip(rows, ends)]

  def text(self, ids: Sequence[int]) -> str:
    """Returns the text of tokens, without a stop token at the end."""
    ids = ids[:-1] if ids and ids[-1] in self.stops else ids
    return self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

  @torch.inference_mode()
  def difference(
      self, prompt: str, theirs: Sequence[int], ours: Sequence[int],
  ) -> tuple[int, str, str, float]:
    """Returns the first token in which two responses to a prompt differ.

    Returns:
      Its number, both texts of it, and by how much its logit in `theirs` is
      above that in `ours`, by transformers.
    """
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b),
              min(len(theirs), len(ours)) - 1)
    ids = self.tokenizer(prompt, add_special_tokens=False).input_ids
    logits = self.model(
        torch.tensor([ids + [*theirs[:at]]])).logits[0, -1]
    pair = [theirs[at], ours[at]]
    gap = logits[pair[0]] - logits[pair[1]]
    return at, *map(self.tokenizer.decode, pair), gap.item()


def load_theirs(work: pathlib.Path) -> dict[str, Any]:
  """Returns transformers' tokens by prompt, in batches and `alone`."""
  path = work / 'theirs.json'
  return json.loads(path.read_text()) if path.exists() else dict(
      tokens={}, alone={})


def run_theirs(work: pathlib.Path) -> None:
  """Generates transformers' responses; the program of the second process."""
  job = json.loads((work / 'job.json').read_text())
  peer = Peer(job['model'], job['stops'])
  made = load_theirs(work)
  order = sorted(job['prompts'], key=lambda x: len(peer.tokenizer(x).input_ids))
  left = [text for text in order if text not in made['tokens']]
  batches = [('tokens', left[i:i + BATCH]) for i in range(0, len(left), BATCH)]
  few = order[::max(len(order) // ALONE, 1)][:ALONE]
  batches += [('alone', [text]) for text in few if text not in made['alone']]
  for kind, batch in batches:
    made[kind].update(zip(batch, peer.generate(batch, job['limit'])))
    (work / 'theirs.json').write_text(json.dumps(made))
    print(f'transformers: {len(made["tokens"])} of {len(order)} responses, '
          f'{len(made["alone"])} alone', file=sys.stderr, flush=True)


def run_ours(
    args: argparse.Namespace, work: pathlib.Path, sets: Sequence[str],
) -> list[dict[str, Any]]:
  """Runs `evaluate`; returns the rows of its responses."""
  subprocess.run([
      sys.executable, '-m', 'jaxrl_llm.evaluate', '--checkpoint=start',
      '--temperature=0', '--config=configs/grpo/qwen3_1p7b_math.py',
      f'--files={",".join(str(work / f"{name}.jsonl") for name in sets)}',
      f'--config.model.hf={args.model}', '--config.task.name=code',
      '--config.task.template=chat',
      f'--config.workdir={work / "run"}', '--config.max_prompt=512',
      f'--config.max_response={args.limit}',
      f'--config.prompts_per_step={args.count}',
      '--config.samples_per_prompt=2', '--config.learner.updates=1',
      f'--config.sampling.slots={BATCH}', '--config.sampling.buckets=160',
      '--config.mesh.cpu_devices=1'], check=True, cwd=ROOT,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
  result = json.loads((work / 'run/evaluation.json').read_text())
  assert not result['left_out'], result
  return read(pathlib.Path(result['responses']))


def plain_run(program: str) -> bool:
  """Returns whether a program ends by itself, after its last line."""
  command = [
      'bwrap', '--unshare-all', '--die-with-parent', '--new-session',
      '--clearenv', '--ro-bind', '/', '/', '--dev', '/dev', '--proc', '/proc',
      '--tmpfs', '/tmp', '--chdir', '/tmp', os.path.realpath(sys.executable),
      '-I', '-']
  try:
    done = subprocess.run(
        command, input=f'{program}\nprint({_DONE!r})\n'.encode(),
        capture_output=True, timeout=SECONDS, preexec_fn=lambda: (
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))))
  except subprocess.TimeoutExpired:
    return False
  return not done.returncode and done.stdout.decode(
      errors='replace').endswith(f'{_DONE}\n')


def plain_share(row: dict[str, Any], text: str) -> float:
  """Returns the share of a problem's tests that a response passes.

  Args:
    row: the problem.
    text: the response; its first block of code counts. (The task takes the
      last one that defines the function; the rule here is one of its own.)
  """
  block = _BLOCK.search(text)
  code = block[1] if block else text
  if 'entry_point' in row:
    # The prompt's imports and helpers; the response redefines its function.
    code = f'{row["prompt"]}    ...\n\n{code}'
    tests = [f'{row["test"]}\ncheck({row["entry_point"]})']
  else:
    tests = [f'{row["test_setup_code"]}\n{test}' for test in row['test_list']]
  return float(np.mean([plain_run(f'{code}\n{test}') for test in tests]))


def collect(
    problems: dict[str, list[dict[str, Any]]], texts: dict[str, list[str]],
    ours: Sequence[dict[str, Any]], peer: Peer, made: dict[str, Any],
) -> list[Solved]:
  """Returns all problems with both responses, judged by plain runs too."""
  of_prompt = {row['prompt']: row for row in ours}
  return [
      Solved(name, str(row['task_id']), text, of_prompt[text], theirs,
             plain_share(row, of_prompt[text]['response']),
             plain_share(row, theirs))
      for name, rows in problems.items()
      for row, text in zip(rows, texts[name])
      for theirs in [peer.text(made['tokens'][text])]]


def percent(values: Sequence[float]) -> str:
  """Returns mean and standard error in percent."""
  mean, error = mean_and_error(np.array(values, float))
  return f'{100 * mean:.1f} ± {100 * error:.1f}'


def same(ours: dict[str, Any], plain: float) -> bool:
  """Returns whether a verdict of ours is the share of a plain run."""
  return ours['valid'] and math.isclose(ours['reward'], plain)


def summary(solved: Sequence[Solved]) -> str:
  """Returns the table of the data sets."""
  lines = []
  for name, makers in MAKERS.items():
    rows = [row for row in solved if row.set == name]
    count = lambda found: f'{sum(found)} of {len(rows)}'
    lines.append([
        name, percent([row.ours['reward'] == 1 for row in rows]),
        percent([row.ours['reward'] for row in rows]),
        percent([row.plain_theirs == 1 for row in rows]), f'{makers}',
        count([row.ours['response'] == row.theirs for row in rows]),
        count([same(row.ours, row.plain) for row in rows]),
        count([same(row.ours, row.plain_theirs) for row in rows]),
        f'{sum(row.ours["truncated"] for row in rows)}'])
  return markdown(
      ['set', 'pass@1, %', 'tests passed, %', "pass@1 of transformers' texts "
       'in plain runs, %', "makers' pass@1, %", 'equal texts',
       'verdicts equal to plain runs', "verdicts equal to plain runs of "
       "transformers' texts", 'truncated'], lines)


def differences(
    solved: Sequence[Solved], peer: Peer, made: dict[str, Any]) -> str:
  """Returns what is known about texts and verdicts that differ."""
  lines = []
  for row in solved:
    if row.ours['response'] != row.theirs:
      ours = peer.tokenizer(
          row.ours['response'], add_special_tokens=False).input_ids
      at, theirs_token, ours_token, gap = peer.difference(
          row.prompt, made['tokens'][row.prompt], [*ours, peer.stops[0]])
      lines.append(
          f'- {row.set} {row.name}: token {at} is {theirs_token!r} by '
          f'transformers, whose logit is {gap:.2g} above that of '
          f'{ours_token!r}.')
    if not same(row.ours, row.plain):
      lines.append(
          f'- {row.set} {row.name}: {row.ours["verdict"]}, reward '
          f'{row.ours["reward"]:.3g} ({row.ours["detail"]}); {row.plain:.3g} '
          'by a plain run.')
  return '\n'.join(lines) or 'No text and no verdict differs.'


def report(
    args: argparse.Namespace, solved: Sequence[Solved], peer: Peer,
    made: dict[str, Any]) -> str:
  """Returns the report as Markdown."""
  versions = ', '.join(
      f'{name} {importlib.metadata.version(name)}'
      for name in ('jax', 'transformers', 'torch'))
  bwrap = subprocess.run(
      ['bwrap', '--version'], capture_output=True, text=True).stdout.strip()
  kinds = collections.Counter(row.ours['verdict'] for row in solved)
  alone = [made['tokens'][text] == ids for text, ids in made['alone'].items()]
  size = sum(p.numel() for p in peer.model.parameters())
  return f'''# Programs of a real model

`python -m benchmarks.real_code`, {datetime.date.today()}, {machine()}; \
{versions}, {bwrap}.

Qwen2.5-Coder-0.5B-Instruct, quantised to 4 bits (Q4_K_M, 491 MB), computed in \
float32 ({size:,} parameters, the head apart from the embedding). The first \
{args.count} problems of HumanEval and of MBPP's test range (task_id from \
{FIRST_OF_MBPP}), greedy, at most {args.limit} tokens, one user's turn in the \
model's chat format. A problem counts for pass@1 if all of its tests pass; ± \
is the standard error over problems.

{summary(solved)}

The makers' numbers are for orientation: they are of 16 bits, all problems, \
other prompts and longer responses.

Verdicts of the sandbox: \
{', '.join(f'{kind} {n}' for kind, n in kinds.most_common())}.

{differences(solved, peer, made)}

In batches transformers gives the same tokens as prompt by prompt for \
{sum(alone)} of {len(alone)} problems tried.
'''


def main() -> None:
  """Runs the command line."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  path = pathlib.Path
  parser.add_argument('--model', type=path, help="the model's folder")
  parser.add_argument('--mbpp', type=path, help='its JSON lines')
  parser.add_argument('--humaneval', type=path, help='its JSON lines')
  parser.add_argument('--work', type=path, required=True,
                      help='folder of what the sides make')
  parser.add_argument('--count', type=int, default=60,
                      help='problems of each set')
  parser.add_argument('--limit', type=int, default=400,
                      help='tokens of a response')
  parser.add_argument('--theirs', action='store_true', help=argparse.SUPPRESS)
  parser.add_argument('--write', action='store_true', help=f'into {RESULT}')
  args = parser.parse_args()
  work = args.work.resolve()
  if args.theirs:
    run_theirs(work)
    return
  work.mkdir(parents=True, exist_ok=True)
  args.model = args.model.resolve()
  problems = select(args, work)
  texts, stops = prompts(args.model, [*problems], work)
  (work / 'job.json').write_text(json.dumps(dict(
      model=str(args.model), stops=stops, limit=args.limit,
      prompts=sum(texts.values(), []))))
  subprocess.run(
      [sys.executable, '-m', 'benchmarks.real_code', '--theirs',
       f'--work={work}'], check=True, cwd=ROOT)
  ours = run_ours(args, work, [*problems])
  peer, made = Peer(args.model, stops), load_theirs(work)
  solved = collect(problems, texts, ours, peer, made)
  text = report(args, solved, peer, made)
  print(text)
  if args.write:
    RESULT.write_text(text)


if __name__ == '__main__':
  main()
