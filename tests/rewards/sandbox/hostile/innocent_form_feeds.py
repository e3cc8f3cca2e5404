# what: form feeds between the parts, no line end at the last
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
  return a + b