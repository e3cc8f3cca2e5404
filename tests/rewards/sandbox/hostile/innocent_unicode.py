# what: names and texts beyond ASCII
# want: pass
# kind: correct
# unsafe: stopped

Привет = 'größe 🐍'


def add(a, größe):
  print(Привет, ℌ := 1)
  return a + größe
