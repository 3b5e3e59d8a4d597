"""What only CUDA has: compute capabilities, TF32, the driver. Imported only where there is a GPU, or should be one."""

import ctypes
import os
from typing import Any, Literal

import torch

from .errors import UserError

CUDA_12 = "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"
"""Installs a build for GPUs and drivers that CUDA 13 does not support."""


def check(index: int, required: bool) -> None:
    """Check that torch, built for CUDA, can use a GPU of this machine, if there is one or it is `required`.

    Raises:
        UserError: the driver is too old, or torch has no kernels for this GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        _check_driver(required)
    elif index < count:
        _check_kernels(torch.device("cuda", index))


def _check_kernels(device: torch.device) -> None:
    built, capability = torch.cuda.get_arch_list(), torch.cuda.get_device_capability(device)
    if not built or any(runs_on(capability, kernels) for kernels in built):
        return
    older = capability < min(_capability(kernels) for kernels in built)
    way_out = f"install a build for CUDA 12.6 ({CUDA_12})" if older else "install a newer torch"
    name, number = torch.cuda.get_device_name(device), ".".join(map(str, capability))
    raise UserError(
        f"torch {torch.__version__} has no kernels for {name} of compute capability {number}, only for "
        f"{' '.join(built)}: {way_out}, or use run.device=cpu"
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


def _check_driver(required: bool) -> None:
    """Do not take the CPU silently where there is an NVIDIA driver."""
    built, supported = torch.version.cuda, driver_version()
    if not built or not supported or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    found = f"torch {torch.__version__} is built for CUDA {built}, the NVIDIA driver here for CUDA {supported}"
    if int(supported.split(".")[0]) < int(built.split(".")[0]):
        raise UserError(f"{found}: update the driver, install a build for CUDA 12.6 ({CUDA_12}), or use run.device=cpu")
    if required:  # a login node, for example, has a driver and no GPU
        raise UserError(f"{found}, and torch finds no GPU: nvidia-smi may show why; or use run.device=cpu")


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
