"""Distillation of a real model, against SFT on its teacher's responses.

  python -m jaxrl_llm.train --config=configs/real/smollm2.py
  python -m jaxrl_llm.export --workdir=runs/smollm2 --out=teacher
  python -m benchmarks.distill_real --teacher=teacher --write

The teacher is a copy of SmolLM2-135M-Instruct that RL has trained on
arithmetic; the student is the model as it came. Both arms take 128 training
problems a step:

  distill  the student's own responses, by KL(student || teacher) over the
           vocabulary, without rewards
  sft      the teacher's responses, by their likelihood

The learning rate is constant and the same. The KL is measured on the student's
own responses to training problems, pass@1 on held-out problems.
`--write` saves the report and its figure in results/distill_real.*. Runs are
kept in --out; the same command goes on.
"""

import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any, Mapping

from benchmarks.rl_step import machine, markdown

ROOT = pathlib.Path(__file__).parents[1]
RESULT = ROOT / 'benchmarks/results/distill_real'
CONFIG = 'configs/real/smollm2.py'
RATE = 5e-6
POINTS = 10, 20, 40  # steps
BATCH = 128

Point = Mapping[str, float]


def run(module: str, *args: str, **fields: Any) -> None:
  """Runs a program of the package.

  Args:
    module: of the program.
    *args: of its command line.
    **fields: of the config, with __ for a dot.
  """
  subprocess.run(
      [sys.executable, '-m', f'jaxrl_llm.{module}', *args, *(
          f'--config.{key.replace("__", ".")}={value}'
          for key, value in fields.items())], cwd=ROOT, check=True)


def trained(
    out: pathlib.Path, name: str, **fields: Any) -> list[dict[str, Any]]:
  """Runs the config with other fields; returns the rows of its metrics.

  Args:
    out: parent folder of the runs.
    name: of the run.
    **fields: see `run`.
  """
  folder = out / name
  if not (folder / 'done').exists():
    run('train', f'--config={CONFIG}', **{
        'workdir': folder, 'advantage': 'none', 'samples_per_prompt': 1,
        'prompts_per_step': BATCH, 'drop_zero_advantage': False,
        'optimizer__schedule': 'constant', 'checkpoint__every': 10, **fields})
    (folder / 'done').touch()
    shutil.rmtree(folder / 'checkpoints', ignore_errors=True)  # 1.6 GB
  return [*map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())]


def distilled(out: pathlib.Path, teacher: str) -> dict[int, Point]:
  """Distils the teacher; returns the figures after each number of steps."""
  rows = trained(
      out, 'distill', teacher__model__hf=teacher,
      optimizer__learning_rate=RATE, steps=POINTS[-1] + 1, eval__every=10)
  return {
      # A step's KL is that before its update.
      steps: dict(kl=rows[steps + 1]['update/teacher_kl'],
                  right=rows[steps]['eval/pass@1'],
                  tokens=sum(row['update/tokens'] for row in rows[1:steps + 1]))
      for steps in (0, *POINTS)}


def untrained(
    out: pathlib.Path, name: str, teacher: str, model: str | pathlib.Path,
) -> Point:
  """Returns the figures of a model, by a step without a learning rate."""
  rows = trained(out, name, model__hf=model, teacher__model__hf=teacher,
                 steps=1, optimizer__learning_rate=0)
  return dict(kl=rows[1]['update/teacher_kl'], right=rows[0]['eval/pass@1'],
              tokens=0)


def tuned(
    out: pathlib.Path, teacher: str, samples: pathlib.Path,
) -> dict[int, Point]:
  """Fine-tunes on the teacher's samples; returns figures as `distilled`."""
  found, lengths = {}, [
      json.loads(line)['tokens'] for line in samples.read_text().splitlines()]
  folder = out / 'sft'
  if not (folder / 'done').exists():
    run('sft', f'--config={CONFIG}', workdir=folder, sft__path=samples,
        sft__batch=BATCH, sft__steps=POINTS[-1], sft__learning_rate=RATE,
        sft__schedule='constant', sft__warmup_steps=5,
        checkpoint__every=POINTS[0], checkpoint__keep=len(POINTS) + 1)
    (folder / 'done').touch()
  for steps in reversed(POINTS):
    model = folder / str(steps)
    if not model.exists():
      run('export', f'--workdir={folder}/sft', '--checkpoint=last',
          f'--out={model}', '--dtype=float32')
    for path in (folder / 'sft/checkpoints').iterdir():
      if path.name.isdigit() and int(path.name) > max(
          (point for point in POINTS if point < steps), default=0):
        shutil.rmtree(path)
    found[steps] = dict(
        untrained(out, f'sft,{steps}', teacher, model),
        tokens=steps * BATCH * sum(lengths) / len(lengths))
  return {steps: found[steps] for steps in POINTS}


