"""Train a package with Accelerate's FSDP2 on CPUs, which Accelerate itself has on accelerators only.

Accelerate's choice of the backend is the only part that is replaced: gloo, as if each rank had a
GPU.
"""

import importlib
import os
import sys
from unittest import mock

from accelerate.state import PartialState
from accelerate.utils import DistributedType

if __name__ == "__main__":
    package = sys.argv.pop(1)
    found = ("gloo", DistributedType.MULTI_GPU)
    with (
        mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu"),
        mock.patch.object(PartialState, "_prepare_backend", return_value=found),
    ):
        importlib.import_module(f"{package}.train").main()
