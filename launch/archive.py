"""The files that the workers of a TPU slice get."""

import os
import pathlib
import shlex
import subprocess
import tarfile

from jaxrl_llm.launch import gcloud

ROOT = pathlib.Path(__file__).resolve().parents[1]


def pack(job: gcloud.Job, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes the files: the code, and the secrets if there are some.

  Args:
    job: the job.
    folder: where to write them.

  Returns:
    The files, named as the workers expect.
  """
  code = folder / gcloud.CODE
  with tarfile.open(code, 'w:gz') as archive:
    for name in _names():
      if (ROOT / name).exists() and name not in job.sent.files:
        archive.add(ROOT / name, name)
    job.sent.write(archive, job.config)
  if not job.secrets:
    return [code]
  secrets = folder / gcloud.SECRETS
  secrets.touch(0o600)
  secrets.write_text(''.join(
      f'{name}={shlex.quote(os.environ[name])}\n' for name in job.secrets))
  return [code, secrets]


def _names() -> list[str]:
  """Returns the files of the repository that git knows, or all beside it."""
  try:
    found = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return ['jaxrl_llm', 'configs', 'examples', 'launch', 'setup.py',
            'pyproject.toml', 'constraints.txt', 'README.md']
  return found.stdout.split('\0')[:-1]
