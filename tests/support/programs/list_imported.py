"""Train a rendered project with the options given, and print the files of the package that were imported."""

import runpy
import sys

runpy.run_module("proj.train", run_name="__main__")
print("imported", *(module.__file__ for name, module in list(sys.modules.items()) if name.startswith("proj.")))
