"""Model FLOP/s and their share of the device's peak (MFU).

Chowdhery et al. 2022 (arXiv:2204.02311, appendix B).
"""

import copy
import math
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # meta tensors have no autocast
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .. import precision
from ..component import Component, Step
from ..config_base import Section
from ..contracts import Metrics
from ..distributed import World
from ..loader import map_tensors
from ..loss import compute_loss
from ..run import Run

PEAKS: dict[str, float] = {
    "B200": 2250,
    "H200 NVL": 835.5,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835.5,
    "H100": 989,
    "A100": 312,
    "A40": 149.7,
    "A30": 165,
    "A10G": 70,
    "A10": 125,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "RTX 4090": 165.2,
    "RTX 3090": 71,
    "V100-PCIE": 112,
    "V100-SXM2": 125,
    "Tesla T4": 65,
    "MI325X": 1307,
    "MI300X": 1307,
    "MI250X": 191.5,
}
"""Peak of dense matrix products in bf16 or fp16 with fp32 accumulation, in TFLOP/s, from the
vendors' data sheets, by the first name that is in the device's name as whole words. Many sheets
give twice as much, for sparse matrices; AMD's gives both dies of an MI250X, each of which is a
device in torch."""
UNKNOWN = re.compile(r"Laptop|Max-Q|MIG|GRID|-\d+[ABCQ]\b| (Ti|D|SUPER)\b| / ")
"""In names of other chips, of parts of one (MIG, and virtual GPUs such as A40-48Q), and of several
(MI250X / MI250)."""
FACTORS = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5}
"""Peak of a precision; that of fp32 without Tensor Cores is not in the table."""


@dataclass(frozen=True)
class MfuConfig(Section):
    """Model FLOP/s in the rows of metrics."""

    enabled: bool = False
    """Add `tflops`, TFLOP per second and device, and `mfu`, their share of the peak if that is
    known, to each row."""


class Mfu(Component):
    """Counts the FLOPs of one micro-batch on fake tensors, so that nothing is computed.

    They are those of matrix products, convolutions and attention in the forward and the backward
    pass.
    """

    name = "mfu"

    def __init__(
        self,
        cfg: MfuConfig,
        world: World,
    ) -> None:
        self.rank = world.rank
        self.flops = 0
        self.peak = 0.0
        self.fakes = FakeTensorMode()
        self.copy: nn.Module | None = None
        """The model without data, until its FLOPs are counted."""

    def convert_model(self, model: nn.Module) -> nn.Module:
        try:
            tensors = [*model.parameters(), *model.buffers()]
            self.copy = copy.deepcopy(model, {id(tensor): self._fake(tensor) for tensor in tensors})
        except Exception as error:  # whatever cannot be copied
            self._warn(error)
        return model

    def on_train_start(self, run: Run) -> None:
        device = run.world.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.peak = peak(name, precision.name_of(run.cfg.speed, device))

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        def compute_gradients(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            if self.copy is not None:
                self.flops = self._count(self.copy, batch) * run.plan.accumulation_steps
                self.copy = None
            return step.compute_gradients(batch, is_first, is_last)

        return step._replace(compute_gradients=compute_gradients)

    def on_log(
        self,
        run: Run,
        row: dict[str, float],
    ) -> None:
        if self.flops:
            row["tflops"] = (
                self.flops * row["samples_per_second"] / run.plan.global_batch_size / 1e12
            )
            if self.peak:
                row["mfu"] = row["tflops"] / self.peak

    def _count(
        self,
        model: nn.Module,
        batch: Any,
    ) -> int:
        # an operation of the CPU's LSTM, which torch's counter does not know
        lstm = torch.ops.aten.mkldnn_rnn_layer
        lstm_backward = torch.ops.aten.mkldnn_rnn_layer_backward
        counter = FlopCounterMode(
            display=False,
            custom_mapping={lstm: _lstm_flops, lstm_backward: _lstm_backward_flops},
        )
        try:
            fake_batch = map_tensors(self._fake, batch)
            with (
                torch.random.fork_rng(devices=[]),
                self.fakes,
                sdpa_kernel(SDPBackend.MATH),
                counter,
            ):
                loss, _ = compute_loss(model, fake_batch)
                loss.backward()
        except Exception as error:  # whatever needs values, which fake tensors do not have
            self._warn(error)
            return 0
        return counter.get_total_flops()

    def _warn(self, error: Exception) -> None:
        if self.rank == 0:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:150]
            problem = "mfu counts no FLOPs, as the model does not run without data"
            print(f"warning: {problem} ({why})", file=sys.stderr)

    def _fake(self, tensor: Tensor) -> Tensor:
        """Return a tensor without data, on the CPU: so all devices count the same operations."""
        with self.fakes:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(empty, tensor.requires_grad)
            return empty


def peak(device: str, precision_name: str) -> float:
    """Return the peak TFLOP/s of a device by its name; 0 where it is not known."""
    if not UNKNOWN.search(device):
        for name, tflops in PEAKS.items():
            if re.search(rf"\b{name}\b", device):
                return tflops * FACTORS.get(precision_name, 0)
    return 0


def _lstm_flops(
    sequence: torch.Size,
    *weights: torch.Size,
    **_: Any,
) -> int:
    """Return the FLOPs of a sequence (length, batch, channels) times the first two matrices."""
    length, batch = sequence[:2]
    per_sample: int = math.prod(weights[0]) + math.prod(weights[1])
    return 2 * length * batch * per_sample


def _lstm_backward_flops(
    sequence: torch.Size,
    *weights: torch.Size,
    **_: Any,
) -> int:
    return 2 * _lstm_flops(sequence, *weights)
