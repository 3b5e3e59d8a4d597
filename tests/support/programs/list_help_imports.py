"""Print the program's help, and on stderr the modules that this imported."""

import contextlib
import sys

from fastproj.__main__ import main

sys.argv = ["fastproj", "--help"]
with contextlib.suppress(SystemExit):
    main()
print(sorted(sys.modules), file=sys.stderr)
