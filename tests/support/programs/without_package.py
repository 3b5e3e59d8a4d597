"""Ask a rendered project for its config where a package has another version, or none: PACKAGE VERSION."""

import importlib.metadata
import runpy
import sys

found, (package, version_there) = importlib.metadata.version, sys.argv[1:]


def version(distribution_name: str) -> str:
    """Return the version that was given for the package, and the installed one for all others."""
    if distribution_name != package:
        return found(distribution_name)
    if version_there == "none":
        raise importlib.metadata.PackageNotFoundError(distribution_name)
    return version_there


importlib.metadata.version = version
sys.argv = ["proj.train", "--print_config"]
runpy.run_module("proj.train", run_name="__main__")
