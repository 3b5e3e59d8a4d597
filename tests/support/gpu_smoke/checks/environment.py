"""The build of torch fits this GPU, and every getter of the precision options works."""

from typing import Any

import torch

from ..check import ENGINE, Check, Figures, Lab

FORMATS: dict[str, tuple[int, int]] = {"fp32": (0, 0), "fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""Formats with the least compute capability."""


def build(lab: Lab) -> Figures:
    """The oldest supported torch or newer, with kernels for this device."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    assert (major, minor) >= (2, 11), f"torch {torch.__version__} is older than 2.11"
    ones = torch.ones(64, 64, device=lab.device)
    assert (ones @ ones).sum().item() == 64**3
    return {} if lab.dry else {"built for": " ".join(torch.cuda.get_arch_list())}


def precision_getters(lab: Lab) -> Figures:
    """The legacy getters, which Lightning and inductor call, raise where they do not agree with the new ones."""
    lab.needs_cuda()
    project, cudnn = lab.project(ENGINE), torch.backends.cudnn
    able = [name for name, least in FORMATS.items() if torch.cuda.get_device_capability(lab.device) >= least]
    able = [name for name in able if name != "fp8" or not torch.version.hip]
    for name in able:
        project.module("speed").setup(project.config(f"--speed.precision={name}"), lab.device)
        _compare_getters(cudnn, tf32=name != "fp32")
    return {"formats": " ".join(able)}


def _compare_getters(cudnn: Any, tf32: bool) -> None:
    expected = "tf32" if tf32 else "ieee"
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert cudnn.allow_tf32 is tf32
    assert torch.backends.cuda.matmul.fp32_precision == expected
    assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == expected
    with cudnn.flags(enabled=True):  # reads and restores them
        torch.nn.functional.conv2d(torch.ones(1, 8, 8, 8, device="cuda"), torch.ones(8, 8, 3, 3, device="cuda"))


def checks(lab: Lab) -> list[Check]:
    """Return the checks of this module."""
    return [Check("build of torch", "environment", build), Check("precision getters", "environment", precision_getters)]
