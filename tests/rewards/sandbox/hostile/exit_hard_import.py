# what: os._exit(0) at import, after it wrote a verdict
# want: fail
# unsafe: stopped
import os

print('pass', flush=True)
os._exit(0)
