# what: replaces itself by a new Python that spins for 60 s
# want: fail
# unsafe: stopped
import os
import sys

code = 'import time\nend = time.time() + 60\nwhile time.time() < end: pass'
os.execv(sys.executable, [sys.executable, '-c', code])
