# what: prints 200 KB, within the limit
# want: pass
# kind: correct
# unsafe: stopped
for number in range(2000):
  print(number, 'x' * 90)


def add(a, b):
  print('adding', a, b)
  return a + b
