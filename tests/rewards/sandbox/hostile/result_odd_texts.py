# what: lone surrogates, null characters, bidi marks, a text equal by NFKC
# want: fail
# unsafe: stopped


def add(a, b):
  return {1: '\ud800', -5: '\x00', 'a': '\uff41\uff42', 0.5: '\u202e0.75'}.get(
    a, '\udcff' * 1000
  )
