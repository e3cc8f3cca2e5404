# what: add is a MagicMock whose results compare equal
# want: fail
# unsafe: stopped
from unittest.mock import MagicMock

result = MagicMock()
result.__eq__.side_effect = lambda other: True
result.__ne__.side_effect = lambda other: False
add = MagicMock(return_value=result)
