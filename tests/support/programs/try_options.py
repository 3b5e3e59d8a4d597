"""Parse lists of options in the rendered project of the current folder, then train with others: PARSED TRAINED.

Both are JSON.
"""

import importlib
import json
import sys
from typing import Any

modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("config", "open_run", "train")]
config, run, train = modules
kind = getattr(train, "LightningConfig", config.Config)
parser = config.make_parser("test", "", kind)
for options in json.loads(sys.argv[1]):
    config.read(parser, options)
for options in json.loads(sys.argv[2]):
    run.main(train.train, options, kind)
