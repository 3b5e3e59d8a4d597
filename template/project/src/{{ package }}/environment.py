"""What is installed and set on this machine. It needs no torch, which takes a second to import."""

import os
import platform
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent
PACKAGES = ("torch", "numpy", "lightning", "accelerate", "torchao", "pillow", "polars", "tokenizers", "tiktoken")
"""Packages whose versions may change the results, if they are installed."""
VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS)_NUM_THREADS|CUDA_VISIBLE_DEVICES|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE"
    r"|(PYTORCH|NCCL|TORCH)_\w+"
)
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|AUTH", re.IGNORECASE)


def versions() -> dict[str, str]:
    """Return the versions of Python, of packages, and of this project."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, PACKAGE.name):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    torch = sys.modules.get("torch")
    return found | ({"torch": str(torch.__version__)} if torch else {})  # with the suffix of its build


def cpu() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        name = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        return name[1] if name else platform.machine()
    return platform.processor() or platform.machine()


def environment() -> dict[str, str]:
    """Return the environment variables that matter, at most 200 characters of each."""
    names = (name for name in sorted(os.environ) if VARIABLES.fullmatch(name) and not SECRET.search(name))
    return {name: os.environ[name][:200] for name in names}
