"""The FLOPs of the model, the peaks of devices, and that training does not change."""

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .. import train as program
from ..components.mfu import Mfu, peak
from ..loss import compute_loss
from ..model import build
from .support import rows, train_here

ON = ("--mfu.enabled=true", "--train.gradient_accumulation_steps=2")


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # of mkldnn.flags
def test_flops_are_those_of_the_real_model_and_training_does_not_change(tmp_path: Path) -> None:
    count = Mfu._count
    built = []
    totals = []

    def build_and_keep(*sections: Any) -> nn.Module:
        built.append(build(*sections))
        return built[0]

    def count_both(
        mfu: Mfu,
        model: nn.Module,
        batch: Any,
    ) -> int:
        real = copy.deepcopy(built[0])
        counter = FlopCounterMode(display=False)
        # nn.LSTM is one operation of mkldnn, which the counter does not know
        no_mkldnn = torch.backends.mkldnn.flags(enabled=False)
        with torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH), no_mkldnn, counter:
            compute_loss(real, batch)[0].backward()
        flops = count(mfu, model, batch)
        totals.append((flops, counter.get_total_flops()))
        return flops

    with (
        mock.patch.object(Mfu, "_count", count_both),
        mock.patch.object(program, "build", build_and_keep),
    ):
        train_here(tmp_path / "with", *ON)
    ((flops, expected),) = totals
    assert flops == pytest.approx(expected, rel=0.01)
    train_here(tmp_path / "without", "--train.gradient_accumulation_steps=2")
    counted = rows(tmp_path / "with", "train")
    assert all(row.pop("tflops") > 0 for row in counted)
    assert counted == rows(tmp_path / "without", "train")


def test_peaks_of_devices() -> None:
    assert peak("NVIDIA H100 80GB HBM3", "bf16") == 989
    assert peak("NVIDIA H100 PCIe", "tf32") == 378
    assert peak("NVIDIA H100 80GB HBM3", "fp32") == 0
    for unknown in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A40-48Q", "A100X", ""):
        assert peak(unknown, "bf16") == 0
