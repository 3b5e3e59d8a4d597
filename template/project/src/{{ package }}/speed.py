"""Precision, TF32, cuDNN autotuning, channels_last, compilation, and a garbage collector that stays out of the way."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from .config import Config, SpeedConfig

Format = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]


@dataclass(frozen=True)
class Precision:
    """The number format of matrix products; weights, their gradients and the optimizer stay in fp32."""

    format: Format
    device: torch.device

    def autocast(self) -> AbstractContextManager[object]:
        """Context of a forward pass; around fp8's layers the rest is bf16."""
        dtype = torch.float16 if self.format == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.format in ("bf16", "fp16", "fp8"))

    def scaler(self) -> torch.amp.GradScaler:
        """Keeps fp16's small gradients from vanishing; does nothing for the other formats."""
        return torch.amp.GradScaler(self.device.type, enabled=self.format == "fp16")


def setup(cfg: Config, device: torch.device) -> Precision:
    """Set torch's switches for this process and choose the precision.

    Raises:
        UserError: the device lacks the format that was asked for.
    """
    format = best_format(device) if cfg.speed.precision == "auto" else cfg.speed.precision
    lacking = _lacking(format, device)
    if lacking:
        cfg.speed.refuse("precision", f"{lacking}, and not for {device}; use auto")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = cfg.speed.cudnn_benchmark
        # What autocast leaves in fp32 is rare and small; only an explicit fp32 must mean fp32 throughout.
        full = "ieee" if format == "fp32" else "tf32"
        torch.backends.cuda.matmul.fp32_precision = full
        torch.backends.cudnn.conv.fp32_precision = full  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = full  # type: ignore[attr-defined]
        if cfg.speed.compile != "off" and cfg.speed.compile_mode.startswith("max-autotune"):
            # Its search asks by the older name, which then has to agree.
            torch.set_float32_matmul_precision("highest" if format == "fp32" else "high")
    if cfg.speed.compile != "off":
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = cfg.run.dir / ".compiled" if cfg.speed.compile_cache == "run" else caches / "torchinductor"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.absolute()))
    return Precision(format, device)


def best_format(device: torch.device) -> Format:
    """The fastest format that the device computes in hardware without loss of range, or with a scaler against it."""
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return "bf16" if major >= 8 or torch.version.hip else "fp16" if major == 7 else "fp32"
    if device.type == "cpu":
        able = torch.cpu.get_capabilities()
        return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
    return "fp32"


def _lacking(wanted: Format, device: torch.device) -> str:
    """Which devices a format is for, if this is none of them. A CPU computes bf16 and fp16, if slowly."""
    able = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if wanted == "tf32" and able < (8, 0):
        return "it is for NVIDIA GPUs from Ampere on"
    if wanted == "fp8" and (able < (8, 9) or torch.version.hip):
        return "it is for NVIDIA GPUs from Ada and Hopper on"
    if wanted == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "it is for NVIDIA GPUs from Ampere on"
    return ""


def place(model: nn.Module, cfg: SpeedConfig, device: torch.device) -> nn.Module:
    """Bring the model to the device, with convolution weights in the memory order that was asked for."""
    model = model.to(device)
    if cfg.channels_last is True or (cfg.channels_last == "auto" and device.type == "cuda"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(net: nn.Module, cfg: SpeedConfig) -> nn.Module:
    """Compile the whole model for its fixed shapes, if asked to."""
    if cfg.compile != "model":
        return net
    return torch.compile(net, dynamic=False, mode=cfg.compile_mode)  # type: ignore[return-value]


@contextmanager
def quiet_gc() -> Iterator[None]:
    """Keep Python's garbage collector, which stops each rank at another time, out of the loop."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
