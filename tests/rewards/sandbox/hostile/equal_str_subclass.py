# what: a str whose comparison, text, encode and format lie
# want: fail
# kind: wrong
# unsafe: stopped


class Text(str):
  right = ''

  def __eq__(self, other):
    return True

  def __repr__(self):
    return repr(self.right)

  def encode(self, *arguments):
    return str(self.right).encode()

  def __iter__(self):
    return iter(str(self.right))

  def __len__(self):
    return len(str(self.right))

  __str__ = __repr__
  __hash__ = str.__hash__


def add(a, b):
  text = Text('never')
  text.right = a + b
  return text
