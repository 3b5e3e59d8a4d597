"""Precision, cuDNN autotuner, channels_last, torch.compile, and a frozen garbage collector."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from .config import Config, SpeedConfig

Format = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]


@dataclass(frozen=True)
class Precision:
    """The number format of matrix products. Weights, gradients and optimizer state stay in fp32."""

    format: Format
    device: torch.device

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass; with fp8, all but the converted layers run in bf16."""
        if self.format in ("fp32", "tf32"):
            return nullcontext()
        return torch.autocast(self.device.type, torch.float16 if self.format == "fp16" else torch.bfloat16)

    def scaler(self) -> torch.amp.GradScaler:
        """Return the gradient scaler, which is enabled for fp16 only."""
        if self.format != "fp16":
            return torch.amp.GradScaler(self.device.type, enabled=False)
        from .grad_scaler import CountingScaler

        return CountingScaler(self.device)


def setup(cfg: Config, device: torch.device) -> Precision:
    """Set torch's global options for this process, and choose the precision.

    Raises:
        UserError: the device does not support the requested format.
    """
    format = best_format(device) if cfg.speed.precision == "auto" else cfg.speed.precision
    if not _supports(device, format):
        fitting = ", ".join(name for name in get_args(Format) if _supports(device, name))
        cfg.speed.refuse("precision", f"this run is on {device}, which supports {fitting}; use one of them, or auto")
    if device.type == "cuda":
        from . import cuda

        cuda.autotune(cfg.speed.cudnn_benchmark)
        # The few fp32 operations under autocast may use TF32; only an explicit fp32 means fp32 throughout.
        cuda.allow_tf32(format != "fp32")
    if cfg.speed.compile != "off":
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cfg.run.dir / ".compiled" if cfg.speed.compile_cache == "run" else caches / "torchinductor"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.absolute()))
    return Precision(format, device)


def best_format(device: torch.device) -> Format:
    """Return the fastest format that the device supports in hardware; fp16 needs a gradient scaler."""
    if device.type == "cuda":
        from . import cuda

        return cuda.best_format(device)
    if device.type == "cpu":
        supported = torch.cpu.get_capabilities()
        return "bf16" if supported.get("avx512_bf16") or supported.get("amx_bf16") else "fp32"
    bf16 = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return "bf16" if bf16 and bf16(including_emulation=False) else "fp32"


def _supports(device: torch.device, wanted: Format) -> bool:
    """Whether the hardware has a format. CPUs compute bf16 and fp16 as well, slowly."""
    if device.type == "xpu" and wanted == "fp16":  # GradScaler computes in fp64, which Arc A-Series GPUs lack
        return torch.xpu.get_device_properties(device).has_fp64
    if device.type != "cuda":
        return wanted in ("bf16", "fp16", "fp32")
    from . import cuda

    return cuda.supports(device, wanted)


def place(model: nn.Module, cfg: SpeedConfig, device: torch.device) -> nn.Module:
    """Move the model to the device, with convolution weights in the configured memory format."""
    model = model.to(device)
    if cfg.channels_last is True or (cfg.channels_last == "auto" and device.type == "cuda"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(net: nn.Module, cfg: SpeedConfig) -> nn.Module:
    """Compile the whole model for fixed shapes, if `speed.compile` is `model`."""
    if cfg.compile != "model":
        return net
    return torch.compile(net, dynamic=False, mode=cfg.compile_mode)  # type: ignore[return-value]


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Disable Python's garbage collector in the loop, where it would interrupt each rank at a different time."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        gc.unfreeze()
