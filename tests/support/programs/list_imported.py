"""Train a rendered project with the options given, and print the files of the package that were imported."""

import importlib
import sys

train, run = (importlib.import_module(f"proj.{name}") for name in ("train", "open_run"))
run.main(train.train, sys.argv[1:])
print("imported", *(module.__file__ for name, module in list(sys.modules.items()) if name.startswith("proj.")))