def sample(out: pathlib.Path, teacher: str) -> pathlib.Path:
  """Writes the teacher's responses to the training problems as SFT rows."""
  path = out / 'samples.jsonl'
  if path.exists():
    return path
  import jaxrl_llm
  from jaxrl_llm import config as config_lib
  from jaxrl_llm.prepare import build
  config = config_lib.load(CONFIG, {'advantage': 'reinforce'})
  problems = build.parts(config, training=False).task.train
  made = jaxrl_llm.Sampler(
      teacher, prompts_per_step=BATCH, samples_per_prompt=1,
      max_prompt=config.max_prompt, max_response=config.max_response,
      temperature=config.sampling.temperature, slots=config.sampling.slots)
  rows, count = [], POINTS[-1] * BATCH
  for first in range(0, count, BATCH):
    asked = [problems[i % len(problems)].prompt
             for i in range(first, first + BATCH)]
    got = made.sample(asked)
    rows += [dict(prompt=prompt, completion=text, tokens=int(length))
             for prompt, text, length, cut in zip(
                 asked, got.texts, got.lengths, got.truncated) if not cut]
    print(f'{first + BATCH} of {count} samples', flush=True)
  path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  return path


def report(found: Mapping[str, Mapping[int, Point]]) -> str:
  """Returns the report."""
  rows = [
      [arm, str(steps), f'{point["tokens"]:,.0f}', f'{point["kl"]:.4f}',
       f'{point["right"]:.3f}'] for arm, points in found.items()
      for steps, point in points.items()]
  return f'''\
# Distillation of SmolLM2-135M-Instruct, against SFT on its teacher's responses

{datetime.date.today()}, {machine()}. One seed. {CONFIG}, learning \
rate {RATE:g}: a step has {BATCH} responses, to training problems, of which \
the tokens are learned. The KL is KL(student || teacher) over the vocabulary, \
in nats a token, of {BATCH} responses of the student; pass@1 of 512 held-out \
problems has a standard error of up to .022.

''' + markdown(
    ['arm', 'steps', 'tokens', 'KL', 'pass@1'], rows) + '\n'


def draw(found: Mapping[str, Mapping[int, Point]]) -> None:
  """Draws KL and pass@1 by tokens."""
  import matplotlib
  matplotlib.use('Agg')
  from matplotlib import pyplot as plt
  figure, axes = plt.subplots(1, 2, figsize=(10, 4))
  axes[1].axhline(found['teacher'][0]['right'], color='0.5', linestyle=':',
                  label='teacher')
  for arm in 'distill', 'sft':
    points = found[arm]
    for axis, name in zip(axes, ('kl', 'right')):
      axis.plot([p['tokens'] for p in points.values()],
                [p[name] for p in points.values()], label=arm, marker='o')
  axes[0].set(xlabel='tokens learned', ylabel='KL, nats a token', yscale='log')
  axes[1].set(xlabel='tokens learned', ylabel='held-out pass@1')
  axes[1].legend()
  figure.tight_layout()
  figure.savefig(RESULT.with_suffix('.png'), dpi=100)


def main() -> None:
  """Runs both arms, and reports."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--teacher', required=True)
  parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'runs/distill')
  parser.add_argument('--write', action='store_true')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  samples = sample(args.out, args.teacher)
  found = {'distill': distilled(args.out, args.teacher)}
  found['sft'] = {0: found['distill'][0], **tuned(
      args.out, args.teacher, samples)}
  found['teacher'] = {0: untrained(
      args.out, 'teacher', args.teacher, args.teacher)}
  text = report(found)
  print(text)
  if args.write:
    RESULT.with_suffix('.md').write_text(text)
    draw(found)


if __name__ == '__main__':
  main()
