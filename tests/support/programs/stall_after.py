"""Train a package whose dataset stalls after so many samples.

stall_after.py COUNT FOLDER PACKAGE OPTIONS.

It writes the ID of its process to FOLDER/stalled, and waits until FOLDER/go exists. With the
variable RANK_THAT_STALLS, only that rank does. Each loader worker counts its own samples.
"""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

count, place, package, *options = sys.argv[1:]
folder = Path(place)
loaded = 0
sys.argv = ["train", *options]
data = importlib.import_module(f"{package}.data")
get_item = data.Samples.__getitem__
stalls = os.environ.get("RANK_THAT_STALLS", "0") == os.environ.get("RANK", "0")


def get_or_stall(self: Any, index: int) -> Any:
    """Return a sample; those of the validation set always come."""
    global loaded
    is_train = len(self) > 10
    if stalls and is_train and loaded == int(count) and not (folder / "go").exists():
        partial = folder / f"partial-{os.getpid()}"
        partial.write_text(str(os.getpid()))
        partial.rename(folder / "stalled")
        while not (folder / "go").exists():
            time.sleep(0.05)
    loaded += is_train
    return get_item(self, index)


with mock.patch.object(data.Samples, "__getitem__", get_or_stall):
    importlib.import_module(f"{package}.train").main()
