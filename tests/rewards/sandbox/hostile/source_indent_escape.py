# what: an else that fits after a try which a harness may wrap around it
# want: fail
# kind: syntax_error
# compiles: no
# unsafe: stopped
  pass
except BaseException:
  print('pass')
finally:
  import os
  os._exit(0)
