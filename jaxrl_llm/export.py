"""Export of a run's checkpoint for transformers, vLLM or llama.cpp.

  python -m jaxrl_llm.export --workdir=runs/math --out=exported

writes config.json and safetensors, and copies the other files of the model
(tokeniser, chat template, generation_config.json). LoRA's matrices are merged.
The tokens that ended the run's responses are added to generation_config.json,
so that what opens the folder stops there too. With --format=gguf the folder has
one such file, model.gguf, which llama.cpp and Ollama open, and `model.hf` too.
README.md says how the model was trained. With --push=NAME the folder is also
uploaded to the Hugging Face hub.
"""

import argparse
import sys
from typing import Any, Sequence

from jaxrl_llm import cli
from jaxrl_llm.base import own_code

FORMATS = 'safetensors', 'gguf'


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """Reads the command line; ends the program on a mistake."""
  from jaxrl_llm import config as config_lib
  from jaxrl_llm.models import hf_config
  parser = argparse.ArgumentParser(
      usage='python -m jaxrl_llm.export --workdir=RUN --out=FOLDER [OPTIONS]',
      description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.add_argument(
      '--out', required=not any(arg.startswith('--push') for arg in argv),
      help='folder to write, new or empty (with --push: WORKDIR/hub)')
  parser.add_argument(
      '--checkpoint', default='best', choices=('best', 'last'),
      help='of the best evaluation, or the newest one (default: %(default)s)')
  parser.add_argument(
      '--player', default='policy', choices=config_lib.PLAYERS,
      help='the policy, or the model in actor.model (default: %(default)s)')
  parser.add_argument(
      '--dtype', choices=hf_config.STORED,
      help='type of the weights (default: that of the original model)')
  parser.add_argument(
      '--format', default=FORMATS[0], choices=FORMATS,
      help='a folder for transformers and vLLM, or a file for llama.cpp '
      '(default: %(default)s)')
  parser.add_argument(
      '--push', metavar='NAME', help='also upload the folder to this '
      'repository of the Hugging Face hub, NAME or OWNER/NAME')
  parser.add_argument(
      '--private', action='store_true',
      help='only you can see the repository, if --push makes it')
  args = parser.parse_args(argv)
  if args.push == '' or args.private and not args.push:
    parser.error('name a repository of the hub: --push=NAME.')
  if args.out is None:
    args.out = f'{args.workdir}/hub'
  for name in ('workdir', 'out'):
    if not getattr(args, name):
      parser.error(f'--{name} is empty: name a folder.')
    try:
      setattr(args, name, own_code.expanded(getattr(args, name)))
    except ValueError as error:
      parser.error(str(error))
  return args


def main() -> None:
  """The program."""
  with cli.starting():
    from jaxrl_llm import config as config_lib
    args = parse(sys.argv[1:])
    with config_lib.refused():
      config = config_lib.of_player(config_lib.load(
          f'{args.workdir}/config.json', {'workdir': args.workdir}),
                                    args.player)
    from jaxrl_llm.jobs import export
  export.program(args, config)


def __getattr__(name: str) -> Any:
  from jaxrl_llm.jobs import export
  return getattr(export, name)


if __name__ == '__main__':
  main()
