# what: a cookie of coding: utf-7 makes code of a comment
# want: some
# unsafe: stopped
# +AAo-add = lambda a, b: a.__add__(b)
