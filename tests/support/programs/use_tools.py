"""Train a rendered project for some steps, and use each tool on the run: RUN OPTION [...]."""

import importlib
import runpy
import sys

run = sys.argv.pop(1)
if sys.argv[1:]:
    runpy.run_module("proj.train", run_name="__main__")
for name in ("evaluate", "export", "predict", "report", "show"):
    print(f"-- {name}", flush=True)
    try:
        arguments = ["--output=data.png"] if name == "show" else [run, *(["missing.csv"] if name == "predict" else [])]
        importlib.import_module(f"proj.tools.{name}").main(arguments)
    except SystemExit as error:
        print(error.code)
