"""Old name of `readers`, for a data.py written before 0.3; removed in 0.4."""

import sys

from .. import readers

sys.modules[__name__] = readers
