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
from ..components.mfu import Mfu, MfuConfig, peak
from ..metrics import compute_loss
from ..model import build
from .support import CPU, equal, rows, state, train_here

ON = ("--mfu.enabled=true", "--train.accumulate=2")


def test_flops_are_those_of_the_real_model_and_training_does_not_change(tmp_path: Path) -> None:
    """FLOPs of step 1, by the counter on the first micro-batch itself, twice for two micro-batches."""
    counted, found = [], list[Mfu]()
    count = Mfu._count

    def count_both(mfu: Mfu, run: Any, batch: Any) -> None:
        model = copy.deepcopy(run.model)
        with (
            torch.random.fork_rng(),
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            compute_loss(model, batch)[0].backward()
        counted.append(2 * counter.get_total_flops())
        count(mfu, run, batch)
        found.append(mfu)

    with mock.patch.object(Mfu, "_count", count_both):
        train_here(tmp_path / "with", *ON)
    assert len(counted) == 1
    assert found[0].flops == pytest.approx(counted[0], rel=0.01)
    train_here(tmp_path / "without", *ON, "--mfu.enabled=false")
    assert equal(state(tmp_path / "with")["model"], state(tmp_path / "without")["model"])
    with_it, without = rows(tmp_path / "with", "train"), rows(tmp_path / "without", "train")
    assert all(row.pop("tflops") > 0 for row in with_it)
    assert with_it == without
    assert rows(tmp_path / "with", "val") == rows(tmp_path / "without", "val")


@pytest.mark.parametrize("copied", [False, True])
def test_model_that_cannot_be_counted_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], copied: bool
) -> None:
    """One that cannot be copied, and one whose value decides what it does."""

    def build_dynamic(*sections: Any) -> nn.Module:
        model = build(*sections)
        if copied:
            model.register_forward_pre_hook(
                lambda own, _: print(end="" * int(next(own.parameters()).sum() > 0))
            )
        else:
            object.__setattr__(model, "generator", (number for number in [1]))
        return model

    with mock.patch.object(program, "build", build_dynamic):
        train_here(tmp_path, *ON)
    warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert warned[0].startswith(
        "warning: mfu counts no FLOPs, as the model does not run without data ("
    )
    assert "tflops" not in rows(tmp_path, "train")[-1]


def test_peaks_of_devices() -> None:
    assert peak("NVIDIA H100 80GB HBM3", "bf16") == 989
    assert peak("NVIDIA H100 PCIe", "tf32") == 378
    assert peak("NVIDIA A100-SXM4-80GB", "fp16") == 312
    for unknown in (
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A40-48Q",
        "NVIDIA GeForce RTX 4090 D",
        "",
        "A100X",
    ):
        assert peak(unknown, "bf16") == 0
    assert peak("NVIDIA H100 80GB HBM3", "fp32") == 0


def test_share_of_the_peak_is_in_the_rows(tmp_path: Path) -> None:
    with mock.patch.object(Mfu, "on_train_start", lambda mfu, _: setattr(mfu, "peak", 0.5)):
        train_here(tmp_path, *ON)
    for row in rows(tmp_path, "train"):
        assert row["mfu"] == pytest.approx(2 * row["tflops"])


def test_weights_are_not_copied() -> None:
    mfu, model = Mfu(MfuConfig(enabled=True), CPU), nn.Linear(3, 2)
    assert mfu.convert_model(model) is model
    assert mfu.copy is not None
    assert all(type(weight).__name__ == "FakeTensor" for weight in mfu.copy.state_dict().values())
    assert type(model.weight) is nn.Parameter
