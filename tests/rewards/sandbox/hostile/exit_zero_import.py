# what: leaves with 0 before anything is defined
# want: fail
# unsafe: stopped
import sys

sys.exit(0)
