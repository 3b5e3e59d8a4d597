"""FLOPs per sample, and their fraction of the device's peak."""

import pytest
import torch
from torch import Tensor, nn

from ..config import Config, LogConfig
from ..distributed import World
from ..errors import UserError
from ..techniques import mfu
from ..techniques.mfu import Mfu, peak


class Net(nn.Module):
    """One linear layer with 16 inputs, and one convolution over 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(16, 32), nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, numbers: Tensor, images: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, int]]]:
        loss = self.linear(numbers).sum() + self.conv(images).sum()
        return loss, {"loss": (loss, 1)}


def test_flops_per_sample(world: World) -> None:
    with torch.device("meta"):
        work = Mfu(Net(), (torch.empty(5, 16), torch.empty(5, 2, 8, 8)), world, "bf16")
    linear, conv = 2 * 16 * 32, 2 * 2 * 4 * 9 * 64
    assert work.per_sample == 2 * (linear + conv), "forward, and backward to the weights; the inputs need no gradient"
    row = {"samples_per_second": 1e9}
    assert not work.on_metrics(row)
    assert row == {"samples_per_second": 1e9, "tflops": pytest.approx(2 * (linear + conv) / 1e3)}, "no peak for a CPU"


def test_model_that_needs_values_is_trained_without(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mfu, "build", lambda *_: lambda x: (x[x > 0].sum(), {}))
    with pytest.warns(UserWarning, match="no FLOPs are counted, as the model cannot run on meta tensors"):
        assert mfu.hooks(Config(), None, torch.ones(2), world, "bf16") == []
    with pytest.raises(UserError, match="log.mfu is true: the model cannot run on meta tensors"):
        mfu.hooks(Config(log=LogConfig(mfu=True)), None, torch.ones(2), world, "bf16")


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 0),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA L40S", "fp8", 724),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA RTX A4000", "bf16", 0),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", 0),
        ("NVIDIA GeForce RTX 4090 D", "bf16", 0),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", 0),
        ("NVIDIA A40", "bf16", 149.7),
        ("NVIDIA A40-48Q", "bf16", 0),
        ("GRID A100-10C", "bf16", 0),
        ("GRID A100-1-5C MIG 1g.5gb", "bf16", 0),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bf16", 0),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100S-PCIE-32GB", "fp16", 0),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI250X / MI250", "bf16", 0),
        ("AMD Instinct MI300X", "bf16", 1307),
        ("NVIDIA L4", "bf16", 121),
        ("Tesla T4", "fp16", 65),
        ("NVIDIA H200", "fp32", 0),
        ("", "bf16", 0),
    ],
)
def test_peak_throughput_by_device(device: str, precision: str, expected: float) -> None:
    assert peak(device, precision) == expected  # type: ignore[arg-type]
