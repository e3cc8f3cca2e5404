# what: add is a property, which nothing outside a class can call
# want: fail
# unsafe: stopped
add = property(lambda self: lambda a, b: a + b)
