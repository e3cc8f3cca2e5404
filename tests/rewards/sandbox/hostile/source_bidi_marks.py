# what: marks of direction hide where a comment ends
# want: fail
# kind: wrong
# unsafe: stopped


def add(a, b):
  return None  # ‮ b + a nruter ⁦
