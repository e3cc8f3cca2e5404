"""Writes the tables of docs/coming_from_trl.md.

  python docs/names.py

They are made of jaxrl_llm/config/foreign.py; tests/config/names_test.py
compares them.
"""

import pathlib

from jaxrl_llm.config import foreign

PAGE = pathlib.Path(__file__).with_name('coming_from_trl.md')


def table(library: str) -> str:
  """Returns a library's names, ours and what differs, as a Markdown table."""
  def code(names):
    return ', '.join(f'`{name}`' for name in names)

  return '\n'.join([
      f'| {library} | jaxrl_llm | what differs |', '|---|---|---|', *(
          f'| {code(row.names)} | {code(row.ours) or "-"} | {row.note} |'
          for row in foreign.NAMES[library])])


def written(page: str) -> str:
  """Returns the page with new tables; each follows its library's heading."""
  for library in foreign.NAMES:
    before, heading, after = page.partition(f'\n## Names of {library}\n\n')
    end = after.find('\n\n')
    page = before + heading + table(library) + (
        '\n' if end < 0 else after[end:])
  return page


if __name__ == '__main__':
  PAGE.write_text(written(PAGE.read_text()))
