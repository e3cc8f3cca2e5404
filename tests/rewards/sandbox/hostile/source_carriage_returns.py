# what: lone carriage returns hide the code from who shows it
# want: some
# unsafe: stopped
def add(a, b): return a + b