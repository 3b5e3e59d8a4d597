"""Train a rendered project once with each option, in one process, and print each exit status: RUN_DIR OPTION [...]."""

import importlib
import sys
from typing import Any

modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("train", "open_run")]
train, run = modules
for option in sys.argv[2:]:
    try:
        run.main(train.train, ["--run.device=cpu", sys.argv[1], option])
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        print(1 if isinstance(end.code, str) else end.code)
