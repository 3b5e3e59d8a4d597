"""Precision of matrix products: autocast, gradient scaler, TF32; cuDNN's autotuner."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from .config import SpeedConfig
from .metrics import Autocast


def setup(cfg: SpeedConfig, device: torch.device) -> tuple[str, Autocast, torch.amp.GradScaler]:
    """Set torch's global options; return the precision, its autocast context, and the scaler, enabled for fp16."""
    name = best(device) if cfg.precision == "auto" else cfg.precision
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = cfg.cudnn_benchmark
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
        cudnn: Any = torch.backends.cudnn
        # of torch before 2.9; reading it fails if it contradicts the next two
        cudnn.allow_tf32 = name != "fp32"
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee" if name == "fp32" else "tf32"
    elif name == "tf32":
        cfg.refuse("precision", f"the {device.type} has no TF32: use auto")
    scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
    if name in ("fp32", "tf32"):
        return name, nullcontext, scaler
    return (
        name,
        partial(torch.autocast, device.type, torch.float16 if name == "fp16" else torch.bfloat16),
        scaler,
    )


def best(device: torch.device) -> str:
    """Return the fastest precision that the device supports in hardware."""
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return "bf16" if major >= 8 else "fp16" if major == 7 else "fp32"
    if device.type == "cpu":
        found = torch.cpu.get_capabilities()
        return "bf16" if found.get("avx512_bf16") or found.get("amx_bf16") else "fp32"
    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return "bf16" if supported and supported(including_emulation=False) else "fp32"
