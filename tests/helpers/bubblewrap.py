"""Whether bubblewrap works here; tests that need it are left out if not."""

import pytest

from jaxrl_llm.rewards import sandbox


def missing() -> str:
  """Returns why bubblewrap does not work here; '' if it does."""
  try:
    sandbox.make('bubblewrap')
  except ValueError as error:
    return str(error)
  return ''


WHY = missing()
NEEDED = pytest.mark.skipif(bool(WHY), reason=WHY)
