"""Import a module, and print as JSON which modules of a package are loaded then: MODULE PACKAGE."""

import importlib
import json
import sys

importlib.import_module(sys.argv[1])
package = sys.argv[2]
print(
    json.dumps([name for name in sys.modules if name == package or name.startswith(f"{package}.")])
)
