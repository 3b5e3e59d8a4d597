"""Precision of matrix products: autocast, gradient scaler, TF32; cuDNN's autotuner."""

from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .config import SpeedConfig
from .metrics import Autocast


class LossScaler(torch.amp.GradScaler):
    """torch's GradScaler, which also counts the steps that fp16 skips, on the device."""

    def __init__(self, device: torch.device, enabled: bool) -> None:
        super().__init__(device.type, enabled=enabled)
        self.skipped = torch.zeros((), device=device if enabled else "cpu")

    def count(self, grad_norm: Tensor) -> None:
        """Count a step as skipped if its gradients were not finite."""
        if self.is_enabled():
            self.skipped.add_(~grad_norm.isfinite())

    def metrics(self) -> dict[str, Tensor]:
        """Return the count for the rows of metrics; nothing without fp16."""
        if self.is_enabled():
            return {"skipped": self.skipped}
        return {}

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["skipped"] = self.skipped.item()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.skipped.fill_(state.pop("skipped"))
        if not state:  # of a run without fp16
            state = super().state_dict()
        super().load_state_dict(state)


def setup(cfg: SpeedConfig, device: torch.device) -> tuple[str, Autocast, LossScaler]:
    """Set torch's global options; return the precision, its autocast, and the scaler of fp16."""
    name = name_of(cfg, device)
    if device.type == "cuda":
        use_tf32 = name != "fp32"
        cudnn: Any = torch.backends.cudnn
        cudnn.benchmark = cfg.cudnn_benchmark
        torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
        # the older switch of the next two: torch refuses to read it if they disagree
        cudnn.allow_tf32 = use_tf32
        fp32_precision = "tf32" if use_tf32 else "ieee"
        cudnn.conv.fp32_precision = fp32_precision
        cudnn.rnn.fp32_precision = fp32_precision
    autocast: Autocast = nullcontext
    if name in ("bf16", "fp16"):
        dtype = torch.bfloat16 if name == "bf16" else torch.float16
        autocast = partial(torch.autocast, device.type, dtype)
    return name, autocast, LossScaler(device, enabled=name == "fp16")


def name_of(cfg: SpeedConfig, device: torch.device) -> str:
    """Return the precision: bf16, fp16, tf32 or fp32."""
    if cfg.precision == "auto":
        return best(device).name
    if cfg.precision == "tf32" and device.type != "cuda":
        return "fp32"
    return cfg.precision


class Choice(NamedTuple):
    """A precision, and why it is chosen."""

    name: str
    reason: str


def best(device: torch.device) -> Choice:
    """Return the fastest precision that the device supports in hardware."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            name = "bf16"
        elif major == 7:
            name = "fp16"
        else:
            name = "fp32"
        return Choice(name, f"the GPU has compute capability {major}.{minor}")
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        for capability in ("avx512_bf16", "amx_bf16"):
            if capabilities.get(capability):
                return Choice("bf16", f"the CPU has {capability}")
        return Choice("fp32", "the CPU has neither avx512_bf16 nor amx_bf16")
    return Choice("fp32", f"bf16 of the {device.type} is an option: speed.precision=bf16")


def use_channels_last(cfg: SpeedConfig, device: torch.device) -> bool:
    """Return whether convolutions run in NHWC."""
    if cfg.channels_last == "auto":
        return device.type == "cuda"
    return cfg.channels_last
