"""The machine of the checks: its device, its description, and what a check may leave behind on it."""

import gc
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .bundle import ROOT

PACKAGES = ["numpy", "triton", "lightning", "accelerate", "torchao"]


class Machine:
    """The CPU in a dry run, else the first CUDA device."""

    def __init__(self, dry_run: bool) -> None:
        self.device = torch.device("cpu") if dry_run else torch.device("cuda", 0)
        self.missing = ""
        """Why there is no such device; empty if there is one."""
        if not dry_run and not torch.cuda.is_available():
            self.missing = f"torch {torch.__version__} finds no CUDA device: use --dry-run on a CPU"

    def reset(self) -> None:
        """Undo what the check before may have left."""
        torch._dynamo.reset()
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def usable(self) -> bool:
        """Whether the CUDA context has survived: after an illegal memory access, for example, it has not."""
        try:
            if self.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")  # the check may have failed where it forbids what follows
                torch.cuda.synchronize()
                torch.ones(1, device=self.device).sum().item()
        except RuntimeError:
            return False
        return True

    def describe(self) -> dict[str, Any]:
        """Return the machine and the versions; a commit if git finds one."""
        about: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}"}
        about |= (
            {"commit": commit} if (commit := _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")) else {}
        )
        about |= {"python": platform.python_version(), "torch": torch.__version__}
        about |= {name: _version(name) for name in PACKAGES}
        about["cpus"] = os.cpu_count()
        if self.device.type == "cpu":
            return about | {"device": "CPU", "gpus": 0}
        found = torch.cuda.get_device_properties(self.device)
        memory = round(found.total_memory / 1e9, 1)
        about |= {"device": found.name, "gpus": torch.cuda.device_count(), "memory_gb": memory}
        about |= {"capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda or torch.version.hip}
        driver = _output("nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader")
        cudnn: Any = torch.backends.cudnn
        return about | {"cudnn": cudnn.version(), "driver": driver or "unknown"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _output(*command: str) -> str:
    """Return what a program writes; nothing if it fails, or is absent."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
