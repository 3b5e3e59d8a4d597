"""The training program, with data that takes 60 ms for each batch: `test_profile.py` starts it."""

import runpy
import time
from typing import Any

from ..loaders import Loader

PARENT = __package__.rpartition(".")[0]


def main() -> None:
    """Train as the command line says."""
    load = Loader._load

    def slow(self: Loader, indices: list[int]) -> Any:
        time.sleep(0.06)
        return load(self, indices)

    Loader._load = slow  # type: ignore[method-assign]
    runpy.run_module(f"{PARENT}.train", run_name="__main__")


if __name__ == "__main__":
    main()
