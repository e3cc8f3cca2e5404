r"""Evaluation: mean@n, pass@k and maj@k, with standard errors over problems.

  python -m jaxrl_llm.evaluate --config=runs/x/config.json \
      --files=aime.jsonl,math500.jsonl --temperature=.6 --samples=32 --k=1,8,16

evaluates a checkpoint of the run in the config's workdir. It writes there
`evaluation.md` (the table that it prints), `evaluation.json`, and each response
as it is made, to evaluation/<fingerprint>/responses.jsonl; report.html of the
run shows them. The same command again continues where it stopped; with more
samples or other files, it adds the missing responses. Kept responses are not
judged again: after a change to a verifier, delete that folder. In addition to
the fields of the config it takes

  --files=a.jsonl,...  problems to evaluate on, in the form of task.path: files,
                       or data sets on the hub (none: eval.problems of the
                       held-out problems, by file)
  --checkpoint=best    best, last, or start: the weights that RL starts from
                       (model.hf, SFT's or random ones), for which no
                       run is needed
  --player=policy      policy, or actor: the model in actor.model
  --temperature=.6     short for sampling.temperature; 0 is greedy: one response
  --samples=32         responses to each problem, short for eval.samples
  --k=1,8,16           of the pass@k and maj@k, short for eval.k
"""

import math
import sys
from typing import Any, Sequence

from jaxrl_llm import cli
from jaxrl_llm.base.place import Given


def parse(argv: Sequence[str]) -> tuple[Given, Any, dict[str, Any]]:
  """Reads the command line; on a mistake ends the program with exit code 2.

  Returns:
    The place among other processes, the config, and the other arguments of
    `jobs.evaluate.evaluate`.
  """
  from jaxrl_llm import config as config_lib
  with config_lib.refused():
    rest, options = _split(argv)
    if options['player'] not in config_lib.PLAYERS:
      raise ValueError(f'--player={options["player"]} is not known: use policy '
                       'or actor.')
    given, config, _ = cli.parse(rest, 'evaluate', __doc__)
    if options['greedy'] and config.eval.samples > 1:
      raise ValueError(
          f'--samples={config.eval.samples} would be as many times the same '
          'with --temperature=0: leave it out.')
    if options['player'] == 'policy':
      # The files of a teacher or a reward model need not be there.
      config = config_lib.of_player(config, 'policy')
  return given, config, options


def _split(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
  """Splits the arguments of `evaluate` from those that all programs take."""
  short = {'--samples': '--config.eval.samples', '--k': '--config.eval.k',
           '--temperature': '--config.sampling.temperature'}
  which, files, greedy, rest = 'best', (), False, []
  player = 'policy'
  for arg in argv:
    flag, equals, value = arg.partition('=')
    if flag == '--checkpoint' and equals:
      which = value
    elif flag == '--player' and equals:
      player = value
    elif flag == '--files' and equals:
      files = tuple(filter(None, map(str.strip, value.split(','))))
      if not files:
        raise ValueError(f'{arg} names no file.')
    elif flag == '--temperature' and _number(value) <= 0:
      greedy = _number(value) == 0
      if not greedy:
        raise ValueError(f'{arg} must be at least 0; 0 is greedy.')
    else:
      rest.append(short.get(flag, flag) + equals + value)
  if which not in ('best', 'last', 'start'):
    raise ValueError(
        f'--checkpoint={which} is not known: use best, last or start.')
  if greedy:
    rest = ['--config.eval.samples=1', '--config.eval.k=1', *rest]
  return rest, dict(which=which, files=files, greedy=greedy, player=player)


def _number(text: str) -> float:
  """Returns a number, or NaN for a text that the config will refuse."""
  try:
    return float(text)
  except ValueError:
    return math.nan


def main() -> None:
  """The program."""
  with cli.starting():
    given, config, options = parse(sys.argv[1:])
    from jaxrl_llm.jobs import evaluate
  with cli.running(
      given, config, 'Interrupted; the same command goes on where it stopped.',
      **options):
    evaluate.show(evaluate.evaluate(config, **options), config.workdir)


def __getattr__(name: str) -> Any:
  from jaxrl_llm.jobs import evaluate
  return getattr(evaluate, name)


if __name__ == '__main__':
  main()
