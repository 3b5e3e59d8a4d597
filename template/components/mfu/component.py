"""Model FLOP/s and their share of the device's peak (MFU), Chowdhery et al.

2022 (arXiv:2204.02311), appendix B.
"""

import copy
import math
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)  # not meta tensors, whose device has no autocast
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .. import precision
from ..component import Component, Step
from ..config_base import Section
from ..contracts import Metrics
from ..distributed import World
from ..loader import map_tensors
from ..metrics import compute_loss
from ..run import Run

# Peak of dense matrix products in bf16 or fp16 with fp32 accumulation, in TFLOP/s, from the
# vendors' data sheets, by the first name that is in the device's name as whole words. Many sheets
# give twice as much, for sparse matrices; AMD's gives both dies of an MI250X, each of which is a
# device in torch.
PEAKS: dict[str, float] = {
    "B200": 2250, "H200 NVL": 835.5, "H200": 989, "H100 PCIe": 756, "H100 NVL": 835.5, "H100": 989, "A100": 312,
    "A40": 149.7, "A30": 165, "A10G": 70, "A10": 125, "L40S": 362, "L40": 181, "L4": 121, "RTX 4090": 165.2,
    "RTX 3090": 71, "V100-PCIE": 112, "V100-SXM2": 125, "Tesla T4": 65, "MI325X": 1307, "MI300X": 1307,
    "MI250X": 191.5,
}  # fmt: skip
UNKNOWN = re.compile(r"Laptop|Max-Q|MIG|GRID|-\d+[ABCQ]\b| (Ti|D|SUPER)\b| / ")
"""In names of other chips, of parts of one (MIG, and virtual GPUs such as A40-48Q), and of several (MI250X / MI250)."""
LSTM: dict[Any, Any] = {
    torch.ops.aten.mkldnn_rnn_layer: lambda sequence, first, second, *_, **__: _products(
        sequence, first, second
    ),
    torch.ops.aten.mkldnn_rnn_layer_backward: lambda sequence, *weights, **_: (
        2 * _products(sequence, *weights[:2])
    ),
}
"""FLOPs of a layer of an LSTM, which is one operation on the CPU: torch's counter does not know it."""
FACTORS = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5}
"""Peak of a precision; that of fp32 without Tensor Cores is not in the table."""


@dataclass(frozen=True)
class MfuConfig(Section):
    """Model FLOP/s in the rows of metrics."""

    enabled: bool = False
    """Add `tflops`, TFLOP per second and device, and `mfu`, their share of the peak if that is known, to each row."""


class Mfu(Component):
    """Counts the FLOPs of one micro-batch on a copy of the model without data (fake tensors), so nothing is computed.

    They are those of matrix products, convolutions and attention in the forward and the backward
    pass.
    """

    name = "mfu"

    def __init__(self, cfg: MfuConfig, world: World) -> None:
        self.flops, self.peak, self.problem = 0, 0.0, ""
        self.fakes = FakeTensorMode()
        self.copy: nn.Module | None = None

    def convert_model(self, model: nn.Module) -> nn.Module:
        try:
            memo = {
                id(tensor): self._fake(tensor) for tensor in [*model.parameters(), *model.buffers()]
            }
            self.copy = copy.deepcopy(model, memo)
        except Exception as error:  # whatever cannot be copied
            self.problem = f"{type(error).__name__}: {error}"
        return model

    def on_train_start(self, run: Run) -> None:
        device = run.world.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.peak = peak(name, precision.name_of(run.cfg.speed, device))

    def wrap_step(self, run: Run, step: Step) -> Step:
        def count_and_call(batch: Any, loss_weight: float, is_last: bool) -> Metrics:
            if self.copy is not None or self.problem:
                self._count(run, batch)
            return step.compute_gradients(batch, loss_weight, is_last)

        return step._replace(compute_gradients=count_and_call)

    def _count(self, run: Run, batch: Any) -> None:
        try:
            if self.copy is not None:
                fake_batch = map_tensors(self._fake, batch)
                counter = FlopCounterMode(display=False, custom_mapping=LSTM)
                with (
                    torch.random.fork_rng(devices=[]),
                    self.fakes,
                    sdpa_kernel(SDPBackend.MATH),
                    counter,
                ):
                    compute_loss(self.copy, fake_batch)[0].backward()
                self.flops = counter.get_total_flops() * run.plan.accumulate
        except Exception as error:  # whatever needs values, which fake tensors do not have
            self.problem = f"{type(error).__name__}: {error}"
        if self.problem and run.world.rank == 0:
            why = self.problem.splitlines()[0][:150]
            print(
                f"warning: mfu counts no FLOPs, as the model does not run without data ({why})",
                file=sys.stderr,
            )
        self.copy, self.problem = None, ""

    def _fake(self, tensor: Tensor) -> Tensor:
        """Return a tensor without data, on the CPU: so all devices count the same operations."""
        with self.fakes:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            return (
                nn.Parameter(empty, tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else empty
            )

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        if self.flops:
            row["tflops"] = self.flops * row["samples_per_second"] / run.plan.global_batch / 1e12
            if self.peak:
                row["mfu"] = row["tflops"] / self.peak


def peak(device: str, precision_name: str) -> float:
    """Return the peak TFLOP/s of a device by its name; 0 where it is not known."""
    if UNKNOWN.search(device):
        return 0
    found = next((tflops for name, tflops in PEAKS.items() if re.search(rf"\b{name}\b", device)), 0)
    return found * FACTORS.get(precision_name, 0)


def _products(sequence: torch.Size, *weights: torch.Size) -> int:
    """Return the FLOPs of the products of each element of a sequence (length, batch, channels) with two matrices."""
    return 2 * sequence[0] * sequence[1] * sum(math.prod(shape) for shape in weights)
