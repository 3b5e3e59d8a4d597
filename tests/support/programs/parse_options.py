"""Parse lists of options, given as JSON, in the rendered project whose folder is the current one."""

import importlib
import json
import sys

config = importlib.import_module("proj.config")
parser = config.make_parser("test", "")
for options in json.loads(sys.argv[1]):
    config.read(parser, options)
