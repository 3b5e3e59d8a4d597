"""Train a rendered project, or resume its run, then evaluate and report it: RUN OPTION [...]."""

import importlib
import runpy
import sys

run = sys.argv.pop(1)
runpy.run_module("proj.train", run_name="__main__")
importlib.import_module("proj.tools.evaluate").main([run, "--device=cpu"])
importlib.import_module("proj.tools.report").main([run])
