# what: indents by tabs
# want: pass
# kind: correct
# unsafe: stopped


def add(a, b):
	if a is None:
		return b
	return a + b
