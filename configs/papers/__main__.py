"""Writes the texts that are made of the papers' values.

  python -m configs.papers

These are docs/papers.md, and the list of differences at the end of the header
of each config of a paper.
"""

from jaxrl_llm.configs.papers import text


def main() -> None:
  """The program."""
  for path, module in text.modules():
    path.write_text(text.with_header(path.read_text(), module))
  text.PAGE.write_text(text.page())


if __name__ == '__main__':
  main()
