# what: the name of the function in full-width letters, equal by NFKC
# want: pass
# kind: correct
# unsafe: stopped


def ａｄｄ(a, b):
  return a + b
