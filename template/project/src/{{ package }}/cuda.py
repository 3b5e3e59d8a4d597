"""What only CUDA has: compute capabilities, the driver, cuDNN, TF32, NVTX; its graphs are in techniques/step_graph.py.

A default run imports this only where there is a GPU, or should be one.
"""

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from .errors import UserError

CUDA_12 = "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"
"""Installs a build for GPUs and drivers that CUDA 13 does not support: from Maxwell to Hopper, and from R525."""
ON_CPU = "use the CPU (run.device=cpu, or --device cpu of a tool)"


def check(index: int) -> None:
    """Check that torch, built for CUDA, can use a GPU of this machine, if there is one.

    Raises:
        UserError: the driver is too old, or torch has no kernels for this GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        _check_driver()
    elif index < count:
        _check_kernels(torch.device("cuda", index))


def _check_kernels(device: torch.device) -> None:
    built, capability = torch.cuda.get_arch_list(), torch.cuda.get_device_capability(device)
    if not built or any(runs_on(capability, kernels) for kernels in built):
        return
    way_out = "install a newer torch, or"
    if capability < min((10, 0), *map(_capability, built)):
        maxwell = capability >= (5, 0)
        way_out = f"install a build for CUDA 12.6 ({CUDA_12}), or" if maxwell else "no torch from 2.11 on has any, so"
    name, number = torch.cuda.get_device_name(device), ".".join(map(str, capability))
    raise UserError(
        f"torch {torch.__version__} has no kernels for {name} of compute capability {number}, only for "
        f"{' '.join(built)}: {way_out} {ON_CPU}"
    )


def runs_on(capability: tuple[int, int], kernels: str) -> bool:
    """Whether a GPU of a compute capability runs kernels such as sm_80, sm_90a, or compute_90 (PTX).

    PTX runs on every newer GPU, binary code on newer ones of the same major version, and a suffix `a` means this
    capability only, `f` its major version (CUDA C++ Programming Guide, "Compute Capabilities").
    """
    lowest = _capability(kernels)
    if kernels.endswith("a"):
        return capability == lowest
    anywhere = kernels.startswith("compute") and not kernels.endswith("f")
    return capability >= lowest and (anywhere or capability[0] == lowest[0])


def _capability(kernels: str) -> tuple[int, int]:
    return divmod(int(kernels.split("_")[1].rstrip("af")), 10)


def _check_driver() -> None:
    """Do not take the CPU silently where the NVIDIA driver is too old; a login node has a newer one, and no GPU."""
    built, supported = torch.version.cuda or "", driver_version()
    if not supported or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    older, newer = (int(version.split(".")[0]) for version in (supported, built))
    if older < newer:
        another = f"for a GPU before Blackwell install a build for CUDA 12.6 ({CUDA_12}), " * (older == 12)
        found = f"torch {torch.__version__} is built for CUDA {built}, the NVIDIA driver here for CUDA {supported}"
        raise UserError(f"{found}: update the driver, {another}or {ON_CPU}")


def missing() -> str:
    """Return why torch, built for CUDA, finds no GPU, as far as that is known."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={hidden} hides all GPUs: unset it"
    if not driver_version():
        return "there is no NVIDIA driver: install it, start a container with --gpus all"
    selected = f" (CUDA_VISIBLE_DEVICES={hidden} selects among them)" * (hidden is not None)
    return f"see which GPUs nvidia-smi lists{selected}"


def driver_version() -> str:
    """Return the newest CUDA version that the NVIDIA driver supports; empty if there is no driver."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return ""
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return ""  # a stub, without a driver
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def best_format(device: torch.device) -> Literal["bf16", "fp16", "fp32"]:
    """Return the fastest format of a GPU's Tensor Cores."""
    major, _ = torch.cuda.get_device_capability(device)
    return "bf16" if major >= 8 or torch.version.hip else "fp16" if major == 7 else "fp32"


def supports(device: torch.device, wanted: str) -> bool:
    """Whether a GPU has a format in hardware."""
    capability = torch.cuda.get_device_capability(device)
    if wanted == "bf16":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    least = {"tf32": (8, 0), "fp8": (8, 9)}.get(wanted, (0, 0))
    return capability >= least and not (wanted == "fp8" and torch.version.hip)


def versions() -> dict[str, str | int | None]:
    """Return those of CUDA or ROCm, cuDNN and the driver."""
    driver = ""
    with suppress(OSError):
        number = re.search(r"\d+\.\d+(\.\d+)?", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
        driver = number[0] if number else ""
    built = torch.version.cuda or torch.version.hip
    return {"cuda": built, "cudnn": torch.backends.cudnn.version(), "driver": driver or driver_version()}


def autotune(allowed: bool) -> None:
    """Set whether cuDNN times its algorithms, and takes the fastest."""
    torch.backends.cudnn.benchmark = allowed


def report_synchronization(mode: str) -> None:
    """Set what happens when the host waits for the device: default, warn or error."""
    torch.cuda.set_sync_debug_mode(mode)


class NsysRecording:
    """What nsys records from here to `end`: a range per step, and in it those of the operators."""

    def __init__(self, step: int) -> None:
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call,unused-ignore]  # where nsys begins to record
        self.operators: Any = torch.autograd.profiler.emit_nvtx()
        self.operators.__enter__()
        torch.cuda.nvtx.range_push(f"step {step}")

    def begin(self, step: int) -> None:
        """End the range of the step before, and begin that of another."""
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push(f"step {step}")

    def end(self) -> None:
        """Wait for the last step, and let nsys stop."""
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        self.operators.__exit__(None, None, None)
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call,unused-ignore]


def allow_tf32(allowed: bool) -> None:
    """Set whether fp32 operations may use TF32.

    The legacy options first: Lightning and inductor read them, which raises an error if only the new ones were set.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    precision = "tf32" if allowed else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    cudnn: Any = torch.backends.cudnn
    cudnn.fp32_precision = cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = precision
