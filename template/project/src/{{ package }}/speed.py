"""Precision, TF32, cuDNN autotuning, channels_last, compilation, and a garbage collector that stays out of the way."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from .config import SpeedConfig
from .errors import UserError

Format = Literal["bf16", "fp16", "tf32", "fp32"]


@dataclass(frozen=True)
class Precision:
    """The number format of matrix products; weights, their gradients and the optimizer stay in fp32."""

    format: Format
    device: torch.device

    def autocast(self) -> AbstractContextManager[object]:
        """Context of a forward pass."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.format)
        return torch.autocast(self.device.type, dtype or torch.bfloat16, enabled=dtype is not None)

    def scaler(self) -> torch.amp.GradScaler:
        """Keeps fp16's small gradients from vanishing; does nothing for the other formats."""
        return torch.amp.GradScaler(self.device.type, enabled=self.format == "fp16")


def setup(cfg: SpeedConfig, device: torch.device) -> Precision:
    """Set torch's switches for this process and choose the precision.

    Raises:
        UserError: the device lacks the format that was asked for.
    """
    format = best_format(device) if cfg.precision == "auto" else cfg.precision
    if format == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0)):
        raise UserError(f"speed.precision is tf32, for NVIDIA GPUs from Ampere on, and not for {device}: use auto")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = cfg.cudnn_benchmark
        # What autocast leaves in fp32 is rare and small; only an explicit fp32 must mean fp32 throughout.
        full = "ieee" if format == "fp32" else "tf32"
        torch.backends.cuda.matmul.fp32_precision = full
        torch.backends.cudnn.conv.fp32_precision = full  # type: ignore[attr-defined]
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


def place(model: nn.Module, cfg: SpeedConfig, device: torch.device) -> nn.Module:
    """Bring the model to the device, with convolution weights in the memory order that was asked for."""
    model = model.to(device)
    if cfg.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def compiled(net: nn.Module, cfg: SpeedConfig) -> nn.Module:
    """Compile the whole model for its fixed shapes, if asked to."""
    return torch.compile(net, dynamic=False) if cfg.compile == "model" else net  # type: ignore[return-value]


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
