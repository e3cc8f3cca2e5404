# what: add is the verdict, no function
# want: fail
# kind: exception
# unsafe: stopped
add = {'verdict': 'correct', 'reward': 1.0}
